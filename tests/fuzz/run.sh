#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# tests/fuzz/run.sh SECONDS [BUILD]: runs each fuzz target for that long from the tests' files as seeds; ends with an
# error at the first finding, which lies in BUILD/fuzz. BUILD is that of `cmake --preset fuzz` unless given.
set -eu
seconds=${1:?usage: tests/fuzz/run.sh SECONDS [BUILD]}
root=$(cd "$(dirname "$0")/../.." && pwd)
build=${2:-$root/build/fuzz}
mkdir -p "$build/fuzz"
cd "$build/fuzz"
"$build/tests/fuzz/fuzz_seeds" "$PWD"
for name in safetensors config tokenizer template encode grammar request tool_calls; do
  case $name in
    tool_calls) words=$root/tests/fuzz/tool_calls.dict ;;
    template | encode) words=$root/tests/fuzz/template.dict ;;
    grammar) words=$root/tests/fuzz/grammar.dict ;;
    *) words=$root/tests/fuzz/json.dict ;;
  esac
  echo "fuzz: $name for $seconds s"
  mkdir -p "found-$name"
  # A single input may take 10 s and 1 GB: anything slower or larger is a finding too.
  "$build/tests/fuzz/${name}_fuzz" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=2048 -malloc_limit_mb=1024 \
    -max_len=8192 -print_final_stats=1 -verbosity=0 -dict="$words" -artifact_prefix="$name-" \
    "found-$name" "$name"
done
