#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Exit 0 if the driver knows a GPU of compute capability 9.0 (H100, H200), else 1.
command -v nvidia-smi >/dev/null && nvidia-smi --query-gpu=compute_cap --format=csv,noheader 2>/dev/null | grep -q '^9\.0'
