//! The configured programs.

use std::time::Duration;

use nix::errno::Errno;

use super::{
    super::{ToolId, ToolOutput},
    Programs, child,
};

/// Runs a program, its output kept.
pub(super) fn run_tool(
    programs: &Programs,
    tool: ToolId,
    args: &[String],
    limit: Duration,
) -> Result<ToolOutput, Errno> {
    let path = match tool {
        ToolId::Modprobe => &programs.modprobe,
    };
    let ended = child::run(path, args, limit)?;
    Ok(ToolOutput {
        status: ended.status.code(),
        output: String::from_utf8_lossy(&ended.output).into_owned(),
    })
}
