#!/bin/bash
# run.sh: builds what the benchmarks need, runs all or the named ones, and ends
# with one line a figure:
#
#   NAME ours=… peer=… ratio=… goal=… [MISSED]
#
#   run.sh [discovery|rescan|flat|daemon|lab]…
#
# Fails when something could not be measured, not when a goal is missed.
# discovery and daemon mount over /sys in a name space of their own: as root.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."

(($#)) || set -- discovery rescan flat daemon lab
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cargo build --release -p vgpu-host -p vgpu-mdev --bins
failed=()
for name; do
	printf 'bench: %s\n' "$name" >&2
	cargo bench -q -p vgpu-tests --bench "$name" | tee -a "$work/figures" >&2 || failed+=("$name")
done
printf '\n' >&2
grep 'goal=' "$work/figures" || true
if ((${#failed[@]})); then
	printf 'bench: not measured: %s\n' "${failed[*]}" >&2
	exit 1
fi
