//! Opens one device through VFIO, looks, and prints one line of JSON:
//! `{"ok": {…}}` or `{"error": {"message": …, "errno": …}}`.

use std::{
    io::{self, Write as _},
    process::ExitCode,
};

use vgpu_mdev::{
    sys::real::{Programs, RealKernel, Roots},
    vfio::{self, Answer, Refusal},
};

const USAGE: &str = "\
Opens one device through VFIO, looks, and prints one line of JSON. The service
runs it; people run vgpuctl probe.

Usage: vgpu-vfio-probe --device /sys/PATH [--group /dev/vfio/N]
                       [--cdev /dev/vfio/devices/vfioN]

One of --group and --cdev is needed.
";

fn main() -> ExitCode {
    if std::env::args().skip(1).any(|argument| argument == "--help" || argument == "-h") {
        return match io::stdout().write_all(USAGE.as_bytes()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        };
    }
    let answer = match vfio::target(std::env::args().skip(1)) {
        Err(message) => Answer::Error(Refusal { message, errno: None }),
        Ok(target) => match RealKernel::new(&Roots::default(), Programs::default()) {
            Err(error) => Answer::Error(Refusal { message: error.to_string(), errno: None }),
            Ok(kernel) => vfio::probe(&kernel, &target).map_or_else(Answer::Error, Answer::Ok),
        },
    };
    let line = serde_json::to_string(&answer).unwrap_or_else(|error| error.to_string());
    let printed = writeln!(io::stdout(), "{line}");
    match (answer, printed) {
        (Answer::Ok(_), Ok(())) => ExitCode::SUCCESS,
        _ => ExitCode::FAILURE,
    }
}
