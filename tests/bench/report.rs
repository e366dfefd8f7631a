//! How figures are taken and told.
#![allow(dead_code)] // each benchmark uses its part

use std::{
    env,
    path::{Path, PathBuf},
    time::Duration,
};

/// Prints the line of one figure.
pub(crate) fn figure(name: &str, ours: f64, peer: f64, unit: &str, goal: f64) {
    let ratio = ours / peer;
    let missed = if ratio > goal { " MISSED" } else { "" };
    println!(
        "{name} ours={ours:.2}{unit} peer={peer:.2}{unit} ratio={ratio:.3} goal={goal:.3}{missed}"
    );
}

/// The middle one.
pub(crate) fn median(values: &[Duration]) -> f64 {
    let mut sorted: Vec<f64> = values.iter().map(|value| value.as_secs_f64() * 1e3).collect();
    sorted.sort_by(f64::total_cmp);
    sorted.get(sorted.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Memory, where there is some: the disk's share would be noise.
pub(crate) fn fast_dir() -> PathBuf {
    let shm = Path::new("/dev/shm");
    if shm.is_dir() { shm.to_owned() } else { env::temp_dir() }
}
