//! The server in this process, over a simulated kernel that the test can
//! script.

use std::{fs, path::Path, sync::Arc, thread, time::Duration};

use tokio::sync::oneshot;
use vgpu_host::bus::{Host, Server};
use vgpu_mdev::{
    engine::{Engine, Setup},
    sys::{
        Lanes,
        sim::{HostSpec, SimKernel},
    },
};
use vgpu_polkit::Polkit;

use crate::bus::Bus;

/// The server on a thread of its own; stops when it is dropped.
pub(crate) struct Served {
    pub(crate) kernel: SimKernel,
    pub(crate) engine: Arc<Engine>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<thread::JoinHandle<()>>,
}

impl Served {
    /// Serves the built-in host with a daemon's patience.
    pub(crate) fn start(bus: &Bus) -> Self {
        Self::patient(bus, Duration::from_secs(10))
    }

    /// Serves the built-in host; work that takes longer becomes a job.
    pub(crate) fn patient(bus: &Bus, patience: Duration) -> Self {
        Self::serve(bus, &HostSpec::builtin().unwrap(), patience)
    }

    /// Serves a described host with a daemon's patience.
    pub(crate) fn of_host(bus: &Bus, file: &Path) -> Self {
        let spec = HostSpec::parse(&fs::read_to_string(file).unwrap(), file).unwrap();
        Self::serve(bus, &spec, Duration::from_secs(10))
    }

    fn serve(bus: &Bus, spec: &HostSpec, patience: Duration) -> Self {
        let kernel = SimKernel::new(spec).unwrap();
        let engine = Engine::start(Setup {
            executor: Arc::new(Lanes::new(Arc::new(kernel.clone()))),
            config: Default::default(),
            run_dir: bus.dir.path().join("run"),
            module_aliases: kernel.module_aliases().to_owned(),
            boot_id: kernel.boot_id().to_owned(),
            timing: Default::default(),
        })
        .unwrap();
        let observer = engine.clone();
        kernel.on_settled_event(Box::new(move |event| observer.observe(event)));
        let (address, served) = (bus.address.clone(), engine.clone());
        let (stop, stopped) = oneshot::channel();
        let (ready, is_ready) = std::sync::mpsc::channel();
        let thread = thread::spawn(move || {
            let runtime =
                tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let connection =
                    zbus::connection::Builder::address(address.as_str()).build().await.unwrap();
                let authority = Box::new(Polkit::new(connection.clone()));
                let stop_patience = patience * 10;
                let host = Host { simulated: true, machine_id: None, patience, stop_patience };
                let server = Server::new(connection, served, authority, host).await.unwrap();
                server.take_name().await.unwrap();
                ready.send(()).unwrap();
                server.run(async { drop(stopped.await) }).await.unwrap();
            });
            runtime.shutdown_background();
        });
        is_ready.recv().expect("the server starts");
        Self { kernel, engine, stop: Some(stop), thread: Some(thread) }
    }

    /// Stops it and waits for its end.
    pub(crate) fn stop(mut self) {
        self.end();
    }

    fn end(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !thread::panicking()
        {
            panic!("the server panicked");
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.end();
    }
}
