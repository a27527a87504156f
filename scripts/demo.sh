#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a fresh machine: installs what is missing, builds the program, and answers a prompt with the bundled model.
#   scripts/demo.sh ["Your own beginning of a story"]
set -euo pipefail
cd "$(dirname "$0")/.."

scripts/setup.sh
cmake --preset demo >build-demo.log 2>&1 || { cat build-demo.log; exit 1; }
rm build-demo.log
cmake --build --preset demo

prompt=${1:-"Once upon a time, there was a little girl who"}
set -x
exec build/demo/bin/sluice generate --model-path models/tiny-nemotron-h --prompt "$prompt" \
  --max-new-tokens 160 --temperature 0.7 --top-k 40 --seed 7
