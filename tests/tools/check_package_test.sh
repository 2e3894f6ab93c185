#!/usr/bin/env bash
# What tools/check_package refuses before it tries anything, with exit status 2. The packages themselves take root, a
# mirror and minutes: that is the script's own business.
set -euo pipefail
cd "$(dirname "$0")/../.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/tools" "$work/build"

# stand_in NAME TEXT: a program that the script finds before the machine's.
stand_in() { printf '#!/bin/sh\n%s\n' "$2" >"$work/tools/$1"; chmod +x "$work/tools/$1"; }
# refused MESSAGE [ARGUMENT]...
refused() {
  local status=0
  PATH="$work/tools:/usr/bin:/bin" tools/check_package "${@:2}" >"$work/out" 2>&1 || status=$?
  [[ $status -eq 2 ]] && grep -qF -- "$1" "$work/out" ||
    { echo "check_package_test: status $status and not '$1':"; cat "$work/out"; exit 1; }
}

stand_in id 'echo 1000'
refused "must be root" "$work/build"
stand_in id 'echo 0'
refused "no option '--imag'; there is --image FOLDER" --imag "$work"
refused "--image names no folder" --image
refused "is one argument too many" "$work/build" "$work/build"
stand_in debootstrap 'exit 1'
refused "no strait_*.deb in $work/build; cpack writes it" "$work/build"
touch "$work/build/strait_1_all.deb"
refused "no libstrait-dev_*.deb in $work/build" "$work/build"
touch "$work/build/libstrait-dev_1_all.deb" "$work/build/strait_2_all.deb"
refused "several strait_*.deb" "$work/build"
rm "$work/build/strait_2_all.deb"
stand_in apt-get 'exit 0'
refused "no source of Debian 12" "$work/build"
rm "$work/tools/debootstrap"
for name in bash env dirname realpath cat grep awk; do ln -s "$(command -v $name)" "$work/tools/$name"; done
status=0
PATH="$work/tools" tools/check_package "$work/build" >"$work/out" 2>&1 || status=$?
[[ $status -eq 2 ]] && grep -qF "apt-get install debootstrap" "$work/out" ||
  { echo "check_package_test: debootstrap is not missed"; cat "$work/out"; exit 1; }
