#!/bin/bash
# test.sh: all tests: of the crates, on the simulated kernel, over a bus of
# their own, and then on a real kernel in the lab, with both module trees.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

printf '==== unit, conformance on the simulated kernel, bus ====\n'
cargo build --workspace --bins
if cargo nextest --version >/dev/null 2>&1; then
	cargo nextest run --workspace -E 'not binary(/^lab_/)'
	cargo test --workspace --doc
else
	cargo test --workspace --exclude vgpu-tests
	cargo test -p vgpu-tests --lib --bins --test '[!l]*' # all but lab_*
fi

tests/lab/run.sh
