//! Other people's programs in a mount namespace of their own, in which a
//! simulated sysfs is `/sys`: they look nowhere else. What they store is theirs
//! alone.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use tempfile::TempDir;

/// Mounts what its first arguments name, and becomes the program that the
/// others do.
const ENTER: &str = r#"
mount --bind "$1" /sys
mount --bind "$2/mdevctl.d" /etc/mdevctl.d
mount --bind "$2/driverctl.d" /etc/driverctl.d
shift 2
exec "$@"
"#;
/// The release that `modprobe` is told of: its folder holds no modules.
const RELEASE: &str = "6.12.0";

/// What programs find instead of the host's.
pub struct Namespace {
    sys: PathBuf,
    files: TempDir,
}

impl Namespace {
    /// Programs find a sysfs, and `modprobe` these modules, in the kernel already.
    ///
    /// # Panics
    /// When `depmod` is missing.
    pub fn new(sys: &Path, modules: &[&str]) -> Self {
        let files = TempDir::new().unwrap();
        let release = files.path().join("lib/modules").join(RELEASE);
        for dir in ["mdevctl.d/scripts.d/callouts", "mdevctl.d/scripts.d/notifiers", "driverctl.d"]
        {
            fs::create_dir_all(files.path().join(dir)).unwrap();
        }
        fs::create_dir_all(&release).unwrap();
        let builtin: String = modules.iter().map(|name| format!("kernel/{name}.ko\n")).collect();
        fs::write(release.join("modules.builtin"), builtin).unwrap();
        for name in ["modules.order", "modules.builtin.modinfo"] {
            fs::write(release.join(name), "").unwrap();
        }
        let depmod = Command::new("depmod").arg("-b").arg(files.path()).arg(RELEASE).output();
        let depmod = depmod.expect("this needs depmod");
        assert!(depmod.status.success(), "{}", String::from_utf8_lossy(&depmod.stderr));
        Self { sys: sys.to_owned(), files }
    }

    /// Runs a program: what it said, or the errors of one that failed.
    ///
    /// # Errors
    /// What the program says on its standard error.
    pub fn run(&self, program: &str, args: &[&str]) -> Result<String, String> {
        let ended = Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-ec", ENTER, "sh"])
            .args([self.sys.as_os_str(), self.files.path().as_os_str()])
            .arg(program)
            .args(args)
            .env("MODPROBE_OPTIONS", format!("-d {} -S {RELEASE}", self.files.path().display()))
            // udev's library else takes nothing but the kernel's own sysfs.
            .env("SYSTEMD_DEVICE_VERIFY_SYSFS", "0")
            .output()
            .expect("this needs unshare");
        let text = |bytes: Vec<u8>| String::from_utf8(bytes).unwrap();
        if ended.status.success() { Ok(text(ended.stdout)) } else { Err(text(ended.stderr)) }
    }
}
