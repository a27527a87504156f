#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The one entry on a GPU machine. Nothing is compiled there: build and pack where there is a compiler, carry one folder.
#   tools/gpu.sh pack BUILD DIR        stripped programs and tests of a build with SLUICE_CUDA=ON into DIR
#   tools/gpu.sh run DIR [PART...]     runs PARTs (default: all) and prints a short table last
# PARTs: resources, tests, ops, sanitizer, start, goldens, experts, models, bench, bench-ops, and by name only:
# model-speed, whole models of dummy weights, those in SPEED_MODELS ("MODEL:FORMAT[+RUN] ...", RUN: long, deterministic,
# drafts) if it is set, each for at most SPEED_SECONDS (110); model-serve, one of them in the server; model-load, a
# checkpoint of LOAD_LAYERS (12); drafts, what they gain on a trained model (tiny-deepseek-v3); widths, against
# transformers, which with torch has to be there; sanitizer-models, a few tokens of each checkpoint under the sanitizers
# but racecheck; python, the package's tests, which need pytest and use torch.
# SLUICE_TEST_MODELS names a folder of checkpoints (default: models/ of this repository), SLUICE_BENCH_ARGS goes to the
# benchmark, PERPLEXITY_STATE to experts and models as --state, OUT is where logs go (default: DIR/out).
set -uo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

usage() {
  sed -n '3,13p' "$0" | sed 's/^# \{0,1\}//'
  exit 2
}

pack() { # build, dir
  mkdir -p "$2"
  local f
  for f in tests/{kernels_sm90,conformance,ops,ops_sm90,model_sm90}_test tests/capi/capi_cuda_test bench/{moe,ops,attention,dense_few,prepare}_sm90 bin/sluice; do
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

# One program in sixteen processes. Tests that skip say so in the table: a skip is not a pass.
gtest() { # program, filter
  local i log=$out/$(basename "$1") code=0
  local -a jobs=()
  for i in {0..15}; do
    GTEST_TOTAL_SHARDS=16 GTEST_SHARD_INDEX=$i "$1" --gtest_filter="$2" >"$log.$i" 2>&1 &
    jobs+=($!)
  done
  for i in "${jobs[@]}"; do wait "$i" || code=1; done
  cat "$log".[0-9]*
  grep -h 'excursion' "$log".[0-9]* | sed -E 's/.*excursion ([0-9.infa]+) of.*/\1/' | sort -g | tail -1 >"$log.worst"
  echo "$(cat "$log".[0-9]* | grep -c '\[       OK') passed, $(cat "$log".[0-9]* | grep -c '^\[  SKIPPED \].*ms)') skipped," \
    "$(cat "$log".[0-9]* | grep -c '^\[  FAILED  \].*ms)') failed; largest excursion $(cat "$log.worst") of what is allowed"
  return $code
}

# A whole model of dummy weights: decoding and prompts, as bench/model_table.py wants them. A model that takes too long
# leaves the rows that it has, and time for the others.
speed_of() { # model, format, run
  local -a format=()
  case $2 in
    bf16) ;;
    fp8 | fp8_block) format=(--quantization "$2" --fp8-sums tensor-core) ;;
    fp8_f32 | fp8_block_f32) format=(--quantization "${2%_f32}" --fp8-sums float32) ;;
    nvfp4) format=(--quantization nvfp4_online) ;;
    *) format=(--quantization "$2") ;;
  esac
  part "speed-$1-$2${3:++$3}" "speed_runs${3:+_$3}" "$out/models/$1" "${format[@]}"
}
# One sequence touches the same number of experts whoever chooses them, so there the routers do, as for vLLM's figures.
speed_runs() { # model, options
  local -a bench=(timeout "${SPEED_SECONDS:-110}" "$dir/sluice" bench model --load-format dummy --device cuda --input-len 64
    --new-tokens 128 --repeat 2 --profile --json --model-path "$@")
  "${bench[@]}" --routing model --batch-size 1
  "${bench[@]}" --routing uniform --batch-size 8,32,64,256 --prefill 1x1024,1x8192,16x1024
}
speed_runs_long() {
  local -a bench=(timeout "${SPEED_SECONDS:-110}" "$dir/sluice" bench model --load-format dummy --device cuda --new-tokens 33
    --repeat 1 --routing uniform --profile --json --model-path "$@")
  "${bench[@]}" --input-len 8192 --batch-size 1,8
  "${bench[@]}" --input-len 32768 --batch-size 1
  # These do not fit beside every model's weights in 80 GB.
  "${bench[@]}" --input-len 8192 --batch-size 32
  "${bench[@]}" --input-len 32768 --batch-size 8
}
speed_runs_deterministic() {
  timeout "${SPEED_SECONDS:-110}" "$dir/sluice" bench model --load-format dummy --device cuda --input-len 64 --new-tokens 128 \
    --repeat 2 --routing uniform --deterministic --batch-size 8,64,256 --json --model-path "$@"
}
speed_runs_drafts() {
  local -a bench=(timeout "${SPEED_SECONDS:-110}" "$dir/sluice" bench model --load-format dummy --device cuda --input-len 64
    --new-tokens 128 --repeat 3 --deterministic --json --model-path "$@")
  "${bench[@]}"
  "${bench[@]}" --speculative-algorithm NEXTN --speculative-num-steps 1 --speculative-fixed-steps
  "${bench[@]}" --speculative-algorithm NEXTN --speculative-num-steps 3 --speculative-fixed-steps
  "${bench[@]}" --speculative-algorithm NEXTN --speculative-num-steps 3
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
[[ ${#parts[@]} -gt 0 ]] || parts=(resources tests ops sanitizer start goldens experts models bench bench-ops)
for p in "${parts[@]}"; do
  case $p in
    resources) part resources "$root/tools/resources.sh" "$dir/libsluice.so.0" 32 ;; # sincosf and a few others have frames
    tests)
      part kernels gtest "$dir/kernels_sm90_test" '-Sanitize*'
      part conformance gtest "$dir/conformance_test" '*/sm90'
      part capi gtest "$dir/capi_cuda_test" '*'
      ;;
    ops)
      part ops gtest "$dir/ops_test" '*cuda*'
      part ops_sm90 gtest "$dir/ops_sm90_test" '*'
      ;;
    sanitizer)
      tools=(memcheck racecheck initcheck synccheck)
      declare -A job=()
      begin=$SECONDS
      for tool in "${tools[@]}"; do
        filter='Sanitize*'
        [[ $tool != racecheck ]] || filter='Sanitize.*' # SanitizeCopies says why
        compute-sanitizer --tool "$tool" --error-exitcode 9 "$dir/kernels_sm90_test" --gtest_filter="$filter" \
          --gtest_brief=1 >"$out/$tool.log" 2>&1 &
        job[$tool]=$!
      done
      for tool in "${tools[@]}"; do
        wait "${job[$tool]}"
        row "$tool" $? $((SECONDS - begin))
      done
      # A warp that the tool holds up showed a race of FlashInfer's epilogue (src/kernels/sm90/flashinfer/tile_epilogue.cuh).
      part memcheck-prompts compute-sanitizer --tool memcheck --error-exitcode 9 "$dir/ops_sm90_test" \
        --gtest_filter='PrefillSm90.*:ExpandedSm90.*' --gtest_brief=1
      ;;
    sanitizer-models) # racecheck reports every read of what cp.async copied (tests/kernels_sm90/sanitize_test.cc)
      for model in "${SLUICE_TEST_MODELS:-$root/models}"/*/; do
        for tool in memcheck initcheck synccheck; do
          part "$tool-$(basename "$model")" compute-sanitizer --tool "$tool" --error-exitcode 9 "$dir/sluice" generate \
            --model-path "$model" --device cuda --prompt "Once upon a time" --max-new-tokens 6 --temperature 0
        done
      done
      ;;
    start) part start "$dir/capi_cuda_test" --gtest_filter='CudaStart.*' ;;
    goldens) SLUICE_TEST_MODELS=${SLUICE_TEST_MODELS:-$root/models} part goldens gtest "$dir/model_sm90_test" '*' ;;
    experts | models)
      part "$p" "$root/tools/gpu_perplexity.py" "$p" "$dir/sluice" "${SLUICE_TEST_MODELS:-$root/models}"/*/ \
        ${PERPLEXITY_STATE:+--state "$PERPLEXITY_STATE"}
      cat "$out/$p.log"
      ;;
    drafts)
      part drafts python3 "$root/bench/speculation.py" "$dir/sluice" "${SLUICE_TEST_MODELS:-$root/models}/tiny-deepseek-v3"
      cat "$out/drafts.log"
      ;;
    widths)
      part widths python3 "$root/tools/gpu_widths.py" "$dir/sluice" "$out/models/widths"
      cat "$out/widths.log"
      ;;
    model-speed)
      python3 "$root/bench/model_table.py" configs "$out/models" || exit 2
      speeds=({qwen3-30b-a3b,nemotron-3-nano}:{bf16,fp8,nvfp4} qwen3-30b-a3b:{fp8_block,fp8_f32,fp8_block_f32,mxfp8,mxfp4,bf16+{long,deterministic}}
        deepseek-v3-4-layers:{bf16,fp8_block} deepseek-v3-4-layers-mtp:bf16+drafts)
      [[ -z ${SPEED_MODELS:-} ]] || read -ra speeds <<<"$SPEED_MODELS"
      for speed in "${speeds[@]}"; do
        format=${speed##*:}
        run=${format#"${format%%+*}"}
        speed_of "${speed%%:*}" "${format%%+*}" "${run#+}"
      done
      peers=(--no-peers) # theirs were measured on an H200
      nvidia-smi --query-gpu=name --format=csv,noheader | grep -q H200 && peers=()
      python3 "$root/bench/model_table.py" table "${peers[@]}" "$out"/speed-*.log
      python3 "$root/bench/model_table.py" kernels "$out"/speed-*.log >"$out/kernels.md"
      ;;
    model-serve)
      python3 "$root/bench/model_table.py" configs "$out/models" || exit 2
      part serve python3 "$root/bench/model_serve.py" "$dir/sluice" "$out/models/qwen3-30b-a3b"
      cat "$out/serve.log"
      ;;
    model-load)  # from the page cache: the second of two loads
      python3 "$root/bench/random_checkpoint.py" "$out/models/load" "${LOAD_LAYERS:-12}" || exit 2
      for load in 1 2; do
        part "load-$load" timeout 120 "$dir/sluice" bench model --model-path "$out/models/load" --device cuda \
          --prefill 1x16 --repeat 1 --json
      done
      part prepare "$dir/prepare_sm90" "$out/models/load/model-00002-of-"*.safetensors
      rm -r "$out/models/load"
      ;;
    python)
      part python env SLUICE_LIBRARY="$dir/libsluice.so.0" PYTHONPATH="$root/python${PYTHONPATH:+:$PYTHONPATH}" \
        python3 -m pytest -q -p no:cacheprovider "$root/python/tests"
      ;;
    bench)
      # shellcheck disable=SC2086
      part bench "$dir/moe_sm90" ${SLUICE_BENCH_ARGS:-}
      ;;
    bench-ops)
      part bench-ops "$dir/ops_sm90"
      part bench-attention "$dir/attention_sm90"
      ;;
    *) usage ;;
  esac
done
echo
printf '%s\n' "${rows[@]}"
exit $failed
