#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# Runs every fuzz target of the module for a while: fuzz.sh TIME, 20s by default.
# `go test -fuzz` takes one target of one package at a time; this finds them all.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
time=${1:-20s}
failed=0

while IFS=: read -r file function; do
	target=${function#func } target=${target%(}
	echo "fuzz $(dirname "$file") $target for $time"
	go test "./$(dirname "$file")" -run '^$' -fuzz "^$target\$" -fuzztime "$time" || failed=1
done < <(git grep -oE '^func Fuzz[A-Za-z0-9_]+\(' -- '*_test.go')
exit $failed
