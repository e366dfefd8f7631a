#!/bin/bash
# demo.sh: what vgpu-host does, on a simulated host: a bus of its own, the
# service on it, a vGPU of each framework created, looked at and removed.
# Leaves nothing behind.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."

bold='' plain=''
[[ ! -t 1 ]] || bold=$'\e[1m' plain=$'\e[0m'
say() { printf '\n%s%s%s\n' "$bold" "$*" "$plain"; }
fail() { printf 'demo: %s\n' "$*" >&2 && exit 1; }
run() {
	printf '$ %s\n' "$*"
	"$@"
}

say 'Building, which takes minutes at first'
cargo build -p vgpu-host -p vgpu-mdev --bins --quiet
PATH=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)/debug:$PATH

work=$(mktemp -d)
bus_pid='' host_pid=''
# Runs when the demo ends, however it ends.
clean_up() {
	[[ -z $host_pid ]] || { kill "$host_pid" 2>/dev/null && wait "$host_pid"; } || true
	[[ -z $bus_pid ]] || { kill "$bus_pid" 2>/dev/null && wait "$bus_pid"; } 2>/dev/null || true
	rm -rf "$work"
}
trap clean_up EXIT

cat >"$work/bus.conf" <<-CONF
	<!DOCTYPE busconfig PUBLIC "-//freedesktop//DTD D-Bus Bus Configuration 1.0//EN"
	 "http://www.freedesktop.org/standards/dbus/1.0/busconfig.dtd">
	<busconfig>
	  <type>custom</type>
	  <listen>unix:path=$work/bus</listen>
	  <policy context="default">
	    <allow send_destination="*"/>
	    <allow receive_sender="*"/>
	    <allow own="*"/>
	  </policy>
	</busconfig>
CONF
cat >"$work/host.toml" <<-CONF
	[passthrough]
	allow = ["1002:73bf"]  # the Radeon of the simulated host
CONF

say 'Starting a bus of our own, and the service on it, on a simulated kernel'
mkfifo "$work/address"
dbus-daemon --config-file="$work/bus.conf" --nofork --nopidfile --print-address=1 \
	>"$work/address" 2>"$work/bus.log" &
bus_pid=$!
read -r VGPU_BUS <"$work/address"
export VGPU_BUS
mkdir "$work/run"
vgpu-hostd --simulate --bus "$VGPU_BUS" --config "$work/host.toml" --run-dir "$work/run" \
	--log error &
host_pid=$!
gdbus wait --address "$VGPU_BUS" --timeout 60 org.vgpu.Host1 || fail 'the service did not start'

say 'The GPUs of this host'
run vgpuctl gpus
say 'What they offer'
run vgpuctl profiles

# GPU and profile of the first offer of a framework, as the service tells it.
profiles=$(vgpuctl profiles --json)
offer() {
	# shellcheck disable=SC2016 # a variable of jq
	local words='map(select(.framework == $framework)) | first | "\(.gpu) \(.short_name)"'
	jq -er --arg framework "$1" "$words" <<<"$profiles"
}
read -r mdev_gpu mdev_profile < <(offer mdev)
read -r sriov_gpu sriov_profile < <(offer sriov)
read -r whole_gpu whole_profile < <(offer passthrough)

say "A mediated device on $mdev_gpu"
run vgpuctl create "$mdev_profile" --gpu "$mdev_gpu" --name desktop

say "$sriov_gpu divides by SR-IOV, and has no virtual functions yet"
run vgpuctl explain "$sriov_gpu" "$sriov_profile"
run vgpuctl set-vfs "$sriov_gpu" 2
run vgpuctl create "$sriov_profile" --gpu "$sriov_gpu" --name render

say "$whole_gpu as a whole, with the functions in its IOMMU group"
run vgpuctl create "$whole_profile" --gpu "$whole_gpu" --name whole

say 'What there is now'
run vgpuctl list
run vgpuctl show whole
run busctl --address="$VGPU_BUS" tree org.vgpu.Host1

say 'Does VFIO open them?'
for name in desktop render whole; do
	run vgpuctl probe "$name"
done

say 'What goes wrong is said with its cause and remedy'
if run vgpuctl set-vfs "$sriov_gpu" 0; then fail 'virtual functions in use were taken away'; fi
if run vgpuctl create no-such-profile; then fail 'a profile that does not exist was created'; fi

say 'Removing all of it'
for name in desktop render whole; do
	run vgpuctl remove "$name"
done
run vgpuctl set-vfs "$sriov_gpu" 0

say 'What is left'
run vgpuctl list
[[ $(vgpuctl list --json | jq length) == 0 ]] || fail 'vGPUs are left'
[[ $(vgpuctl profiles --json) == "$profiles" ]] || fail 'capacity is not what it was'
[[ $(vgpuctl gpus --json | jq '[.[].vf_count] | add') == 0 ]] || fail 'virtual functions are left'
run vgpuctl gpus

kill "$host_pid"
wait "$host_pid" || fail 'the service did not stop cleanly'
host_pid=''
left=$(find "$work/run/claims" -type f)
[[ -z $left ]] || fail "claims are left: $left"
say 'All is as it was before.'
