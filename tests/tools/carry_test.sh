#!/usr/bin/env bash
# What tools/carry packs: the committed sources, one command, and the libraries that a bare machine lacks.
set -euo pipefail
cd "$(dirname "$0")/../.."
if ! git rev-parse --git-dir >/dev/null 2>&1; then
  echo "skipped: the sources are not a git repository, so nothing can be packed"
  exit 0
fi
tools/carry >/dev/null
list=$(tar tzf build/carry/strait-carry.tar.gz)
fail() { echo "carry_test: $1" >&2; exit 1; }
for wanted in build commit packages source/CMakeLists.txt source/strait/base/errors.h third_party/usr/include/fmt/core.h \
              third_party/usr/include/hwy/highway.h third_party/usr/include/gtest/gtest.h; do
  grep -qx "strait-carry/$wanted" <<<"$list" || fail "$wanted is missing"
done
for library in libopenblas.so libhwy.so libfmt.so libpcre2-8.so libxxhash.so libz.so libgtest.a; do
  grep -q "/$library" <<<"$list" || fail "$library is missing"
done
grep -q "/libtorch" <<<"$list" && fail "LibTorch is the other machine's own"
git ls-files --error-unmatch tools/carry >/dev/null
tar xzf build/carry/strait-carry.tar.gz -O strait-carry/build | bash -n || fail "the command is no script"
[[ $(tar xzf build/carry/strait-carry.tar.gz -O strait-carry/commit) == "$(git rev-parse --short=12 HEAD)" ]] || fail "another commit"
