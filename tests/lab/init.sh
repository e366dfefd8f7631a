#!/bin/bash
# init.sh: process 1 of the guest, once initramfs.sh has made the root. Starts
# what a host has running (udev, D-Bus, polkit), runs the command that boot.sh
# was given, leaves its exit status, and powers off.
#
# LAB_MODULES, if set, names kernel modules to load before the command.
set -euo pipefail
control=/.lab
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8

trap 'echo "lab: init.sh failed: $BASH_COMMAND (line $LINENO)"' ERR
trap 'cd / && busybox poweroff -f' EXIT

say() { printf 'lab: [%s s] %s\n' "$(cut -d ' ' -f 1 /proc/uptime)" "$*"; }

mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t debugfs debugfs /sys/kernel/debug
mkdir -p /dev/pts /dev/shm
mount -t devpts -o mode=620,gid=5,ptmxmode=666 devpts /dev/pts
mount -t tmpfs -o mode=1777 tmpfs /dev/shm
ln -sfn /proc/self/fd /dev/fd
ln -sfn fd/0 /dev/stdin && ln -sfn fd/1 /dev/stdout && ln -sfn fd/2 /dev/stderr
# Lines end as the command writes them.
stty -F /dev/console -opost

directory='' interactive='' shared='' setup='' keep=() command=()
# shellcheck disable=SC1091 # boot.sh writes it
source "$control/job"

# fresh DIR MODE: an empty directory over one of the host's, through which
# only what is to be kept shows.
fresh() {
	local path number=0 held=()
	mkdir -p "$1"
	for path in "${keep[@]}"; do
		[[ $path != "$1" ]] || return 0
		[[ $path == "$1"/* && -d $path ]] || continue
		mkdir -p "$control-keep/$number"
		mount --bind "$path" "$control-keep/$number"
		held+=("$path")
		number=$((number + 1))
	done
	mount -t tmpfs -o "mode=$2" tmpfs "$1"
	for number in "${!held[@]}"; do
		mkdir -p "${held[number]}"
		mount --move "$control-keep/$number" "${held[number]}"
	done
}
fresh /run 755
fresh /tmp 1777
fresh /var/log 755
mkdir -p /run/dbus /run/lock /run/udev

if [[ -n $shared ]]; then
	mkdir -p /lab
	mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=none share /lab
fi
echo vgpu-lab >/proc/sys/kernel/hostname
ip link set lo up
ulimit -n 65536
say "kernel $(uname -r), tree $VGPU_LAB_TREE"

[[ -z $setup ]] || (cd "$directory" && bash -euc "$setup")

/lib/systemd/systemd-udevd --daemon >/var/log/udevd.log 2>&1
udevadm trigger --type=subsystems --action=add
udevadm trigger --type=devices --action=add
udevadm settle --timeout=60
say 'udev has settled'

dbus-uuidgen --ensure=/etc/machine-id
dbus-daemon --system --fork --nopidfile
/usr/lib/polkit-1/polkitd --no-debug >/var/log/polkitd.log 2>&1 &
gdbus wait --system --timeout 60 org.freedesktop.PolicyKit1
say 'D-Bus and polkit answer'

# shellcheck disable=SC2086 # a list
[[ -z ${LAB_MODULES:-} ]] || modprobe -a $LAB_MODULES

status=0
cd "$directory"
if [[ -n $interactive ]]; then
	stty -F /dev/hvc0 sane
	((${#command[@]})) || command=(bash -i)
	setsid --ctty --wait "${command[@]}" </dev/hvc0 >/dev/hvc0 2>&1 || status=$?
else
	"${command[@]}" </dev/null || status=$?
fi
say "the command ended with $status"
echo "$status" >"$control/status"
