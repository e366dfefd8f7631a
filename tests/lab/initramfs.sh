#!/bin/busybox sh
# shellcheck shell=dash
# initramfs.sh: the first program in the guest (/init of the initramfs).
# Makes the root: the host's file system, read only, under an overlay in
# memory; then hands over to init.sh.
b=/bin/busybox

fail() {
	$b echo "lab: initramfs: $*"
	$b poweroff -f
}

# share TAG DIR OPTIONS: a directory of the host that QEMU offers
share() {
	$b mount -t 9p -o "trans=virtio,version=9p2000.L,msize=512000,$3" "$1" "$2" || fail "no share $1"
}

$b mount -t devtmpfs dev /dev
while read -r module; do
	$b insmod "/modules/$module" || fail "cannot load $module"
done </modules/order

share root /lower ro,cache=loose
$b mount -t tmpfs -o size=75% tmpfs /upper
$b mkdir /upper/root /upper/work
$b mount -t overlay -o lowerdir=/lower,upperdir=/upper/root,workdir=/upper/work overlay /root || fail 'no root'
$b mkdir -p /root/.lab /root/usr/lib/modules
share control /root/.lab cache=none
share modules /root/usr/lib/modules ro,cache=loose
$b mount --move /dev /root/dev
exec $b switch_root /root /.lab/init
