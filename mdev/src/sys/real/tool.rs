//! The configured programs.

use std::{path::Path, time::Duration};

use nix::errno::Errno;

use super::{super::ToolOutput, child};

/// Runs a program, its output kept.
pub(super) fn run_tool(
    program: &Path,
    args: &[String],
    limit: Duration,
) -> Result<ToolOutput, Errno> {
    let ended = child::run(program, args, limit)?;
    Ok(ToolOutput {
        status: ended.status.code(),
        output: String::from_utf8_lossy(&ended.output).into_owned(),
    })
}
