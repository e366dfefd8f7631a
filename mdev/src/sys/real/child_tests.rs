//! Tools and probes: the programs that are run.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::{
    fs::{self, File},
    os::{fd::AsFd, unix::fs::PermissionsExt},
    process::Command,
    time::Instant,
};

use nix::{
    fcntl::{FcntlArg, fcntl},
    poll::{PollFd, PollFlags, poll},
    sys::signal::{Signal, kill},
    unistd::Pid,
};
use tempfile::TempDir;

use super::{
    super::{Deadline, Op, perform::perform, raw},
    *,
};

fn tool(program: &str, args: &[&str], limit: Duration) -> Result<ToolOutput, Errno> {
    let tools = Tools { modprobe: program.into(), ..Tools::default() };
    let programs = Programs { tools, ..Programs::default() };
    let kernel = RealKernel::new(&Roots::default(), programs).unwrap();
    let args: Vec<_> = args.iter().map(|arg| String::from(*arg)).collect();
    kernel.run_tool(ToolId::Modprobe, &args, limit)
}

const LONG: Duration = Duration::from_secs(60);

#[test]
fn a_tool_says_how_it_ended() {
    let output = tool("/bin/sh", &["-c", "echo out; echo err >&2; exit 3"], LONG).unwrap();
    assert_eq!(output, ToolOutput { status: Some(3), output: "out\nerr\n".into() });
    let output = tool("/bin/sh", &["-c", "kill -9 $$"], LONG).unwrap();
    assert_eq!(output, ToolOutput { status: None, output: String::new() });
    assert_eq!(tool("/no/such/program", &[], LONG), Err(Errno::ENOENT));
}

#[test]
fn a_tool_gets_nothing_but_its_arguments() {
    let script = "/usr/bin/env; read line && echo \"read $line\"; echo \"$@\"";
    let output = tool("/bin/sh", &["-c", script, "sh", "$HOME", "; id"], LONG).unwrap().output;
    let (environment, said): (Vec<_>, Vec<_>) =
        output.lines().partition(|line| line.contains('=') && !line.starts_with('$'));
    let mut environment: Vec<_> = environment
        .into_iter()
        .filter(|line| !line.starts_with("PWD=") && !line.starts_with("_="))
        .collect();
    environment.sort_unstable();
    assert_eq!(environment, ["LC_ALL=C", "PATH=/usr/sbin:/usr/bin:/sbin:/bin"]);
    assert_eq!(said, ["$HOME ; id"]);
}

#[test]
fn a_tool_that_does_not_run_is_named_with_its_path() {
    let tools = Tools {
        nvidia_smi: "/nonexistent/nvidia-smi".into(),
        sriov_manage: "/dev/null".into(),
        modprobe: "/bin/sleep".into(),
    };
    let programs = Programs { tools, ..Programs::default() };
    let kernel = RealKernel::new(&Roots::default(), programs).unwrap();
    let run = |tool, args: &[&str], limit| {
        let args = args.iter().map(|arg| String::from(*arg)).collect();
        perform(&kernel, &Op::RunTool { tool, args }, Deadline::after(limit)).unwrap_err()
    };
    let missing = run(ToolId::NvidiaSmi, &["-q", "-x"], LONG);
    assert_eq!(missing.errno(), Some(Errno::ENOENT));
    assert_eq!(
        missing.to_string(),
        "running nvidia-smi -q -x: /nonexistent/nvidia-smi is missing (ENOENT)"
    );
    let refused = run(ToolId::SriovManage, &["-e", "ALL"], LONG).to_string();
    assert_eq!(refused, "running sriov-manage -e ALL: /dev/null cannot be run: EACCES");
    let slow = run(ToolId::Modprobe, &["1000"], Duration::from_millis(100)).to_string();
    assert_eq!(slow, "running modprobe 1000: /bin/sleep took too long and was killed (ETIMEDOUT)");
}

#[test]
fn a_tools_output_is_bounded() {
    let output = tool("/bin/sh", &["-c", "head -c 3000000 /dev/zero"], LONG).unwrap();
    assert_eq!((output.status, output.output.len()), (Some(0), 1_048_576));
}

#[test]
fn a_tool_ends_at_its_limit_with_all_it_started() {
    let dir = TempDir::new().unwrap();
    let pid = dir.path().join("pid");
    let script = format!("sleep 1000 & echo $! > '{}'; wait", pid.display());
    let started = Instant::now();
    assert_eq!(
        tool("/bin/sh", &["-c", &script], Duration::from_millis(500)),
        Err(Errno::ETIMEDOUT)
    );
    assert!(started.elapsed() < LONG);
    let grandchild = fs::read_to_string(pid).unwrap();
    match raw::pidfd_open(grandchild.trim().parse().unwrap()) {
        Ok(pidfd) => {
            let mut ended = [PollFd::new(pidfd.as_fd(), PollFlags::POLLIN)];
            assert_eq!(poll(&mut ended, 60_000u16), Ok(1), "it still runs");
        }
        Err(errno) => assert_eq!(errno, Errno::ESRCH),
    }
}

#[test]
fn what_a_tool_leaves_behind_is_not_waited_for() {
    let output = tool("/bin/sh", &["-c", "sleep 1000 & echo $!"], LONG).unwrap();
    assert_eq!(output.status, Some(0));
    let left: i32 = output.output.trim().parse().unwrap();
    kill(Pid::from_raw(left), Signal::SIGKILL).unwrap();
}

#[test]
fn a_tool_inherits_no_descriptor() {
    // One that is not close-on-exec, as a careless parent would leave us.
    let leaked = fcntl(File::open("/dev/null").unwrap(), FcntlArg::F_DUPFD(200)).unwrap();
    let script = format!("[ -e /proc/self/fd/{leaked} ] && echo leaked || echo sealed");
    let plain = Command::new("/bin/sh").args(["-c", &script]).output().unwrap();
    assert_eq!(plain.stdout, b"leaked\n");
    assert_eq!(tool("/bin/sh", &["-c", &script], LONG).unwrap().output, "sealed\n");
}

fn probe_by(script: &str, limit: Duration) -> Result<ProbeReport, ProbeFailure> {
    let dir = TempDir::new().unwrap();
    let (draft, program) = (dir.path().join("draft"), dir.path().join("probe"));
    fs::write(&draft, format!("#!/bin/sh\n{script}\n")).unwrap();
    fs::set_permissions(&draft, fs::Permissions::from_mode(0o755)).unwrap();
    // Copied by another process: one that a parallel test forks from ours would
    // have it open for writing, and exec would answer ETXTBSY.
    assert!(Command::new("cp").args([&draft, &program]).status().unwrap().success());
    let programs = Programs { probe: program, ..Programs::default() };
    let target = ProbeTarget {
        device: SysPath::new("bus/pci/devices/0000:41:00.4").unwrap(),
        group: Some(NodePath::new("vfio/12").unwrap()),
        cdev: None,
    };
    let kernel = RealKernel::new(&Roots::default(), programs).unwrap();
    kernel.probe(&target, limit)
}

#[test]
fn a_probes_answer_is_taken() {
    let expected = "--device /sys/bus/pci/devices/0000:41:00.4 --group /dev/vfio/12";
    let report = ProbeReport {
        interface: "group".into(),
        pci_ids: Some((0x10de, 0x2235)),
        ..ProbeReport::default()
    };
    let line = serde_json::to_string(&crate::vfio::Answer::Ok(report.clone())).unwrap();
    let script = format!("[ \"$*\" = '{expected}' ] || exit 9; echo noise >&2; echo '{line}'");
    assert_eq!(probe_by(&script, LONG), Ok(report));
    let refusal = r#"echo '{"error":{"message":"busy","errno":16}}'; exit 1"#;
    let failure = ProbeFailure { message: "busy".into(), errno: Some(Errno::EBUSY) };
    assert_eq!(probe_by(refusal, LONG), Err(failure));
}

#[test]
fn a_broken_probe_is_no_answer() {
    for (script, said) in [
        ("kill -SEGV $$", "was ended by signal SIGSEGV"),
        ("echo rubbish", "ended with status 0 and no answer; it said \"rubbish\""),
        ("exit 101", "ended with status 101 and no answer"),
        (r#"echo '{"ok":{}}'"#, "no answer"),
        (r#"echo '{"error":{"message":"x","errno":1}}'"#, "ended with status 0 and no answer"),
    ] {
        let failure = probe_by(script, LONG).unwrap_err();
        assert!(failure.message.contains(said), "{script}: {failure}");
        assert_eq!(failure.errno, None, "{script}");
    }
    let failure = probe_by("exec sleep 1000", Duration::from_millis(100)).unwrap_err();
    assert!(failure.message.contains("was killed"), "{failure}");
    assert_eq!(failure.errno, Some(Errno::ETIMEDOUT));
}
