//! Starts the engine on a tree and says when its picture is published:
//! `discover SYS SCRATCH`. Then, not to be timed, writes the picture to
//! `SCRATCH/picture`.

use std::{env, path::Path, process::ExitCode};

use vgpu_mdev::config::Config;
use vgpu_tests::{render::render, start::engine_on};

fn main() -> ExitCode {
    let args: Vec<String> = env::args().skip(1).collect();
    let [sys, scratch] = &args[..] else {
        eprintln!("usage: discover SYS SCRATCH");
        return ExitCode::from(2);
    };
    let scratch = Path::new(scratch);
    let engine = match engine_on(Path::new(sys), scratch, Config::default()) {
        Ok(engine) => engine,
        Err(error) => {
            eprintln!("discover: {error}");
            return ExitCode::FAILURE;
        }
    };
    let snapshot = engine.snapshot();
    println!("{} GPUs, {} vGPUs", snapshot.gpus().count(), snapshot.vgpu_count());
    if let Err(error) = std::fs::write(scratch.join("picture"), render(&snapshot)) {
        eprintln!("discover: {error}");
        return ExitCode::FAILURE;
    }
    ExitCode::SUCCESS
}
