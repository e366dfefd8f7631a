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

fn main() -> ExitCode {
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
