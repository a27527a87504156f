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
seconds() { date +%s.%N; }
part() { # name, command...: the log to OUT, the last lines to the screen, one row for the table
  local name=$1 begin code verdict
  shift
  begin=$(seconds)
  "$@" >"$out/$name.log" 2>&1
  code=$?
  case $code in 0) verdict=ok ;; 77) verdict=skipped ;; *) verdict="FAILED ($code)" failed=1 ;; esac
  rows+=("$(printf '%-26s %-12s %7.1f s  %s' "$name" "$verdict" "$(echo "$(seconds) - $begin" | bc)" "$(tail -1 "$out/$name.log" | cut -c1-110)")")
  [[ $code == 0 ]] || tail -25 "$out/$name.log"
}

# Tests that skip everything say so; a skip is not a pass.
gtest() { # program, filter
  "$1" --gtest_filter="$2" --gtest_print_time=1 | tee "$out/last"
  local code=${PIPESTATUS[0]}
  echo "$(grep -c '\[       OK' "$out/last") passed, $(grep -c '^\[  SKIPPED \].*ms)' "$out/last") skipped, $(grep -c '^\[  FAILED  \].*ms)' "$out/last") failed"
  return "$code"
}

perplexities() {
  local model format cpu gpu bad=0
  declare -A extra=([nvfp4]="--nvfp4-per-token-activation")
  printf '| model | weights | CPU | GPU |\n|---|---|---|---|\n'
  for model in "${SLUICE_TEST_MODELS:-$root/models}"/*/; do
    for format in "" fp8 fp8_channel fp8_block mxfp8 nvfp4 mxfp4; do
      local words=(eval perplexity --json --model-path "$model" --text "$model/valid.txt")
      # shellcheck disable=SC2206
      [[ -z $format ]] || words+=(--quantization "$format" ${extra[$format]:-})
      cpu=$("$dir/sluice" "${words[@]}" --moe-runner-backend cpu | python3 -c 'import json,sys; print("%.6g" % json.load(sys.stdin)["perplexity"])')
      gpu=$("$dir/sluice" "${words[@]}" --moe-runner-backend sm90 | python3 -c 'import json,sys; print("%.6g" % json.load(sys.stdin)["perplexity"])')
      printf '| %s | %s | %s | %s |\n' "$(basename "$model")" "${format:-bf16}" "$cpu" "$gpu"
      # Four digits: rounding to them, or half a unit of the fourth where the two straddle a boundary.
      python3 -c 'import sys; a, b = map(float, sys.argv[1:]); sys.exit(not abs(a - b) <= 5e-4 * a)' "${cpu:-0}" "${gpu:-1}" || bad=1
    done
  done
  [[ $bad == 0 ]] && echo "perplexities equal to 4 digits"
  return $bad
}

[[ $# -ge 2 ]] || usage
case $1 in
  pack) pack "$2" "$3" && exit 0 ;;
  run) ;;
  *) usage ;;
esac
dir=$(cd "$2" && pwd)
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
      for tool in memcheck racecheck initcheck synccheck; do
        part "sanitizer-$tool" compute-sanitizer --tool "$tool" --error-exitcode 9 "$dir/kernels_sm90_test" \
          --gtest_filter='Sanitize.*' --gtest_brief=1
      done
      ;;
    start) part start "$dir/capi_cuda_test" --gtest_filter='CudaStart.*' ;;
    models) part models perplexities ;;
    # shellcheck disable=SC2086
    bench) part bench "$dir/moe_sm90" ${SLUICE_BENCH_ARGS:-} ;;
    *) usage ;;
  esac
done
echo
printf '%s\n' "${rows[@]}"
exit $failed
