#!/bin/bash
# setup.sh: installs the daemon's files from the checkout (its directory is
# the argument) to where a package would put them: bus policy, polkit actions
# and rules, udev rules, tmpfiles. Only ever run in the guest, before its
# services start; what it writes is gone with the guest.
set -euo pipefail
[[ ${VGPU_LAB:-} == 1 ]] || {
	echo 'setup.sh: this is for the lab guest only' >&2
	exit 2
}
cd "$1"

find host polkit -type f \( -path 'host/data/*.conf' -o -path 'host/data/*.rules' \
	-o -name '*.policy' -o -path 'polkit/*.rules' \) |
	while read -r file; do
		case $file in
		*.policy) to=/usr/share/polkit-1/actions ;;
		polkit/*.rules) to=/usr/share/polkit-1/rules.d ;;
		*.rules) to=/usr/lib/udev/rules.d ;;
		*) if grep -q '<busconfig>' "$file"; then to=/usr/share/dbus-1/system.d; else to=/usr/lib/tmpfiles.d; fi ;;
		esac
		install -D -m 644 -t "$to" "$file"
		[[ $to != */tmpfiles.d ]] || systemd-tmpfiles --create "$to/${file##*/}"
	done
