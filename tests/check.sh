#!/bin/bash
# check.sh: what a change must hold besides its tests. Names each check, goes
# on after a failure, and fails at the end if one did.
set -uo pipefail
cd "$(dirname "$(readlink -f "$0")")/.." || exit

# shellcheck source=tools.sh
source tests/tools.sh

failed=()

check() {
	local name=$1
	shift
	printf '==== %s\n' "$name"
	"$@" || failed+=("$name")
}

lints() { cargo clippy --workspace --all-targets --quiet -- -D warnings; }

documentation() {
	RUSTDOCFLAGS='-D warnings -A rustdoc::private-intra-doc-links' \
		cargo doc --workspace --no-deps --document-private-items --quiet
}

scripts() { git ls-files -z -- '*.sh' .ci/run | xargs -0 shellcheck; }

# The advisories need a network and change by themselves: not here.
dependencies() {
	cargo deny --log-level error --locked check bans licenses sources
}

# The manual pages and the contract against what they are made of.
drift() {
	cargo test --quiet -p vgpu-host --test man &&
		cargo test --quiet -p vgpu-host-api &&
		cargo test --quiet -p vgpu-polkit
}

manuals() { mandoc -T lint -W warning host/man/*.[1-8]; }

# Every file that people wrote is under the licence of the workspace.
licence() {
	local text='Apache License'
	head -n 3 LICENSE | grep -q "$text" || { echo "LICENSE is not the $text" >&2 && return 1; }
	cargo metadata --no-deps --format-version 1 --locked |
		jq -er '[.packages[] | select(.license != "Apache-2.0") | .name] |
			if . == [] then true else error("no licence, or another: \(.)") end' >/dev/null
}

# Words that say that something is not done, or that it was switched off.
words() {
	! git grep -nIE '\b(FIXME|XXX|TODO)\b|todo!|unimplemented!|#\[ignore' -- . ':!tests/check.sh' ':!Cargo.toml'
}

# `make install` puts each file in its place.
installation() {
	local root
	root=$(mktemp -d)
	PROFILE=dev DESTDIR=$root PREFIX=/usr host/install.sh &&
		diff -u host/installed.txt <(cd "$root" && find . -type f | LC_ALL=C sort)
	local result=$?
	rm -rf "$root"
	return "$result"
}

check format cargo fmt --all --check
check lints lints
check documentation documentation
check dependencies dependencies
check scripts scripts
check drift drift
check manuals manuals
check licence licence
check words words
check installation installation

if ((${#failed[@]})); then
	printf 'check: failed: %s\n' "${failed[*]}" >&2
	exit 1
fi
echo 'check: all is well'
