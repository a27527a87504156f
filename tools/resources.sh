#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# No kernel in a binary may spill: reads registers, stack and local memory of each from the machine code itself.
#   tools/resources.sh FILE [BYTES]   exit 1 when a kernel has local memory or more than BYTES (0) of stack; 77 without cuobjdump
# Every kernel with a stack frame is listed, also within BYTES.
set -uo pipefail
tool=$(command -v cuobjdump || ls /usr/local/cuda/bin/cuobjdump 2>/dev/null)
if [[ -z $tool ]]; then
  echo "skipped: no cuobjdump on this machine"
  exit 77
fi
"$tool" --dump-resource-usage "$1" 2>&1 | awk -v most_stack="${2:-0}" '
  /^ *Function / { name = $2; sub(/:$/, "", name); next }
  /REG:/ {
    kernels++
    match($0, /REG:[0-9]+/); reg = substr($0, RSTART + 4, RLENGTH - 4)
    match($0, /STACK:[0-9]+/); stack = substr($0, RSTART + 6, RLENGTH - 6)
    match($0, /LOCAL:[0-9]+/); local = substr($0, RSTART + 6, RLENGTH - 6)
    if (reg + 0 > most) most = reg + 0
    if (stack + 0 > most_stack || local + 0 > 0) bad++
    if (stack + 0 > 0 || local + 0 > 0) { framed++; print "stack " stack " local " local " registers " reg ": " name }
  }
  END {
    printf "%d kernels, at most %d registers, %d with a stack frame or local memory\n", kernels, most, framed
    exit kernels == 0 || bad > 0
  }' | { c++filt 2>/dev/null || cat; }
