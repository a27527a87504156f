// SPDX-License-Identifier: Apache-2.0
// What the GPU benchmarks share: weights, timing.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>
#include <random>

#include "kernels/sm90/fused_moe/fused_moe.h"
#include "moe_cells_sm90.h"

namespace sluice::bench {

using sm90::check_cuda;

// Random codes of moderate size over the whole repacked matrix; scales near what a trained layer has.
void fill(sm90::RepackedMatrix& m, std::mt19937_64& rng);

// One CUDA graph of `calls` calls: microseconds per call, the median of its replays.
double replayed_us(int calls, int replays, const std::function<void(cudaStream_t, int)>& call);

MoeSpec spec_of(const BenchShape& shape, const Kind& kind, bool logits);

void bench_dense(const Options& o);
void bench_repack(const Options& o, const BenchShape& shape, const Kind& kind);

}  // namespace sluice::bench
