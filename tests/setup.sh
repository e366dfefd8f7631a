#!/bin/bash
# setup.sh: installs what a target of the Makefile needs, as root on Debian 12,
# where Rust has to be there, Debian 13 and Ubuntu 24.04. Anywhere else, or as
# another user, it names what is missing and fails. Does nothing, at once, when
# all is there.
#
#   setup.sh demo|test|check|lab|bench|fuzz|install
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
RUST_MIN=$(sed -n 's/^rust-version = "\(.*\)"/\1/p' "$here/../Cargo.toml")

DENY=0.20.2
FUZZ=0.13.2
# shellcheck source=tools.sh
source "$here/tools.sh"

note() { printf 'setup: %s\n' "$*" >&2; }

# Package and command by which it is recognised; a file where it has none.
BUILD=(
	'ca-certificates /etc/ssl/certs/*.[cp]*'
	'gcc cc'
	'jq jq'
	'libc6-dev stdio.h'
	'libudev-dev libudev.pc'
	'pkg-config pkg-config'
)
BUS=('dbus-daemon dbus-daemon' 'systemd busctl' 'libglib2.0-bin gdbus')
# Other people's, which the tests run on a simulated sysfs.
TOOLS_ON_SYSFS=(
	'driverctl driverctl'
	'kmod depmod'
	'mdevctl mdevctl'
	'mount mount'
	'udev udevadm'
	'util-linux unshare'
)
needs=("${BUILD[@]}")
case ${1:-} in
demo) needs+=("${BUS[@]}") ;;
test) needs+=("${BUS[@]}" 'polkitd pkaction' 'fuse3 fusermount3' "${TOOLS_ON_SYSFS[@]}") ;;
check) needs+=("${BUS[@]}" 'git git' 'mandoc mandoc' 'shellcheck shellcheck') ;;
bench) needs+=("${BUS[@]}" 'mdevctl mdevctl' 'strace strace' 'util-linux setpriv') ;;
fuzz) needs+=('g++ c++') ;;
lab | install) ;;
*)
	sed -n 's/^#   //p' "$0" >&2
	exit 2
	;;
esac

# Whether a command is there; one named *.pc is a library's description, *.h a
# header, and one with a / a pattern of files.
have() {
	case $1 in
	/*) compgen -G "$1" >/dev/null ;;
	*.h) cc -E -include "$1" -x c /dev/null >/dev/null 2>&1 ;;
	*.pc) type -P pkg-config >/dev/null && pkg-config --exists "${1%.pc}" ;;
	*) type -P "$1" >/dev/null ;;
	esac
}

rust_is_new_enough() {
	local version
	version=$(cargo --version 2>/dev/null | cut -d' ' -f2) || return 1
	[[ -n $version && $(printf '%s\n' "$RUST_MIN" "$version" | sort -V | head -n 1) == "$RUST_MIN" ]]
}

missing=()
for need in "${needs[@]}"; do
	have "${need#* }" || missing+=("${need%% *}")
done
rust=
rust_is_new_enough || rust=missing

if [[ ${#missing[@]} -gt 0 || -n $rust ]]; then
	# shellcheck source=/dev/null
	system=$(. /etc/os-release && echo "$ID:${VERSION_ID:-}")
	case $system in
	debian:12) rustup= ;;
	debian:13 | ubuntu:24.04) rustup=rustup ;;
	*) system= ;;
	esac
	if [[ -z $system || $EUID -ne 0 || (-n $rust && -z $rustup) ]]; then
		note 'missing here; install it, or run this as root on Debian 12, Debian 13 or Ubuntu 24.04:'
		((${#missing[@]} == 0)) || printf '  %s\n' "${missing[@]}" >&2
		[[ -z $rust ]] || printf '  %s\n' "Rust $RUST_MIN or later, with cargo, in PATH (rustup brings it; Debian 12 has no package of it)" >&2
		exit 1
	fi
	[[ -z $rust ]] || missing+=("$rustup")
	note "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	apt-get -q -o DPkg::Lock::Timeout=600 update
	apt-get -q -y -o DPkg::Lock::Timeout=600 --no-install-recommends install "${missing[@]}"
	[[ -z $rust ]] || rustup default stable
fi

# No package has cargo-deny or cargo-fuzz: each is built once, in minutes.
cargo_tool() {
	local name=$1 version=$2
	[[ ! -x $TOOLS/bin/$name ]] && ! type -P "$name" >/dev/null || return 0
	note "building $name $version into $TOOLS, once"
	CARGO_PROFILE_RELEASE_LTO=off CARGO_PROFILE_RELEASE_CODEGEN_UNITS=16 \
		cargo install --quiet --locked --root "$TOOLS" --version "$version" "$name"
}

case $1 in
test | lab | bench) "$here/lab/install.sh" ;;
check) cargo_tool cargo-deny "$DENY" ;;
fuzz) cargo_tool cargo-fuzz "$FUZZ" ;;
esac
