#!/bin/bash
# guest.sh: runs in the guest every test that the file LAB_TESTS lists, one
# after the other, and says how many passed and failed. A line of the list is
# a name, a program and its arguments, quoted as in a shell.
#
# LAB_TEST_TIMEOUT, in seconds, is what one test may take; 300 if not set.
# Fails when a test fails or none is listed. If there is a directory /lab, the
# two numbers are left in its file result.
set -euo pipefail

passed=0 failed=0
while IFS= read -r line <&3; do
	declare -a words="($line)"
	printf '\n== %s: %s\n' "$VGPU_LAB_TREE" "${words[0]}"
	status=0
	messages=$(dmesg | wc -l)
	timeout --kill-after=10 "${LAB_TEST_TIMEOUT:-300}" "${words[@]:1}" || status=$?
	if ((status == 0)); then
		passed=$((passed + 1))
	else
		failed=$((failed + 1))
		echo "== ${words[0]} failed ($status); the kernel said meanwhile:"
		dmesg | tail -n "+$((messages + 1))"
	fi
done 3<"$LAB_TESTS"

printf '\n%s: %s passed, %s failed\n' "$VGPU_LAB_TREE" "$passed" "$failed"
[[ ! -d /lab ]] || echo "$passed $failed" >/lab/result
((passed > 0 && failed == 0))
