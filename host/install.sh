#!/bin/bash
# install.sh: puts the programs, their manuals and completions, and the files
# that systemd, D-Bus, polkit and udev read, where they belong; `make install`
# calls it. With --remove it takes them away again. Neither starts, stops or
# reloads anything, and neither touches the files of the administrator in
# /etc/vgpu-host.
#
# From the environment: PREFIX and DESTDIR as usual, PROFILE (release or dev),
# and the directories below.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

PREFIX=${PREFIX:-/usr/local} DESTDIR=${DESTDIR:-}
UNITDIR=${UNITDIR:-/usr/lib/systemd/system}
BUSDIR=${BUSDIR:-/usr/share/dbus-1}
POLKITDIR=${POLKITDIR:-/usr/share/polkit-1/actions}
UDEVDIR=${UDEVDIR:-/usr/lib/udev/rules.d}
TMPFILESDIR=${TMPFILESDIR:-/usr/lib/tmpfiles.d}
MODULESDIR=${MODULESDIR:-/usr/lib/modules-load.d}
PROFILE=${PROFILE:-release}
remove=
[[ ${1:-} != --remove ]] || remove=1

# put MODE FILE DIRECTORY [NAME]
put() {
	local to=$DESTDIR$3/${4:-${2##*/}}
	if [[ -n $remove ]]; then rm -f "$to"; else install -D -m "$1" "$2" "$to"; fi
}

scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
built=
if [[ -z $remove ]]; then
	target=$(cargo metadata --no-deps --format-version 1 --locked | jq -r .target_directory)
	[[ $PROFILE == dev ]] && built=$target/debug || built=$target/$PROFILE
	cargo build --locked --quiet --profile "$PROFILE" -p vgpu-host -p vgpu-mdev --bins
fi

# The service finds its helper beside itself.
put 755 "$built/vgpu-hostd" "$PREFIX/libexec"
put 755 "$built/vgpu-vfio-probe" "$PREFIX/libexec"
put 755 "$built/vgpuctl" "$PREFIX/bin"
for page in host/man/*.[1-8]; do
	put 644 "$page" "$PREFIX/share/man/man${page##*.}"
done

completion() { [[ -n $remove ]] || "$built/vgpuctl" completions "$1" >"$scratch/completion"; }
completion bash
put 644 "$scratch/completion" "$PREFIX/share/bash-completion/completions" vgpuctl
completion zsh
put 644 "$scratch/completion" "$PREFIX/share/zsh/site-functions" _vgpuctl
completion fish
put 644 "$scratch/completion" "$PREFIX/share/fish/vendor_completions.d" vgpuctl.fish

# The units and the bus start the program from where it is.
placed() {
	sed "s|/usr/libexec/vgpu-hostd|$PREFIX/libexec/vgpu-hostd|" "$1" >"$scratch/${1##*/}"
	put 644 "$scratch/${1##*/}" "$2"
}
for file in host/data/* polkit/*.policy; do
	case $file in
	*.policy) put 644 "$file" "$POLKITDIR" ;;
	*.rules) put 644 "$file" "$UDEVDIR" ;;
	*.tmpfiles) put 644 "$file" "$TMPFILESDIR" vgpu-host.conf ;;
	*.modules-load) put 644 "$file" "$MODULESDIR" vgpu-host.conf ;;
	*.service) if grep -q '^\[D-BUS Service\]' "$file"; then
		placed "$file" "$BUSDIR/system-services"
	else
		placed "$file" "$UNITDIR"
	fi ;;
	*.conf) put 644 "$file" "$BUSDIR/system.d" ;;
	*) echo "install.sh: where does $file go?" >&2 && exit 1 ;;
	esac
done
for file in polkit/*.example; do
	put 644 "$file" "$PREFIX/share/doc/vgpu-host"
done
