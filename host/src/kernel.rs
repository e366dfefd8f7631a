//! The kernel below the engine: the real one, or a simulated one.

use std::{
    path::PathBuf,
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
};

use anyhow::{Context as _, Result};
use vgpu_mdev::{
    config::Tools,
    engine::{Engine, Hint},
    sys::{
        Executor, KernelEvent, Lanes,
        real::{MonitorHandle, MonitorItem, Programs, RealKernel, Roots, monitor},
        sim::{HostSpec, SimKernel},
    },
};

use crate::files;

/// Which kernel is below the engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum KernelChoice {
    /// The one that runs us.
    Real,
    /// A simulated one: of the host that the file describes, or a small
    /// built-in one.
    Simulated(Option<PathBuf>),
}

/// A kernel and its events, which are followed until this is dropped.
pub(crate) struct Kernel {
    pub(crate) executor: Arc<dyn Executor>,
    /// The kernel's boot id.
    pub(crate) boot_id: String,
    /// The aliases of its modules, empty without any.
    pub(crate) module_aliases: String,
    pub(crate) events: Events,
    _monitor: Option<MonitorHandle>,
}

/// Brings a kernel's events to the engine, which starts after them: an event
/// that comes meanwhile makes it look at everything again.
#[derive(Clone, Default)]
pub(crate) struct Events(Arc<Inner>);

#[derive(Default)]
struct Inner {
    engine: OnceLock<Arc<Engine>>,
    missed: AtomicBool,
}

impl Events {
    /// Tells the engine of events from now on.
    pub(crate) fn follow(&self, engine: &Arc<Engine>) {
        let _ = self.0.engine.set(engine.clone());
        if self.0.missed.load(Ordering::SeqCst) {
            engine.hint(Hint::All);
        }
    }

    fn happened(&self, event: &KernelEvent) {
        self.with_engine(|engine| engine.observe(event));
    }

    fn lost(&self) {
        tracing::warn!(
            "the kernel's events came too fast and some were lost; looking at everything again"
        );
        self.with_engine(|engine| engine.hint(Hint::All));
    }

    fn with_engine(&self, tell: impl FnOnce(&Arc<Engine>)) {
        // Noted first: whoever sets the engine either is seen here or sees it.
        if self.0.engine.get().is_none() {
            self.0.missed.store(true, Ordering::SeqCst);
        }
        if let Some(engine) = self.0.engine.get() {
            tell(engine);
        }
    }
}

/// Opens the kernel, which runs these programs.
pub(crate) fn open(choice: &KernelChoice, tools: &Tools) -> Result<Kernel> {
    let events = Events::default();
    match choice {
        KernelChoice::Real => {
            let programs = Programs { tools: tools.clone(), ..Programs::default() };
            let kernel = RealKernel::new(&Roots::default(), programs)?;
            let heard = events.clone();
            let monitor = monitor(move |item| match item {
                MonitorItem::Event(event) => heard.happened(&event),
                MonitorItem::Overrun => heard.lost(),
            });
            let monitor = monitor.context("the kernel's events cannot be followed")?;
            Ok(Kernel {
                boot_id: files::boot_id()?,
                module_aliases: files::module_aliases(),
                executor: Arc::new(Lanes::new(Arc::new(kernel))),
                events,
                _monitor: Some(monitor),
            })
        }
        KernelChoice::Simulated(file) => {
            let spec = match file {
                Some(file) => HostSpec::parse(&files::description(file)?, file)?,
                None => HostSpec::builtin()?,
            };
            let kernel = SimKernel::new(&spec)?;
            let heard = events.clone();
            kernel.on_settled_event(Box::new(move |event| heard.happened(event)));
            let heard = events.clone();
            kernel.on_overrun(Box::new(move || heard.lost()));
            Ok(Kernel {
                boot_id: kernel.boot_id().to_owned(),
                module_aliases: kernel.module_aliases().to_owned(),
                executor: Arc::new(Lanes::new(Arc::new(kernel))),
                events,
                _monitor: None,
            })
        }
    }
}
