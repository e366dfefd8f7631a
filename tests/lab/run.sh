#!/bin/bash
# run.sh: builds the lab tests and runs them in the guest, first with the tree
# stock, then with cdev. They are the integration tests of vgpu-tests whose
# names begin with lab_.
#
#   run.sh [--tree stock|cdev] [--timeout SECONDS] [-- ARGUMENT…]
#
#   --tree      this tree only
#   --timeout   what one guest may take; 1200 if not given
#   ARGUMENT    for each test program, e.g. a part of the names to run
#
# RUST_BACKTRACE, RUST_LOG, LAB_MODULES (modules to load first) and
# LAB_TEST_TIMEOUT reach the guest.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=lib.sh
source "$here/lib.sh"

trees=(stock cdev) timeout=1200
while (($#)); do
	case $1 in
	--tree) trees=("${2:?}") && shift ;;
	--timeout) timeout=${2:?} && shift ;;
	--) shift && break ;;
	*) sed -n '/^#   run.sh/,/^set /{/^set /d;s/^# \{0,1\}//p}' "$here/run.sh" >&2 && exit 2 ;;
	esac
	shift
done
checkout=$(readlink -f "$here/../..")
cd "$checkout/tests" # where cargo, too, runs this package's tests

results=$(mktemp -d)
trap 'rm -rf "$results"' EXIT
cargo build --workspace --bins
cargo test -p vgpu-tests --no-run --message-format=json-render-diagnostics >"$results/messages"
jq -r --args 'select(.reason == "compiler-artifact" and .profile.test
		and (.target.kind | index("test")) and (.target.name | test("^lab_")))
	| [.target.name, .executable] + $ARGS.positional | @sh' -- "$@" <"$results/messages" |
	sort >"$results/tests"
[[ -s $results/tests ]] || die 'there are no tests named lab_…'
target=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)
"$here/build.sh" >/dev/null

pass_on=()
for name in RUST_BACKTRACE RUST_LOG LAB_TEST_TIMEOUT; do
	[[ ! -v $name ]] || pass_on+=(--env "$name=${!name}")
done

passed=0 failed=0
for tree in "${trees[@]}"; do
	printf '\n==== lab, tree %s ====\n' "$tree"
	rm -f "$results/result"
	"$here/boot.sh" --tree "$tree" --timeout "$timeout" --share "$results" \
		--keep "$checkout" --keep "$target" \
		--setup "'$here/setup.sh' '$checkout'" \
		--env "VGPU_BIN_DIR=$target/debug" --env RUST_TEST_THREADS=1 --env LAB_TESTS=/lab/tests \
		--env "LAB_MODULES=${LAB_MODULES-vfio-pci vfio_iommu_type1 mtty mdpy mbochs}" \
		"${pass_on[@]}" -- "$here/guest.sh" || true
	if [[ -s $results/result ]]; then
		read -r p f <"$results/result"
	else
		note "the tree $tree gave no result"
		p=0 f=1
	fi
	passed=$((passed + p)) failed=$((failed + f))
done
printf '\nlab: %s passed, %s failed\n' "$passed" "$failed"
((passed > 0 && failed == 0))
