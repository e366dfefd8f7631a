#!/bin/bash
# run.sh: fuzzes each target for a while, or the named ones.
#
#   run.sh [--seconds N] [TARGET…]
#
# Needs cargo-fuzz and a C++ compiler. The sanitizers are unstable flags, which
# the stable compiler takes with RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

seconds=60
[[ ${1:-} != --seconds ]] || { seconds=${2:?} && shift 2; }
export RUSTC_BOOTSTRAP=1
(($#)) || mapfile -t targets < <(cargo fuzz list)
for target in "${targets[@]:-$@}"; do
	printf '==== %s\n' "$target"
	cargo fuzz run "$target" -- -max_total_time="$seconds" -max_len=4096 -print_final_stats=1
done
