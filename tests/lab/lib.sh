# shellcheck shell=bash
# lib.sh: what the lab's scripts share: where the cache is, and how to say
# something. Sourced, never run.

# Read by the scripts that source this file.
# shellcheck disable=SC2034
CACHE=${VGPU_LAB_CACHE:-/var/cache/vgpu-host-lab}

note() { printf 'lab: %s\n' "$*" >&2; }

die() {
	note "$@"
	exit 1
}

# The version of the newest kernel whose packages are in the cache; nothing
# when there is none.
cached_kernel() {
	[[ -d $CACHE/kernel ]] || return 0
	find "$CACHE/kernel" -mindepth 1 -maxdepth 1 -type d ! -name '.*' -printf '%f\n' |
		sort -V | tail -n 1
}
