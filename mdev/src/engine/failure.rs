//! From what failed to what the caller is told.

use nix::errno::Errno;

use crate::{
    error::{Error, ErrorKind},
    execute::{Cause, Failure, ToolFailure},
    model::{GpuId, Profile, Vgpu},
    plan::Expect,
    refusal::{self, Context},
    scan::ScanError,
    sys::OpError,
};

pub(super) fn no_such_gpu(tried: impl Into<String>, gpu: &GpuId) -> Error {
    Error::new(ErrorKind::NoSuchGpu, "no-such-gpu", tried, format!("the host has no GPU {gpu}"))
        .remedy("see vgpuctl gpus; devices of other classes come in by discovery.add in host.toml")
}

pub(super) fn no_such_profile(tried: impl Into<String>, offered: &[Profile]) -> Error {
    let names: Vec<&str> = offered.iter().map(|profile| profile.short_name.as_str()).collect();
    let cause = if names.is_empty() {
        "it offers no profile at all; a GPU is offered whole only when passthrough.allow in host.toml names it"
            .to_owned()
    } else {
        format!("no profile is called so; there are {}", names.join(", "))
    };
    Error::new(ErrorKind::NoSuchProfile, "no-such-profile", tried, cause)
        .remedy("see vgpuctl profiles")
}

pub(super) fn no_such_vgpu(tried: impl Into<String>) -> Error {
    Error::new(ErrorKind::NoSuchVgpu, "no-such-vgpu", tried, "there is no such vGPU")
        .remedy("see vgpuctl list")
}

pub(super) fn foreign(tried: impl Into<String>, vgpu: &Vgpu) -> Error {
    Error::new(
        ErrorKind::NotManaged,
        "foreign",
        tried,
        format!("vGPU {} was made by someone else, and foreign vGPUs are never touched", vgpu.uuid),
    )
    .remedy("use the program that made it")
}

/// An operation that failed outside a plan.
pub(super) fn of_op(tried: impl Into<String>, error: OpError) -> Error {
    of_op_in(tried, error, Context::default())
}

fn of_op_in(tried: impl Into<String>, error: OpError, context: Context) -> Error {
    match &error {
        OpError::Kernel { path, errno, .. } => {
            let refusal = refusal::explain(path, *errno, context);
            Error::new(refusal.kind, refusal.code, tried, refusal.cause).remedy(refusal.remedy).because(error)
        }
        OpError::Probe { message, .. } => {
            Error::new(ErrorKind::KernelRefused, "probe-failed", tried, message.clone())
                .remedy("the kernel's reason is in dmesg")
                .because(error)
        }
        OpError::Tool { errno: Errno::ETIMEDOUT, .. } => {
            Error::new(ErrorKind::Stuck, "program-hangs", tried, error.to_string())
                .remedy("it was killed; what it waited for is in dmesg")
                .because(error)
        }
        OpError::Tool { .. } => {
            Error::new(ErrorKind::NotSupported, "program-missing", tried, error.to_string())
                .remedy("install what it belongs to, or give its path under [tools] in host.toml")
                .because(error)
        }
        OpError::Deadline { .. } | OpError::Stuck { .. } | OpError::Overloaded { .. } => {
            Error::new(ErrorKind::Stuck, "kernel-hangs", tried, error.to_string())
                .remedy("see dmesg for hung tasks; a device that hangs comes back with a reboot at the latest")
                .because(error)
        }
    }
}

/// A scan that failed.
pub(super) fn of_scan(tried: impl Into<String>, error: ScanError) -> Error {
    match error {
        ScanError::Op(error) => of_op(tried, error),
        other => Error::new(ErrorKind::KernelRefused, "unreadable", tried, other.to_string()),
    }
}

/// A plan that failed.
pub(super) fn of_plan(tried: impl Into<String>, failure: Failure, context: Context) -> Error {
    let error = match failure.cause {
        Cause::Op(source) => of_op_in(tried, source, context),
        Cause::Cancelled => Error::new(
            ErrorKind::Cancelled,
            "cancelled",
            tried,
            "it was cancelled, and what was done is undone",
        ),
        Cause::Tool(failure) => of_tool(tried, &failure),
        Cause::Used(_) => {
            Error::new(ErrorKind::Busy, "functions-in-use", tried, failure.cause.to_string())
                .remedy("somebody has taken them meanwhile; remove the vGPUs first")
        }
        Cause::Unmet { expected, seen } => unmet(tried.into(), &expected, &seen),
    };
    error.undo_failed(failure.undo_failures)
}

/// A vendor's program that failed.
pub(super) fn of_tool(tried: impl Into<String>, failure: &ToolFailure) -> Error {
    Error::new(ErrorKind::KernelRefused, "program-failed", tried, failure.to_string())
        .remedy("what it says is the vendor's; more can be in dmesg")
}

fn unmet(tried: String, expected: &Expect, seen: &str) -> Error {
    let fail = |code, cause: String| Error::new(ErrorKind::RolledBack, code, tried, cause);
    match expected {
        Expect::Functions { pf, count } => fail(
            "short-vf-count",
            format!("the kernel said success, but {seen} instead of {count}"),
        )
        .at(pf)
        .remedy("the GPU's firmware or driver limits the number; its reason is in dmesg"),
        Expect::Link { path, name: Some(name) } => fail(
            "driver-did-not-bind",
            format!(
                "the kernel said success, but {seen}: the driver {name} did not take the device"
            ),
        )
        .at(path)
        .remedy("the driver's reason is in dmesg; see vgpuctl doctor"),
        Expect::Link { path, .. }
        | Expect::NoLink { path }
        | Expect::Text { path, .. }
        | Expect::Gone { path } => {
            fail("kernel-did-less", format!("the kernel said success, but {seen}"))
                .at(path)
                .remedy("its reason is in dmesg")
        }
        Expect::Smi { gpu, .. } => {
            fail("program-did-less", format!("nvidia-smi said success, but {seen}")).at(gpu).remedy(
                "the GPU may need a reset, or a process uses it; see nvidia-smi -q and dmesg",
            )
        }
        Expect::Nothing => fail("kernel-did-less", seen.to_owned()),
    }
}
