#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one entry on a GPU machine. Nothing is compiled there: build and pack where there is a compiler, carry one folder.
#   tools/gpu.sh pack BUILD DIR        stripped programs and tests of a build with SLUICE_CUDA=ON into DIR
#   tools/gpu.sh run DIR [PART...]     runs PARTs (default: all) and prints a short table last
# PARTs: resources, tests, sanitizer, start, models, bench. SLUICE_TEST_MODELS names a folder of checkpoints (default:
# models/ of this repository), SLUICE_BENCH_ARGS goes to the benchmark, OUT is where logs go (default: DIR/out).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  sed -n '3,8p' "$0" | sed 's/^# \{0,1\}//'
  exit 2
}

pack() { # build, dir
  mkdir -p "$2"
  local f
  for f in tests/kernels_sm90_test tests/conformance_test tests/capi/capi_cuda_test bench/moe_sm90 bin/sluice; do
    strip -o "$2/$(basename "$f")" "$1/$f" || exit 1
  done
  cp -L "$1"/lib/libsluice.so.0 "$2/" && strip "$2/libsluice.so.0"
  du -sh "$2"
}

declare -a rows=()
failed=0
row() { # name, exit code, seconds: one row for the table, the log's failures to the screen
  local verdict
  case $2 in 0) verdict=ok ;; 77) verdict=skipped ;; *) verdict="FAILED ($2)" failed=1 ;; esac
  rows+=("$(printf '%-20s %-11s %4d s  %s' "$1" "$verdict" "$3" "$(tail -1 "$out/$1.log" | cut -c1-120)")")
  if [[ $2 != 0 ]]; then
    echo "--- $1"
    grep -m 6 -A 7 -E 'Failure|=========.*(rror|azard|ninit)|stack [0-9]' "$out/$1.log" | cut -c1-220 | head -60
    tail -4 "$out/$1.log" | cut -c1-220
  fi
}
part() { # name, command...
  local name=$1 begin=$SECONDS code
  shift
  "$@" >"$out/$name.log" 2>&1
  code=$?
  row "$name" $code $((SECONDS - begin))
}

# One program in eight processes. Tests that skip say so in the table: a skip is not a pass.
gtest() { # program, filter
  local i log=$out/$(basename "$1") code=0
  local -a jobs=()
  for i in 0 1 2 3 4 5 6 7; do
    GTEST_TOTAL_SHARDS=8 GTEST_SHARD_INDEX=$i "$1" --gtest_filter="$2" >"$log.$i" 2>&1 &
    jobs+=($!)
  done
  for i in "${jobs[@]}"; do wait "$i" || code=1; done
  cat "$log".?
  grep -h 'excursion' "$log".? | sed -E 's/.*excursion ([0-9.infa]+) of.*/\1/' | sort -g | tail -1 >"$log.worst"
  echo "$(cat "$log".? | grep -c '\[       OK') passed, $(cat "$log".? | grep -c '^\[  SKIPPED \].*ms)') skipped," \
    "$(cat "$log".? | grep -c '^\[  FAILED  \].*ms)') failed; largest excursion $(cat "$log.worst") of what is allowed"
  return $code
}

[[ $# -ge 2 ]] || usage
case $1 in
  pack)
    [[ $# -eq 3 ]] || usage
    pack "$2" "$3" && exit 0
    ;;
  run) ;;
  *) usage ;;
esac
dir=$(cd "$2" && pwd) || exit 2
shift 2
out=${OUT:-$dir/out}
mkdir -p "$out"
export LD_LIBRARY_PATH="$dir:${LD_LIBRARY_PATH:-}"
nvidia-smi --query-gpu=name,driver_version,clocks.sm,clocks.mem --format=csv,noheader 2>/dev/null || {
  echo "skipped: no NVIDIA GPU on this machine"
  exit 0
}

parts=("$@")
[[ ${#parts[@]} -gt 0 ]] || parts=(resources tests sanitizer start models bench)
for p in "${parts[@]}"; do
  case $p in
    resources) part resources "$root/tools/resources.sh" "$dir/libsluice.so.0" ;;
    tests)
      part kernels gtest "$dir/kernels_sm90_test" '-Sanitize.*'
      part conformance gtest "$dir/conformance_test" '*/sm90'
      part capi gtest "$dir/capi_cuda_test" '*'
      ;;
    sanitizer)
      tools=(memcheck racecheck initcheck synccheck)
      declare -A job=()
      begin=$SECONDS
      for tool in "${tools[@]}"; do
        compute-sanitizer --tool "$tool" --error-exitcode 9 "$dir/kernels_sm90_test" --gtest_filter='Sanitize.*' \
          --gtest_brief=1 >"$out/$tool.log" 2>&1 &
        job[$tool]=$!
      done
      for tool in "${tools[@]}"; do
        wait "${job[$tool]}"
        row "$tool" $? $((SECONDS - begin))
      done
      ;;
    start) part start "$dir/capi_cuda_test" --gtest_filter='CudaStart.*' ;;
    models) part models "$root/tools/gpu_perplexity.py" "$dir/sluice" "${SLUICE_TEST_MODELS:-$root/models}"/*/ ;;
    bench)
      # shellcheck disable=SC2086
      part bench "$dir/moe_sm90" ${SLUICE_BENCH_ARGS:-}
      ;;
    *) usage ;;
  esac
done
echo
printf '%s\n' "${rows[@]}"
exit $failed
