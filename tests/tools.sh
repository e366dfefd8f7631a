# shellcheck shell=bash
# tools.sh: where programs that no package has are kept, outside the tree.
# Sourced, never run.

if [[ $EUID -eq 0 ]]; then
	TOOLS=${VGPU_TOOLS:-/var/cache/vgpu-host/tools}
else
	TOOLS=${VGPU_TOOLS:-${XDG_CACHE_HOME:-$HOME/.cache}/vgpu-host/tools}
fi
PATH=$TOOLS/bin:$PATH
