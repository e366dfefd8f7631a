#!/bin/bash
# build.sh: makes what the guest boots from, in the cache, and prints the
# directory that holds it: vmlinux, and for each of two trees its modules
# and its initramfs.
#
#   stock  the distribution's modules and the kernel's sample mdev drivers:
#          VFIO groups only, where the distribution has no more
#   cdev   iommufd, VFIO with character devices, and mdev built anew
#
# Returns at once when it was made already from the same kernel by the same
# scripts.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
# shellcheck source=lib.sh
source "$here/lib.sh"

# Modules of the distribution that the guest may need; what these need in
# turn comes along.
MODULES=(
	9p 9pnet_virtio overlay
	igb igbvf nvme ahci
	vfio vfio_iommu_type1 vfio-pci mdev
	fuse loop tun
)
SAMPLES=(mtty mdpy mbochs)

version=$(cached_kernel)
[[ -n $version ]] || die "no kernel packages in $CACHE/kernel: run install.sh first"
stamp=$(cat "$here/lib.sh" "$here/build.sh" "$here/initramfs.sh" | sha256sum)
built=$CACHE/built/$version-${stamp:0:12}
if [[ -d $built ]]; then
	touch -c "$built" 2>/dev/null || true
	echo "$built"
	exit
fi

# Unpacks image and headers into root/, and of the source what is built here
# into source/.
unpack() {
	local package tarball
	note "unpacking kernel $version"
	for package in "$CACHE/kernel/$version"/*.deb; do
		[[ ${package##*/} == linux-source-* ]] || dpkg-deb -x "$package" root
	done
	[[ -d root/usr/lib/modules ]] || { mkdir -p root/usr/lib && mv root/lib/modules root/usr/lib/; }
	rm -rf root/lib && ln -s usr/lib root/lib
	dpkg-deb --fsys-tarfile "$CACHE/kernel/$version"/linux-source-*.deb |
		tar -x --strip-components=3 --wildcards '*.tar.*'
	tarball=$(find . -name 'linux-source-*.tar.*' -type f)
	mkdir source
	tar -xf "$tarball" -C source --strip-components=1 --wildcards \
		'*/drivers/iommu' '*/drivers/vfio' '*/lib/interval_tree.c' '*/samples/vfio-mdev'
	rm "$tarball"
}

# The uncompressed kernel, which QEMU boots directly (PVH): the payload of the
# bzImage, found by its boot header. The payload's last four bytes are its
# uncompressed length.
extract_vmlinux() {
	local image=$1 setup offset length program
	word() { od -A n -t "u$3" -j "$2" -N "$3" "$1" | tr -d ' '; }
	setup=$(word "$image" $((0x1f1)) 1)
	offset=$(word "$image" $((0x248)) 4)
	length=$(word "$image" $((0x24c)) 4)
	offset=$(((setup + 1) * 512 + offset))
	case $(word "$image" "$offset" 4) in
	4247762216) program=zstd ;; # 28 b5 2f fd
	1484404733) program=xz ;;   # fd 37 7a 58
	*) die "$image: its compression is not known here" ;;
	esac
	dd if="$image" bs=1M iflag=skip_bytes,count_bytes status=none \
		skip="$offset" count="$((length - 4))" | "$program" -dc
}

# Builds modules out of tree, in a directory with a Kbuild file.
build_modules() {
	make -s -j"$(nproc)" -C "$headers" M="$PWD/$1" CONFIG_DEBUG_INFO_BTF_MODULES= "${@:2}" modules >&2
}

copy_samples() {
	mkdir -p "$1"
	cp source/samples/vfio-mdev/*.[ch] "$1/"
	printf 'obj-m += %s.o\n' "${SAMPLES[@]}" >"$1/Kbuild"
}

build_stock() {
	note "building the sample mdev drivers"
	copy_samples stock-build
	build_modules stock-build
}

# A kernel configured without IOMMUFD lacks two helpers and the VFIO core's
# use of it. All of it can live in modules, which is what this makes.
build_cdev() {
	note "building iommufd, VFIO with character devices, and mdev"
	copy_samples cdev-build/samples
	cp -r source/drivers/iommu/iommufd source/drivers/vfio cdev-build/
	cp source/drivers/iommu/*.h cdev-build/
	cat >cdev-build/Kbuild <<-'END'
		subdir-ccflags-y += -DCONFIG_IOMMUFD_MODULE=1 -DCONFIG_IOMMUFD_DRIVER=1
		subdir-ccflags-y += -DCONFIG_VFIO_DEVICE_CDEV=1 -DCONFIG_INTERVAL_TREE_SPAN_ITER=1
		obj-y += iommufd/ vfio/ samples/
	END
	{
		printf '#include <linux/%s>\n' compiler.h interval_tree.h module.h
		sed -n '/^#ifdef CONFIG_INTERVAL_TREE_SPAN_ITER/,/^#endif/p' source/lib/interval_tree.c |
			sed '/^EXPORT_SYMBOL/d'
	} >cdev-build/iommufd/interval_tree_span.c
	# shellcheck disable=SC2016 # make's own variables
	sed -i 's/^obj-$(CONFIG_IOMMUFD_DRIVER) += iova_bitmap.o/obj-m += iova_bitmap.o/' \
		cdev-build/iommufd/Makefile
	echo 'iommufd-y += interval_tree_span.o' >>cdev-build/iommufd/Makefile
	sed -i '1i #include <linux/module.h>' cdev-build/iommufd/iova_bitmap.c
	grep -q MODULE_LICENSE cdev-build/iommufd/iova_bitmap.c ||
		echo 'MODULE_LICENSE("GPL");' >>cdev-build/iommufd/iova_bitmap.c
	# The core, vfio-pci and mdev: no vendor's driver.
	sed -i '/cdx\|fsl\|hisi\|mlx5\|nvgrace\|pds\|platform\|qat\|virtio/d' \
		cdev-build/vfio/Makefile cdev-build/vfio/pci/Makefile
	build_modules cdev-build \
		CONFIG_IOMMUFD=m CONFIG_IOMMUFD_DRIVER=y CONFIG_IOMMUFD_TEST= CONFIG_VFIO_DEVICE_CDEV=y
}

# The files of the modules named, and of those they need, of the modules
# below a directory, in an order in which they can be loaded.
module_files() {
	local module
	for module in "${@:2}"; do
		modprobe -d "$1" -S "$release" --show-depends "$module"
	done | awk '$1 == "insmod" && !seen[$2]++ { print $2 }'
}

decompress() {
	case $1 in
	*.xz) xz -d "$1" ;;
	*.zst) zstd -q -d --rm "$1" ;;
	esac
}

# make_tree TREE BUILD: the distribution's modules with those built here, and
# the initramfs with the ones that reach the root.
make_tree() {
	local tree=$1 build=$2 modules=$1/root/usr/lib/modules/$release file
	note "making the tree $tree"
	mkdir -p "$modules/kernel" "$modules/updates"
	ln -s usr/lib "$tree/root/lib"
	cp "root/lib/modules/$release"/modules.{builtin*,order} "$modules/"
	while read -r file; do
		cp "$file" "$modules/kernel/"
		decompress "$modules/kernel/${file##*/}"
	done < <(module_files "$PWD/root" "${MODULES[@]}")
	# One built here replaces the distribution's.
	while read -r file; do
		rm -f "$modules/kernel/${file##*/}"
		strip -g -o "$modules/updates/${file##*/}" "$file"
	done < <(find "$build" -name '*.ko')
	depmod -b "$tree/root" "$release"

	mkdir -p "$tree/initramfs"/{bin,dev,lower,modules,root,upper}
	cp "$(type -P busybox)" "$tree/initramfs/bin/"
	install -m 755 "$here/initramfs.sh" "$tree/initramfs/init"
	while read -r file; do
		cp "$file" "$tree/initramfs/modules/"
		echo "${file##*/}" >>"$tree/initramfs/modules/order"
	done < <(module_files "$PWD/$tree/root" 9pnet_virtio 9p overlay)
	(cd "$tree/initramfs" && find . | cpio -o -H newc --quiet) >"out/$tree.initramfs"
	mv "$tree/root/usr/lib/modules" "out/$tree.modules"
}

mkdir -p "$CACHE/built" 2>/dev/null || true
[[ -w $CACHE/built ]] || die "cannot write to $CACHE: set VGPU_LAB_CACHE, or run as root"
exec 9>"$CACHE/built/.lock"
flock 9
if [[ -d $built ]]; then # by another, meanwhile
	echo "$built"
	exit
fi
# Left by a build that was killed, or not used for a long time.
find "$CACHE/built" -mindepth 1 -maxdepth 1 -type d \( -name '.new.*' -o -mtime +14 \) -exec rm -rf {} +
work=$(mktemp -d "$CACHE/built/.new.XXXXXX")
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir out

unpack
release=$(ls root/usr/lib/modules)
headers=$work/root/usr/src/linux-headers-$release
# Debian's names the other part of itself by its installed path.
sed -i "s|^include /usr/src/|include $work/root/usr/src/|" "$headers/Makefile"
depmod -b root "$release"
extract_vmlinux "root/boot/vmlinuz-$release" >out/vmlinux
build_stock
make_tree stock stock-build
if grep -q '^CONFIG_VFIO_DEVICE_CDEV=y' "$headers/.config"; then
	make_tree cdev stock-build # the distribution's VFIO has them
else
	build_cdev
	make_tree cdev cdev-build
fi
chmod 755 out
mv -T out "$built"
echo "$built"
