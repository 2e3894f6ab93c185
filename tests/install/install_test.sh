#!/usr/bin/env bash
# Installs a finished build into a prefix of its own, without rebuilding. Then configures, compiles,
# links and runs examples/embed against it, and the program from another folder.
# usage: install_test.sh SOURCE BUILD
set -euo pipefail
source_folder=$1
build_folder=$2
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

cmake --install "$build_folder" --prefix "$work/prefix" >"$work/install.log" ||
  { cat "$work/install.log"; exit 1; }
if grep -rIlF -e "$source_folder" -e "$build_folder" "$work/prefix/lib" "$work/prefix/include"; then
  echo "installed files name the folder of the sources or of the build"
  exit 1
fi
# Links of the installed documents hold, but those to records of measurements.
documents=$work/prefix/share/doc/strait
while IFS=: read -r page link; do
  target=${link#](}; target=${target%)}; target=${target%%#*}
  [[ -z $target || $target =~ ^[a-z]+: || $target == *records* || -e $(dirname "$page")/$target ]] ||
    { echo "$page: links to $target, which is not installed"; broken=yes; }
done < <(grep -rHoE --include='*.md' '\]\([^) ]+\)' "$documents")
[[ -z ${broken:-} ]]
for page in README.md docs/README.md; do
  cmp "$source_folder/$page" "$documents/$page"
done

cp -r "$source_folder/examples/embed" "$work/embed"
cmake -S "$work/embed" -B "$work/build" -DCMAKE_BUILD_TYPE=Release \
  -DCMAKE_PREFIX_PATH="$work/prefix" >"$work/configure.log" ||
  { cat "$work/configure.log"; exit 1; }
cmake --build "$work/build"
"$work/build/embed"

cd "$work"
prefix/bin/strait --version | tee version
for part in LibTorch MPI BLAS instructions tiles oneDNN; do
  grep -q "^$part  *[^ ]" version || { echo "--version does not name $part"; exit 1; }
done
bash -n prefix/share/bash-completion/completions/strait
grep -q "^#compdef strait" prefix/share/zsh/site-functions/_strait
zgrep -q '^\.TH STRAIT' prefix/share/man/man1/strait.1.gz
for command in train evaluate sample verify simulate plan probe bench inspect report convert completion; do
  [[ -s prefix/share/man/man1/strait-$command.1.gz ]] || { echo "no manual page of strait $command"; exit 1; }
done
prefix/bin/strait-export-modules --help | grep -q "FILE.py:FUNCTION"
"$work/prefix/bin/strait" verify "$work/prefix/share/doc/strait/examples/minimal.toml" --ranks 2
