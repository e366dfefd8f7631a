//! Probing through VFIO in a child process.

use std::{os::unix::process::ExitStatusExt, path::Path, time::Duration};

use nix::{errno::Errno, sys::signal::Signal};

use crate::vfio::{self, Answer};

use super::{
    super::{ProbeFailure, ProbeReport, ProbeTarget},
    child::{self, Ended},
};

/// How much of a broken probe's output is repeated.
const QUOTED: usize = 200;

/// Runs the probe and takes its answer.
pub(super) fn probe(
    program: &Path,
    target: &ProbeTarget,
    limit: Duration,
) -> Result<ProbeReport, ProbeFailure> {
    match child::run(program, vfio::arguments(target), limit) {
        Ok(ended) => answer(&ended),
        Err(errno @ Errno::ETIMEDOUT) => Err(ProbeFailure {
            message: format!(
                "the probe had no answer from the kernel within {limit:?} and was killed"
            ),
            errno: Some(errno),
        }),
        Err(errno) => Err(ProbeFailure {
            message: format!("cannot run the probe {}: {}", program.display(), errno.desc()),
            errno: Some(errno),
        }),
    }
}

/// What a probe that has ended said: its answer counts only if it ended well.
fn answer(ended: &Ended) -> Result<ProbeReport, ProbeFailure> {
    let output = String::from_utf8_lossy(&ended.output);
    let broken = |how: String| {
        let said: String = output.trim().chars().take(QUOTED).collect();
        Err(ProbeFailure { message: format!("the probe {how}; it said {said:?}"), errno: None })
    };
    if let Some(signal) = ended.status.signal() {
        let name = Signal::try_from(signal).map_or_else(|_| signal.to_string(), |s| s.to_string());
        return broken(format!("was ended by signal {name}"));
    }
    let answer = output.lines().next_back().and_then(|line| serde_json::from_str(line).ok());
    match (ended.status.code(), answer) {
        (Some(0), Some(Answer::Ok(report))) => Ok(report),
        (Some(1), Some(Answer::Error(refusal))) => Err(ProbeFailure {
            message: refusal.message,
            errno: refusal.errno.map(Errno::from_raw),
        }),
        (status, _) => broken(format!("ended with status {} and no answer", status.unwrap_or(-1))),
    }
}
