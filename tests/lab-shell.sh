#!/bin/bash
# lab-shell.sh: a shell in the lab's guest, with the service running on the
# guest's system bus. What is done there is gone with the guest.
#
#   lab-shell.sh [stock|cdev]
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/.."
cargo build --workspace --bins
target=$(cargo metadata --no-deps --format-version 1 | jq -r .target_directory)
# shellcheck disable=SC2016 # for the shell in the guest
"$here/lab/boot.sh" --interactive --timeout 0 --tree "${1:-stock}" --keep "$PWD" --keep "$target" \
	--setup "'$here/lab/setup.sh' '$PWD'" \
	--env "VGPU_BIN_DIR=$target/debug" \
	--env 'LAB_MODULES=vfio-pci vfio_iommu_type1 mtty mdpy mbochs' \
	-- bash -c '
		PATH=$VGPU_BIN_DIR:$PATH
		mkdir -p /etc/vgpu-host
		printf "%s\n" "[discovery]" "add = [\"0000:01:00.0\", \"0000:02:00.0\"]" \
			"[passthrough]" "allow = [\"0000:02:00.0\"]" >/etc/vgpu-host/host.toml
		vgpu-hostd &
		gdbus wait --system --timeout 60 org.vgpu.Host1 || exit
		vgpuctl gpus
		echo "vgpuctl is in PATH; the shell'\''s end ends the guest."
		exec bash -i'
