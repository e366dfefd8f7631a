//! What one create and one event cost with 4,096 vGPUs, against the same with
//! 16, on the simulated kernel: CPU time of the process, so that other work on
//! the machine does not count. Both hosts take turns.

mod report;

use std::{
    process::ExitCode,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use nix::sys::resource::{UsageWho, getrusage};
use uuid::Uuid;
use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    model::Event,
    request::{Control, CreateRequest, RemoveOptions},
    sys::{
        Kernel, Lanes, SysPath,
        sim::{HostSpec, SimKernel},
    },
};

use report::{fast_dir, figure, median};

const ROUNDS: usize = 15;
const TURNS: usize = 20;
/// What waits longer is stuck.
const LIMIT: Duration = Duration::from_secs(60);

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("flat: {error:#}");
            ExitCode::FAILURE
        }
    }
}

fn run() -> Result<()> {
    for (name, gpus, each) in [("128x32", 128, 32), ("1x4096", 1, 4096)] {
        let few = Host::start(gpus, each)?;
        let many = Host::start(gpus, each)?;
        few.fill(16)?;
        many.fill(4096)?;
        let (mut creates, mut events) = ((vec![], vec![]), (vec![], vec![]));
        for round in 0..=ROUNDS {
            let create = (few.cost(Host::create)?, many.cost(Host::create)?);
            let event = (few.cost(Host::event)?, many.cost(Host::event)?);
            // The first round starts the lanes.
            if round > 0 {
                creates.0.push(create.0);
                creates.1.push(create.1);
                events.0.push(event.0);
                events.1.push(event.1);
            }
        }
        // Milliseconds for TURNS of them.
        figure(&format!("flat/create-{name}"), median(&creates.1), median(&creates.0), "ms", 1.5);
        figure(&format!("flat/event-{name}"), median(&events.1), median(&events.0), "ms", 1.5);
    }
    Ok(())
}

struct Host {
    kernel: SimKernel,
    engine: Arc<Engine>,
    heard: Mutex<mpsc::Receiver<Event>>,
    parent: String,
    _run_dir: tempfile::TempDir,
}

impl Host {
    /// A host whose GPUs each take one more than `each`.
    fn start(gpus: u32, each: u32) -> Result<Self> {
        let mut spec = format!(
            "[mdev-kind.k]\ndriver = 'vfio_k'\nunits = {}\ntypes = [{{ id = 'k-1', size = 1 }}]\n",
            each + 1
        );
        for n in 0..gpus {
            spec += &format!("[[virtual-parent]]\nname = 'k{n}'\nmdev = 'k'\n");
        }
        let kernel = SimKernel::new(&HostSpec::parse(&spec, "host")?)?;
        let run_dir = tempfile::tempdir_in(fast_dir())?;
        let engine = Engine::start(Setup {
            executor: Arc::new(Lanes::new(Arc::new(kernel.clone()))),
            config: Config::default(),
            run_dir: run_dir.path().into(),
            module_aliases: String::new(),
            boot_id: kernel.boot_id().into(),
            timing: Timing::default(),
        })?;
        let listener = Arc::downgrade(&engine);
        kernel.on_settled_event(Box::new(move |event| {
            if let Some(engine) = listener.upgrade() {
                engine.observe(event);
            }
        }));
        let (say, heard) = mpsc::channel();
        engine.subscribe(move |change| {
            for event in &change.events {
                let _ = say.send(event.clone());
            }
        });
        let parent = format!("k{}", gpus / 2);
        Ok(Self { kernel, engine, heard: Mutex::new(heard), parent, _run_dir: run_dir })
    }

    fn fill(&self, vgpus: usize) -> Result<()> {
        for _ in 0..vgpus {
            self.engine.create(&request(), &Control::default())?;
        }
        ensure!(self.engine.snapshot().vgpu_count() == vgpus, "the host has no {vgpus} vGPUs");
        Ok(())
    }

    /// The CPU time of some turns.
    fn cost(&self, turn: impl Fn(&Self) -> Result<()>) -> Result<Duration> {
        let before = cpu_time()?;
        for _ in 0..TURNS {
            turn(self)?;
        }
        Ok(cpu_time()?.saturating_sub(before))
    }

    /// Creates and removes a vGPU.
    fn create(&self) -> Result<()> {
        let control = Control::default();
        let made = self.engine.create(&request(), &control)?;
        self.engine.remove(made.uuid, RemoveOptions::default(), &control)?;
        // The rescans that its events caused belong to it.
        self.wait_for(&Event::VgpuRemoved(made.uuid))
    }

    /// Somebody else makes and removes an mdev: until the picture shows it.
    fn event(&self) -> Result<()> {
        let uuid = Uuid::new_v4();
        let write = |path: String, value: &str| -> Result<()> {
            Ok(self.kernel.write(&SysPath::new(path)?, value)?)
        };
        let parent = format!("class/mdev_bus/{}", self.parent);
        write(format!("{parent}/mdev_supported_types/k-1/create"), &uuid.to_string())?;
        self.wait_for(&Event::VgpuAdded(uuid))?;
        write(format!("{parent}/{uuid}/remove"), "1")?;
        self.wait_for(&Event::VgpuRemoved(uuid))
    }

    fn wait_for(&self, wanted: &Event) -> Result<()> {
        let heard = self.heard.lock().ok().context("one at a time")?;
        loop {
            let event = heard.recv_timeout(LIMIT).with_context(|| format!("no {wanted:?}"))?;
            if event == *wanted {
                return Ok(());
            }
        }
    }
}

fn request() -> CreateRequest {
    CreateRequest { profile: "k-1".into(), ..CreateRequest::default() }
}

fn cpu_time() -> Result<Duration> {
    let usage = getrusage(UsageWho::RUSAGE_SELF)?;
    let of = |time: nix::sys::time::TimeVal| {
        Duration::new(time.tv_sec() as u64, time.tv_usec() as u32 * 1000)
    };
    Ok(of(usage.user_time()) + of(usage.system_time()))
}
