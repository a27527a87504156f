#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The checks that need no build: format, layers, ASCII, licence lines, open ends, the README's map; long files are listed.
#   tools/check.sh            every tracked file
#   tools/check.sh --staged   what is about to be committed (the git hook)
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1

if [[ ${1:-} == --staged ]]; then
  mapfile -t files < <(git diff --cached --name-only --diff-filter=ACMR)
elif git rev-parse --git-dir >/dev/null 2>&1; then
  mapfile -t files < <(git ls-files)
else
  mapfile -t files < <(find . -type f -not -path './build*' -not -path './.git/*' | sed 's|^\./||')
fi

failed=0
fail() { # title, lines
  printf 'check: %s\n%s\n' "$1" "$2"
  failed=1
}
select_files() { # pattern of names
  local f
  for f in "${files[@]}"; do if [[ $f =~ $1 && -f $f ]]; then echo "$f"; fi; done
}

mapfile -t sources < <(select_files '\.(h|hpp|c|cc|cu|cuh)$')
mapfile -t texts < <(select_files '(\.(h|hpp|c|cc|cu|cuh|py|sh|cmake|in|map|md|def)|CMakeLists\.txt|\.ci/run|pre-commit)$' | grep -v '^models/')

if [[ ${#sources[@]} -gt 0 ]]; then
  formatter=$(command -v clang-format-14 || command -v clang-format)
  if [[ -z $formatter ]]; then
    fail "clang-format-14 is not installed" "scripts/setup.sh test installs it"
  else
    # In batches on every core; --Werror turns a difference into a diagnostic that names the file.
    # shellcheck disable=SC2016
    wrong=$(printf '%s\0' "${sources[@]}" |
      xargs -0 -n 12 -P "$(nproc)" sh -c '"$0" --dry-run --Werror "$@" 2>&1 | grep " error: " | cut -d: -f1' "$formatter" |
      sort | uniq -c)
    [[ -z $wrong ]] || fail "not formatted (places, file); run clang-format-14 -i on them" "$wrong"
  fi
  unlicensed=$(for f in "${sources[@]}"; do head -1 "$f" | grep -q 'SPDX-License-Identifier: Apache-2.0' || echo "$f"; done)
  [[ -z $unlicensed ]] || fail "the first line must be the SPDX licence line" "$unlicensed"
fi

if [[ ${#texts[@]} -gt 0 ]]; then
  foreign=$(LC_ALL=C grep -nP '[^\x00-\x7F]' "${texts[@]}" /dev/null | head -20)
  [[ -z $foreign ]] || fail "not ASCII" "$foreign"
  # An open end must name its issue: "TO""DO(#12): ...". The words are split here so that this file passes.
  open=$(grep -nE '\b(TO''DO|FIX''ME|XX''X)\b' "${texts[@]}" /dev/null | grep -vE '\((#[0-9]+)\)' | head -20)
  [[ -z $open ]] || fail "an open end without an issue number, as (#12)" "$open"
fi

layers=$(python3 tools/layers.py) || fail "layers" "$layers"

# docs/architecture.md shows the layers that layers.py checks.
shown=$(sed -n '/^## Layers$/,/^## /p' docs/architecture.md | grep -E '^[0-9]+  ')
if [[ -z $shown || $shown != "$(python3 tools/layers.py --list)" ]]; then
  fail "the layers in docs/architecture.md and in tools/layers.py differ (<: document, >: layers.py)" \
    "$(diff <(echo "$shown") <(python3 tools/layers.py --list))"
fi

# README.md has one line for each folder of src/, "  base/   ..." in its map.
mapped=$(sed -n '/^src\/$/,/^```$/p' README.md | grep -oE '^  [a-z0-9_/]+/ ' | tr -d ' ' | sed 's|/$||' | sort)
present=$(find src -mindepth 1 -type d -exec sh -c 'ls "$1"/*.* >/dev/null 2>&1' _ {} \; -print | sed 's|^src/||' |
  sed -E 's#^(kernels/[a-z0-9_]+|[a-z0-9_]+).*#\1#' | sort -u)
if [[ $mapped != "$present" ]]; then
  fail "README.md's map and the folders of src/ differ (<: README only, >: src only)" \
    "$(diff <(echo "$mapped") <(echo "$present"))"
fi

# Questions, not faults.
long=$(wc -l "${sources[@]}" /dev/null | awk '$2 != "total" && $1 > 400 {print "  " $1 " " $2}' | sort -rn | head -8)
[[ -z $long ]] || printf 'check: files to look at, over 400 lines:\n%s\n' "$long"

[[ $failed == 0 ]] && echo "check: ${#files[@]} files, no findings"
exit $failed
