#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Every test on a fresh machine: packages, the full build (with CUDA code where nvcc is found), ctest with the style
# checks, the same tests under ASan and UBSan, and the fuzz targets for a bounded time. SLUICE_TEST_THREADS=1: also the
# tests with several threads under TSan. SLUICE_TEST_ENGINES=1: also the Python tests beside torch, vLLM and SGLang, on the CPU.
# SLUICE_TEST_MODELS names the folder of the full trained checkpoints; tests that need it say so when they skip.
set -euo pipefail
cd "$(dirname "$0")/.."
readonly fuzz_seconds=${1:-15}

stage() { printf '\n== %s (%d s so far)\n' "$1" $SECONDS; }
# The two lines of a ctest log that people look for.
summary_of() { grep -E '^[0-9]+% tests passed' "$1"; }

stage "packages"
scripts/setup.sh test
if scripts/has_hopper.sh; then scripts/setup.sh gpu; fi

echo "full checkpoints: ${SLUICE_TEST_MODELS:-none, tests that need them skip (set SLUICE_TEST_MODELS)}"

stage "build"
cmake --preset ci
cmake --build --preset ci
mkdir -p build/logs

stage "tests"
ctest --preset ci 2>&1 | tee build/logs/ctest.txt

# On request: it installs 7 GB of packages and adds three minutes.
if [[ -n ${SLUICE_TEST_ENGINES:-} ]]; then
  stage "engines: packages"
  # PyPI can be slow; what has not come by then is not worth the rest of the time.
  timeout 900 scripts/setup.sh engines || echo "engines: not installed within 15 minutes; their tests skip"
  if [[ -e build/engines/pinned ]]; then
    stage "engines: tests"
    # Without a GPU, also where there is one: on a GPU the engines import more packages than the list has. Without the full
    # checkpoints, which the tests above read.
    env -u SLUICE_TEST_MODELS CUDA_VISIBLE_DEVICES= SLUICE_PROGRAM="$PWD/build/ci/bin/sluice" \
      SLUICE_TEST_PYTHON=build/engines/bin/python SLUICE_TEST_REQUIRE="torch vllm sglang" \
      python3 python/tests/run.py build/ci/lib/libsluice.so . python/tests 2>&1 | tee build/logs/engines.txt
  else
    echo "skipped: not installed" >build/logs/engines.txt
  fi
fi

stage "sanitizers: build"
cmake --preset asan >/dev/null
cmake --build --preset asan
stage "sanitizers: tests"
# Without the full checkpoints: the small golden fixtures take the same paths, and model_test takes 15 s instead of 333.
env -u SLUICE_TEST_MODELS ctest --preset asan 2>&1 | tee build/logs/ctest-asan.txt

# On request: it adds a quarter of an hour on two cores.
if [[ -n ${SLUICE_TEST_THREADS:-} ]]; then
  # Only tests of what threads share: pools, operations, the layer, the engine, the server.
  stage "thread sanitizer: build"
  cmake --preset tsan >/dev/null
  cmake --build --preset tsan
  stage "thread sanitizer: tests"
  # Its run time of GCC 12 ends where the system gives addresses more than 28 random bits; setarch -R takes them away.
  fixed_addresses=()
  if [[ $(cat /proc/sys/vm/mmap_rnd_bits 2>/dev/null || echo 0) -gt 28 ]] && setarch -R true 2>/dev/null; then
    fixed_addresses=(setarch -R)
  fi
  env -u SLUICE_TEST_MODELS "${fixed_addresses[@]}" ctest --preset tsan 2>&1 | tee build/logs/ctest-tsan.txt
fi

stage "fuzzing, $fuzz_seconds s per target"
cmake --preset fuzz >/dev/null
cmake --build --preset fuzz
tests/fuzz/run.sh "$fuzz_seconds"

stage "done"
echo "sanitized: $(summary_of build/logs/ctest-asan.txt)"
[[ -z ${SLUICE_TEST_ENGINES:-} ]] || echo "engines: $(grep -E '^(=+ .*passed|skipped)' build/logs/engines.txt | tr -d '=')"
[[ -z ${SLUICE_TEST_THREADS:-} ]] || echo "threads: $(summary_of build/logs/ctest-tsan.txt)"
summary_of build/logs/ctest.txt
