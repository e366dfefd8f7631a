//! Reading the host, below a root of one's own in tests. Nothing is written.
#![allow(clippy::disallowed_methods, reason = "doctor looks at the host itself, and only looks")]

use std::{fs, path::PathBuf};

use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};

/// Bit of CAP_IPC_LOCK (`include/uapi/linux/capability.h`).
const CAP_IPC_LOCK: u64 = 1 << 14;

/// A host to look at.
pub(super) struct Host {
    root: PathBuf,
}

impl Host {
    /// This one.
    pub(super) fn real() -> Self {
        Self { root: PathBuf::from("/") }
    }

    /// One whose files are below `root`.
    #[cfg(test)]
    pub(super) fn below(root: impl Into<PathBuf>) -> Self {
        Self { root: root.into() }
    }

    /// Whether there is such a path.
    pub(super) fn exists(&self, path: &str) -> bool {
        self.root.join(path).exists()
    }

    /// How many entries a directory has; 0 where there is none.
    pub(super) fn entries(&self, path: &str) -> usize {
        fs::read_dir(self.root.join(path)).map_or(0, |entries| entries.flatten().count())
    }

    /// How many bytes the caller may lock; `None` for any number.
    pub(super) fn memlock(&self) -> Option<u64> {
        match getrlimit(Resource::RLIMIT_MEMLOCK) {
            Ok((soft, _)) if soft != RLIM_INFINITY => Some(soft),
            _ => None,
        }
    }

    /// Whether that limit does not hold for the caller.
    pub(super) fn may_lock_all(&self) -> bool {
        let status = fs::read_to_string(self.root.join("proc/self/status")).unwrap_or_default();
        let capabilities = status.lines().find_map(|line| line.strip_prefix("CapEff:"));
        let capabilities = capabilities.and_then(|set| u64::from_str_radix(set.trim(), 16).ok());
        capabilities.is_some_and(|set| set & CAP_IPC_LOCK != 0)
    }
}
