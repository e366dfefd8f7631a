//! The text files that the daemon reads when it starts; nothing else here
//! touches the file system.
#![allow(clippy::disallowed_methods, reason = "read once, before anything is served")]

use std::{
    fs::{self, DirBuilder, File},
    io,
    os::unix::fs::DirBuilderExt as _,
    path::Path,
};

use anyhow::{Context as _, Result};
use nix::fcntl::{Flock, FlockArg};
use vgpu_mdev::config::Config;

/// Larger ones are no configuration.
const LARGEST_CONFIG: u64 = 1 << 20;

/// `host.toml`; a missing file means defaults.
pub(crate) fn config(path: &Path) -> Result<Config> {
    let size = match fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Config::default()),
        Err(error) => return Err(error).with_context(|| path.display().to_string()),
    };
    anyhow::ensure!(
        size <= LARGEST_CONFIG,
        "{}: {size} bytes are too many for a configuration",
        path.display()
    );
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    Ok(Config::parse(&text, path)?)
}

/// Takes the run directory, made where it is missing, for as long as the lock
/// lives: a second daemon on it would settle the claims of the first.
pub(crate) fn take_run_dir(path: &Path) -> Result<Flock<File>> {
    let name = || path.display().to_string();
    DirBuilder::new().recursive(true).mode(0o700).create(path).with_context(name)?;
    let dir = File::open(path).with_context(name)?;
    Flock::lock(dir, FlockArg::LockExclusiveNonblock).map_err(|(_, errno)| match errno {
        nix::errno::Errno::EWOULDBLOCK => anyhow::anyhow!(
            "{}: another vgpu-hostd keeps its claims here; stop it, or choose another --run-dir",
            path.display()
        ),
        errno => anyhow::Error::from(errno).context(name()),
    })
}

/// The description of a simulated host.
pub(crate) fn description(path: &Path) -> Result<String> {
    fs::read_to_string(path).with_context(|| path.display().to_string())
}

/// The kernel's boot id.
pub(crate) fn boot_id() -> Result<String> {
    let path = "/proc/sys/kernel/random/boot_id";
    Ok(fs::read_to_string(path).context(path)?.trim().to_owned())
}

/// The module aliases of the running kernel, empty where it has no modules.
pub(crate) fn module_aliases() -> String {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    fs::read_to_string(format!("/lib/modules/{}/modules.alias", release.trim())).unwrap_or_default()
}

/// The machine's id, where it has one.
pub(crate) fn machine_id() -> Option<String> {
    let text = fs::read_to_string("/etc/machine-id").ok()?;
    let id = text.trim();
    (id.len() == 32 && id.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| id.to_owned())
}
