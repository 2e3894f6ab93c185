#!/usr/bin/env bash
# The documents name only files that exist: link targets, and paths in `code`. Every page of docs/ is in its
# index, the README stays short, and ARCHITECTURE shows the table of levels that tools/check_layers enforces.
# Usage: docs_links_test.sh   Exit status 1 and one line per problem.
set -euo pipefail
shopt -s extglob
root=$(cd "$(dirname "$0")/../.." && pwd)
readme_limit=150

# links FILE: targets of links to files, without anchors.
links() {
  grep -oE '\]\([^) ]+\)' "$1" | sed -E 's/^\]\(//; s/\)$//; s/#.*//' | grep -vE '^([a-z]+:.*)?$' || true
}

# paths FILE: words in `code` that begin with a folder of the repository.
paths() {
  grep -oE '`(strait|tests|tools|docs|examples|bench|cmake)/[A-Za-z0-9_./*-]*`' "$1" | tr -d '`' | sort -u || true
}

# page_problems ROOT FILE: one line per name in ROOT/FILE that does not exist. Links count from the page's
# folder, paths from the root, where `*` stands for what the shell makes of it.
page_problems() {
  local base name
  base=$(dirname "$1/$2")
  while read -r name; do
    [[ -z $name || -e $base/$name ]] || echo "$2: links to $name, which does not exist"
  done < <(links "$1/$2")
  while read -r name; do
    [[ -z $name ]] || compgen -G "$1/$name" >/dev/null || echo "$2: names $name, which does not exist"
  done < <(paths "$1/$2")
}

# index_problems ROOT: pages of docs/ that docs/README.md does not link to.
index_problems() {
  local page
  for page in "$1"/docs/*.md; do
    page=$(basename "$page")
    [[ $page == README.md ]] || grep -qF "]($page)" "$1/docs/README.md" || echo "docs/README.md: does not list $page"
  done
}

# documented_levels FILE, enforced_levels FILE: lines "level|folders|folders" of the two tables.
documented_levels() {
  grep -E '^\| [0-9]+ \|' "$1" | tr -d '`' | sed -E 's/^\| *//; s/ *\|$//; s/ *\| */|/g'
}
enforced_levels() {
  sed -n '/^LEVELS = \[/,/^\]/p' "$1" | grep -E '^ +\(\[' | tr -d '()",' |
    sed -E 's/^ *\[([^]]*)\] *\[([^]]*)\].*/\1|\2/' | awk '{ print NR - 1 "|" $0 }'
}

# all_problems ROOT: of all documents under ROOT.
all_problems() {
  local page lines
  while read -r page; do
    page_problems "$1" "${page#"$1"/}"
  done < <(compgen -G "$1/*.md"; compgen -G "$1/docs/*.md"; compgen -G "$1/bench/*.md")
  index_problems "$1"
  lines=$(wc -l <"$1/README.md")
  [[ $lines -le $readme_limit ]] || echo "README.md: $lines lines, at most $readme_limit"
  diff <(documented_levels "$1/ARCHITECTURE.md") <(enforced_levels "$1/tools/check_layers") |
    sed -nE 's/^([<>]) (.*)/ARCHITECTURE.md: levels differ from tools\/check_layers (< here, > there): \1 \2/p' || true
}

# A tree with one breach of each kind: the checks above must see every one, and nothing else.
self_test() {
  local tree found expected
  tree=$(mktemp -d)
  trap "rm -rf '$tree'" EXIT
  mkdir -p "$tree/docs" "$tree/tools" "$tree/bench" "$tree/strait/base"
  touch "$tree/strait/base/here.h"
  { echo '[a](docs/one.md#part) [b](docs/none.md) [c](https://example.org/x) `strait/base/*.h` `strait/gone.h`'
    seq $readme_limit; } >"$tree/README.md"
  echo '| 0 | `base` | |' >"$tree/ARCHITECTURE.md"
  printf 'LEVELS = [\n    (["base"], []),\n    (["kernel"], ["tensor"]),\n]\n' >"$tree/tools/check_layers"
  echo '[one](one.md)' >"$tree/docs/README.md"
  echo '[up](../README.md)' >"$tree/docs/one.md"
  echo '`bench/none.py`' >"$tree/docs/two.md"
  expected='ARCHITECTURE.md: levels differ from tools/check_layers (< here, > there): > 1|kernel|tensor
README.md: 151 lines, at most 150
README.md: links to docs/none.md, which does not exist
README.md: names strait/gone.h, which does not exist
docs/README.md: does not list two.md
docs/two.md: names bench/none.py, which does not exist'
  found=$(all_problems "$tree" | LC_ALL=C sort)
  [[ $found == "$expected" ]] && return
  echo "docs_links_test: the checks do not see what they should"
  diff <(echo "$expected") <(echo "$found")
  return 1
}

self_test
problems=$(all_problems "$root")
[[ -z $problems ]] || { echo "$problems"; exit 1; }
echo "docs: every named file exists"
