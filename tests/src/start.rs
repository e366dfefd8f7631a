//! Engines on laid-out trees.

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use vgpu_mdev::{
    config::Config,
    engine::{Engine, Setup, Timing},
    error::Result,
    sys::{
        Lanes,
        real::{Programs, RealKernel, Roots},
    },
};

/// An engine on the tree at `sys`, with no device nodes, processes or claims:
/// `scratch` is an empty directory.
///
/// # Errors
/// As for [`Engine::start`].
pub fn engine_on(sys: &Path, scratch: &Path, config: Config) -> Result<Arc<Engine>> {
    let made = |name: &str| -> PathBuf {
        let dir = scratch.join(name);
        std::fs::create_dir_all(&dir).expect("the scratch directory takes directories");
        dir
    };
    let roots = Roots { sys: sys.to_owned(), dev: made("dev"), proc: made("proc") };
    let kernel = RealKernel::new(&roots, Programs::default()).expect("the roots open");
    Engine::start(Setup {
        executor: Arc::new(Lanes::new(Arc::new(kernel))),
        config,
        run_dir: made("run"),
        module_aliases: String::new(),
        boot_id: "00000000-0000-0000-0000-000000000001".into(),
        timing: Timing::default(),
    })
}
