//! Programs that are run: without a shell, with nothing of ours but their
//! arguments, and not for ever.

use std::{
    ffi::OsStr,
    io,
    os::fd::{AsFd, BorrowedFd, OwnedFd},
    path::Path,
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use nix::{
    errno::Errno,
    fcntl::{FcntlArg, OFlag, fcntl},
    poll::{PollFd, PollFlags, PollTimeout, poll},
    sys::signal::{Signal, killpg},
    unistd::{Pid, pipe2, read},
};

use super::super::{Deadline, raw};

/// The most that is kept of a program's output: `nvidia-smi -q -x` names each
/// process and each clock of a GPU, and cut off it says nothing.
const LIMIT: usize = 1024 * 1024;

/// A program that has ended.
pub(super) struct Ended {
    pub(super) status: ExitStatus,
    /// What it printed, both streams.
    pub(super) output: Vec<u8>,
}

/// Runs a program until it ends, ETIMEDOUT when it took longer than `limit` and
/// was killed.
///
/// A killed program that the kernel does not let go is waited for: its lane
/// hangs as the kernel does.
pub(super) fn run<A: AsRef<OsStr>>(
    program: &Path,
    args: impl IntoIterator<Item = A>,
    limit: Duration,
) -> Result<Ended, Errno> {
    let deadline = Deadline::after(limit);
    let (output, input) = pipe2(OFlag::O_CLOEXEC)?;
    // Our end alone: a program does not expect its output to be non-blocking.
    fcntl(&output, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))?;
    let mut command = Command::new(program);
    command
        .args(args)
        .env_clear()
        .env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin")
        // What they print is read.
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(input.try_clone().map_err(errno)?)
        .stderr(input);
    std::os::unix::process::CommandExt::process_group(&mut command, 0);
    raw::seal_descriptors(&mut command);
    let mut child = command.spawn().map_err(errno)?;
    // Ours, with the copies of the pipe's other end in it.
    drop(command);
    let mut kept = Vec::new();
    let waited = raw::pidfd_open(child.id())
        .and_then(|pidfd| wait(pidfd.as_fd(), &output, deadline, &mut kept));
    if waited.is_err() {
        kill(&mut child);
    }
    let status = child.wait().map_err(errno)?;
    waited.map(|()| Ended { status, output: kept })
}

/// Keeps a program's output until it ends. What it leaves behind may hold the
/// pipe for ever, so the pipe's end means nothing.
fn wait(
    pidfd: BorrowedFd<'_>,
    output: &OwnedFd,
    deadline: Deadline,
    kept: &mut Vec<u8>,
) -> Result<(), Errno> {
    let mut open = true;
    loop {
        let left = deadline.left();
        if left.is_zero() {
            return Err(Errno::ETIMEDOUT);
        }
        let mut fds =
            [PollFd::new(pidfd, PollFlags::POLLIN), PollFd::new(output.as_fd(), PollFlags::POLLIN)];
        let watched = if open { &mut fds[..] } else { &mut fds[..1] };
        // Rounded up, so that the last millisecond is not spent spinning.
        let timeout =
            PollTimeout::try_from(left + Duration::from_millis(1)).unwrap_or(PollTimeout::MAX);
        match poll(watched, timeout) {
            Ok(_) | Err(Errno::EINTR) => {}
            Err(errno) => return Err(errno),
        }
        let [ended, printed] = fds.map(|fd| fd.any().unwrap_or(false));
        if printed || ended {
            open = drain(output, kept)?;
        }
        if ended {
            return Ok(());
        }
    }
}

/// Takes what is in the pipe now; false at its end.
fn drain(output: &OwnedFd, kept: &mut Vec<u8>) -> Result<bool, Errno> {
    let mut buffer = [0; 4096];
    loop {
        match read(output, &mut buffer) {
            Ok(0) => return Ok(false),
            Ok(length) => {
                let room = LIMIT.saturating_sub(kept.len());
                kept.extend_from_slice(buffer.get(..length.min(room)).unwrap_or_default());
            }
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => return Ok(true),
            Err(errno) => return Err(errno),
        }
    }
}

/// Kills a child and what it started. It has not been waited for, so its number
/// is still its own.
fn kill(child: &mut Child) {
    if let Ok(pid) = i32::try_from(child.id()) {
        let _ = killpg(Pid::from_raw(pid), Signal::SIGKILL);
    }
    let _ = child.kill();
}

fn errno(error: io::Error) -> Errno {
    Errno::from_raw(error.raw_os_error().unwrap_or(libc::EIO))
}
