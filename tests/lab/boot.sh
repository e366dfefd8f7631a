#!/bin/bash
# boot.sh: boots the lab guest, runs one command in it as root, in the
# directory of the caller, and ends with the command's exit status: 124 when
# time ran out, 125 when the guest ended without a result.
#
#   boot.sh [OPTION…] -- COMMAND [ARGUMENT…]
#   boot.sh [OPTION…] --interactive [-- COMMAND [ARGUMENT…]]
#
#   --tree stock|cdev   which modules (see build.sh); stock if not given
#   --timeout SECONDS   how long the guest may run; 600 if not given, 0 = for ever
#   --env NAME=VALUE    a variable for the command; may be repeated
#   --setup COMMAND     a shell command to run in the guest before its services
#                       start, to put files in place for them
#   --share DIR         a directory of the host to mount on /lab, writable
#   --keep DIR          a directory below /tmp, /run or /var/log that the guest
#                       is to see, as it does the caller's; may be repeated
#   --interactive       with the terminal; a shell if no command is given
#
# One guest at a time on a machine: another waits for its turn.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=lib.sh
source "$here/lib.sh"

usage() { sed -n '/^# *boot.sh \[/,/^set /{/^set /d;s/^# \{0,1\}//p}' "$here/boot.sh" >&2; exit 2; }

tree=stock timeout=600 env=() setup='' share='' keep=("$PWD") interactive=
while (($#)); do
	case $1 in
	--tree) tree=${2:?} && shift ;;
	--timeout) timeout=${2:?} && shift ;;
	--env) env+=("${2:?}") && shift ;;
	--setup) setup=${2:?} && shift ;;
	--share) share=$(readlink -e "${2:?}") && shift ;;
	--keep) keep+=("$(readlink -e "${2:?}")") && shift ;;
	--interactive) interactive=1 ;;
	--) shift && break ;;
	*) usage ;;
	esac
	shift
done
[[ $tree == stock || $tree == cdev ]] || usage
(($#)) || [[ -n $interactive ]] || usage

built=$("$here/build.sh")

# Anyone may take the lock, whoever made the file. QEMU inherits it, so that
# it is held for as long as a guest is there.
lock=/tmp/vgpu-host-lab.lock
[[ ! -d /run/lock ]] || lock=/run/lock/vgpu-host-lab.lock
[[ -e $lock ]] || (umask 0333 && : >"$lock") 2>/dev/null || true
exec 9<"$lock"
flock -n 9 || { note 'waiting for another guest to end' && flock 9; }

# What the guest is told and answers, in a directory shared with it.
control=$(mktemp -d)
qemu=
# shellcheck disable=SC2317 # called by the trap
finish() {
	[[ -z $qemu ]] || kill "$qemu" 2>/dev/null || true
	rm -rf "$control"
}
trap finish EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
install -m 755 "$here/init.sh" "$control/init"
{
	printf 'directory=%q interactive=%q shared=%q setup=%q\n' "$PWD" "$interactive" "$share" "$setup"
	printf 'keep=(%s)\n' "${keep[*]@Q}"
	printf 'command=(%s)\n' "${*@Q}"
	printf 'export %q\n' "VGPU_LAB=1" "VGPU_LAB_TREE=$tree" "TERM=${interactive:+${TERM:-dumb}}" "${env[@]}"
} >"$control/job"
truncate -s 64M "$control/nvme.img"

# shellcheck disable=SC2054 # QEMU's commas
machine=(
	-machine q35,kernel-irqchip=split -accel tcg,thread=multi -cpu max -smp 2 -m 2G
	-nodefaults -no-user-config -display none -no-reboot
	-device intel-iommu,intremap=on,caching-mode=on,device-iotlb=on
	-kernel "$built/vmlinux" -initrd "$built/$tree.initramfs"
	-append 'console=hvc0 quiet panic=-1 intel_iommu=on iommu=nopt tsc=unstable no_timer_check mitigations=off random.trust_cpu=on'
	-device virtio-serial-pci -chardev stdio,id=console,signal=off -device virtconsole,chardev=console
)
offer() { # offer TAG DIRECTORY [OPTION]
	machine+=(
		-fsdev "local,id=$1,path=${2//,/,,},security_model=none,multidevs=remap${3:+,$3}"
		-device "virtio-9p-pci,fsdev=$1,mount_tag=$1"
	)
}
offer root / readonly=on
offer modules "$built/$tree.modules" readonly=on
offer control "$control"
[[ -z $share ]] || offer share "$share"
# The SR-IOV devices, each behind a root port: a network card with 7 virtual
# functions and a disk controller with 4.
# shellcheck disable=SC2054 # QEMU's commas
machine+=(
	-device pcie-root-port,id=port1,chassis=1,slot=1
	-netdev "stream,id=net0,server=on,addr.type=unix,addr.path=${control//,/,,}/network"
	-device igb,bus=port1,netdev=net0,mac=52:54:00:aa:00:01
	-device pcie-root-port,id=port2,chassis=2,slot=2
	-device nvme-subsys,id=subsystem0,nqn=lab0
	-drive "if=none,id=disk0,format=raw,file=${control//,/,,}/nvme.img"
	-device nvme,id=nvme0,bus=port2,serial=lab0,subsys=subsystem0,sriov_max_vfs=4,sriov_vq_flexible=8,sriov_vi_flexible=8,max_ioqpairs=10,msix_qsize=11
	-device nvme-ns,drive=disk0,bus=nvme0,nsid=1,shared=off,detached=on
)

if [[ -n $interactive ]]; then exec 8<&0; else exec 8</dev/null; fi
timeout --foreground "$timeout" qemu-system-x86_64 "${machine[@]}" <&8 2>&1 &
qemu=$!
ended=0
wait "$qemu" || ended=$?
qemu=

if [[ -s $control/status ]]; then exit "$(<"$control/status")"; fi
if ((ended == 124)); then
	note "the guest did not end within $timeout s"
	exit 124
fi
note "the guest ended without a result (QEMU: $ended)"
exit 125
