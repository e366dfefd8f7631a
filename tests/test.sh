#!/bin/bash
# test.sh: all tests: of the crates, on the simulated kernel, over a bus of
# their own, and then on a real kernel in the lab, with both module trees.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

printf '==== unit, conformance on the simulated kernel, bus ====\n'
cargo build --workspace --bins
if cargo nextest --version >/dev/null 2>&1; then
	cargo nextest run --workspace --no-fail-fast -E 'not binary(/^lab_/)'
else
	cargo test --workspace --no-fail-fast --exclude vgpu-tests --lib --bins --tests
	cargo test -p vgpu-tests --no-fail-fast --lib --test '[!l]*' # all but lab_*
fi
cargo test --workspace --doc

tests/lab/run.sh
