#!/bin/bash
# install.sh: installs what the lab needs, on Debian 12, Debian 13 and
# Ubuntu 24.04, as root. Anywhere else, or as another user, it names what is
# missing and fails. Does nothing, at once, when all is there.
#
# The guest's kernel is not installed on the host: its packages are only
# downloaded into the cache, where build.sh unpacks them.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=lib.sh
source "$here/lib.sh"

# The package, and a command by which it is recognised where there is no dpkg.
NEEDS=(
	'qemu-system-x86 qemu-system-x86_64'
	'busybox-static busybox'
	'cpio cpio'
	'dbus dbus-daemon'
	'gcc gcc'
	'iproute2 ip'
	'jq jq'
	'kmod depmod'
	'libglib2.0-bin gdbus'
	'make make'
	'mdevctl mdevctl'
	'polkitd pkaction'
	'udev udevadm'
	'xz-utils xz'
	'zstd zstd'
)
# The emulated igb network card, with SR-IOV, came with this version.
QEMU_MIN=8.0

missing=()

missing_packages() {
	local need installed
	installed=$(dpkg-query -W -f '${db:Status-Status} ${Package} ${Version}\n' \
		"${NEEDS[@]%% *}" 2>/dev/null || true)
	for need in "${NEEDS[@]%% *}"; do
		grep -q "^installed $need " <<<"$installed" || missing+=("$need")
	done
	installed=$(sed -n 's/^installed qemu-system-x86 //p' <<<"$installed")
	if [[ -n $installed ]] && ! dpkg --compare-versions "$installed" ge "1:$QEMU_MIN"; then
		missing+=(qemu-system-x86)
	fi
}

missing_commands() {
	local need
	for need in "${NEEDS[@]#* }"; do
		type -P "$need" >/dev/null || missing+=("$need")
	done
}

# Debian 12 has too old a QEMU and too old a kernel: both come from its
# backports, from the same archive as the release itself.
add_backports() {
	local targets uri list=/etc/apt/sources.list.d/vgpu-host-lab.list
	# shellcheck disable=SC2016 # apt's own variables
	targets=$(apt-get indextargets --format '$(CODENAME) $(COMPONENT) $(SITE) $(REPO_URI)' \
		'Created-By: Packages')
	! grep -q '^bookworm-backports main ' <<<"$targets" || return 0
	uri=$(awk '$1 == "bookworm" && $2 == "main" { print $4; exit }' <<<"$targets")
	[[ -n $uri ]] || die 'no apt source for bookworm, from which to derive its backports'
	note "adding bookworm-backports to the apt sources, in $list"
	printf 'deb [signed-by=%s] %s bookworm-backports main\n' \
		/usr/share/keyrings/debian-archive-keyring.gpg "$uri" >"$list"
}

apt() { apt-get -q -y -o DPkg::Lock::Timeout=600 "$@"; }

# Installs the missing packages: only QEMU from the backports, where they are
# needed, lest they bring newer versions of all the others.
install_missing() {
	local name others=()
	for name in "${missing[@]}"; do
		if [[ $name == qemu-system-x86 ]]; then
			apt "${release[@]}" --no-install-recommends install "$name"
		else
			others+=("$name")
		fi
	done
	((${#others[@]} == 0)) || apt --no-install-recommends install "${others[@]}"
}

# A field of the kernel package that apt would take.
field() {
	apt-cache "${release[@]}" show --no-all-versions "$1" | sed -n "s/^$2: //p"
}

# The names that a package depends on and that match a pattern.
depends() {
	field "$1" Depends | tr ',|' '\n' | awk -v want="$2" '$1 ~ want { print $1 }'
}

# Image, headers and source of one version, as package files in the cache.
fetch_kernel() {
	local image headers version names dir
	image=$(depends "linux-image-$flavour" '^linux-image-[0-9]')
	headers=$(depends "linux-headers-$flavour" '^linux-headers-[0-9]')
	version=$(field "$image" Version)
	mapfile -t names < <(
		printf '%s\n' "$image" "$headers"
		depends "linux-image-$flavour" '^linux-modules-'
		depends "$image" '^linux-modules-'
		depends "$headers" '^linux-(headers|kbuild)-[0-9]'
		depends linux-source '^linux-source-[0-9]'
	)
	dir=$CACHE/kernel/$version
	[[ ! -d $dir ]] || return 0
	note "downloading the packages of kernel $version"
	rm -rf "$CACHE/kernel/.new"
	mkdir -p "$CACHE/kernel/.new"
	(cd "$CACHE/kernel/.new" && apt -o APT::Sandbox::User=root download "${names[@]/%/=$version}")
	mv -T "$CACHE/kernel/.new" "$dir"
}

if type -P dpkg-query >/dev/null; then missing_packages; else missing_commands; fi
kernel=$(cached_kernel)
if [[ -n $kernel && ${#missing[@]} -eq 0 ]]; then exit 0; fi

system=$(. /etc/os-release && echo "$ID:${VERSION_ID:-}")
release=()
case $system in
debian:12) flavour=amd64 release=(-t bookworm-backports) ;;
debian:13) flavour=amd64 ;;
ubuntu:24.04) flavour=generic ;;
*) flavour= ;;
esac
if [[ $(uname -m) != x86_64 || $EUID -ne 0 || -z $flavour ]]; then
	note "this needs root on Debian 12, Debian 13 or Ubuntu 24.04, x86-64; here (${system/:/ }) install:"
	((${#missing[@]} == 0)) || printf '  %s\n' "${missing[@]/%qemu-system-x86/qemu-system-x86 (version $QEMU_MIN or later)}" >&2
	[[ -n $kernel ]] || printf '  %s\n' "the .deb files of linux-image, linux-headers (with what it needs) and linux-source, of one version, into $CACHE/kernel/VERSION/" >&2
	exit 1
fi

export DEBIAN_FRONTEND=noninteractive
[[ $system != debian:12 ]] || add_backports
apt update
install_missing
[[ -n $kernel ]] || fetch_kernel
