#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# What one other busy process costs two-thread decode: one fused layer alone, then beside a loop that spins on no core
# in particular. The goal is to keep at least half. Other arguments go to `sluice bench moe`.
#   bench/busy_machine.sh build/ci/bin/sluice --shape qwen3-30b-a3b --format bf16,mxfp4
set -euo pipefail
[ $# -ge 1 ] || { echo "usage: bench/busy_machine.sh SLUICE [bench moe options]" >&2; exit 2; }
program=$1
shift
measure() { "$program" bench moe --threads 2 --tokens 1,8 --seconds 1 --json "$@"; }

alone=$(measure "$@")
( while :; do :; done ) &
spinner=$!
trap 'kill "$spinner"' EXIT
busy=$(measure "$@")

python3 - "$alone" "$busy" <<'PYTHON'
import json, sys
alone, busy = ([json.loads(line) for line in text.splitlines()] for text in sys.argv[1:])
print("spec, tokens, ms alone, ms beside a busy process, speed kept")
for a, b in zip(alone, busy):
    print(f'{a["spec"]}, {a["tokens"]}, {a["ms_median"]:.3f}, {b["ms_median"]:.3f}, {a["ms_median"] / b["ms_median"]:.0%}')
PYTHON
