#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# On a fresh machine: installs what is missing, builds the program, and answers a prompt with the bundled model, on a
# Hopper GPU if there is one, else on the CPU.
#   scripts/demo.sh ["Your own beginning of a story"]
set -euo pipefail
cd "$(dirname "$0")/.."

cuda=OFF device=cpu
scripts/setup.sh
if scripts/has_hopper.sh; then
  echo "demo: this machine has a Hopper GPU: building with CUDA, and the whole model runs there (--device cuda)"
  scripts/setup.sh gpu
  cuda=ON device=cuda
else
  echo "demo: no Hopper GPU here (H100, H200): the model runs on the CPU"
fi
cmake --preset demo -DSLUICE_CUDA=$cuda >build-demo.log 2>&1 || { cat build-demo.log; exit 1; }
rm build-demo.log
cmake --build --preset demo

prompt=${1:-"Once upon a time, there was a little girl who"}
set -x
exec build/demo/bin/sluice generate --model-path models/tiny-nemotron-h --prompt "$prompt" --device $device \
  --max-new-tokens 160 --temperature 0.7 --top-k 40 --seed 7
