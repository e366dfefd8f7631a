#!/bin/bash
# run.sh: fuzzes each target for a while, or the named ones, and fails at the
# end if one found something.
#
#   run.sh [--seconds N] [TARGET…]
#
# Needs cargo-fuzz and a C++ compiler. The sanitizers are unstable flags, which
# the stable compiler takes with RUSTC_BOOTSTRAP.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")"

# shellcheck source=../tools.sh
source ../tools.sh

seconds=60
[[ ${1:-} != --seconds ]] || { seconds=${2:?} && shift 2; }
export RUSTC_BOOTSTRAP=1
cargo fuzz build
if (($# == 0)); then
	targets=$(cargo fuzz list)
	mapfile -t targets <<<"$targets"
	set -- "${targets[@]}"
fi
failed=()
for target; do
	printf '==== %s\n' "$target"
	mkdir -p "corpus/$target"
	# What is well formed, to start from.
	case $target in
	config) cp ../fixtures/*/*.toml corpus/config ;;
	fixture) cp ../fixtures/*/*.tree corpus/fixture ;;
	host_spec) cp ../hosts/*.toml ../../mdev/src/sys/sim/builtin.toml corpus/host_spec ;;
	esac
	cargo fuzz run "$target" -- \
		-max_total_time="$seconds" -max_len=8192 -timeout=10 -print_final_stats=1 ||
		failed+=("$target")
done
if ((${#failed[@]})); then
	printf 'fuzz: found something: %s\n' "${failed[*]}" >&2
	exit 1
fi
