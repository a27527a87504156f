// SPDX-License-Identifier: Apache-2.0
// Repacking of weights on the GPU.
#include <algorithm>
#include <cstdio>

#include "sm90_bench.h"

namespace sluice::bench {

// Weights of a checkpoint's layout in device memory to the layout of the GEMM: bytes read plus written over the time.
void bench_repack(const Options& o, const BenchShape& shape, const Kind& kind) {
  const MoeSpec spec = spec_of(shape, kind, false);
  sm90::FusedMoe layer(spec);
  std::mt19937_64 rng(7);
  std::vector<sm90::DeviceBuffer> keep;
  int64_t bytes = layer.weight_bytes();
  // Contents do not matter here, and host memory that is never touched costs nothing.
  const auto tensor = [&](int64_t rows, int64_t cols) {
    weights::QuantTensor q = weights::make_quant_tensor(kind.weights, shape.locals, rows, cols);
    for (Tensor* t : {&q.codes, &q.scales, &q.global}) {
      if (t->empty()) continue;
      keep.emplace_back(t->bytes());
      check_cuda(cudaMemset(keep.back().data(), 0x35, static_cast<size_t>(t->bytes())), "memset");
      bytes += t->bytes();
      *t = Tensor(t->dtype(), t->shape(), keep.back().data(), nullptr);
    }
    return q;
  };
  weights::ExpertWeights w;
  w.up = tensor(shape.inter, shape.hidden);
  if (spec.gated()) w.gate = tensor(shape.inter, shape.hidden);
  w.down = tensor(shape.hidden, shape.inter);
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<double> ms;
  constexpr int kLayers = 4;  // in a row, as a model's are
  for (int i = 0; i < 12; ++i) {
    check_cuda(cudaEventRecord(begin), "event");
    for (int j = 0; j < kLayers; ++j) layer.set_weights(w, nullptr);
    check_cuda(cudaEventRecord(end), "event");
    sm90::synchronize(nullptr);
    float elapsed = 0;
    check_cuda(cudaEventElapsedTime(&elapsed, begin, end), "event");
    ms.push_back(elapsed / kLayers);
  }
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2], tbs = static_cast<double>(bytes) / median / 1e9;
  std::printf("%-16s %-8s repack %8.3f ms  %8.1f MB read and written  %.2f TB/s  %.0f %% of copy\n", shape.name.data(),
              kind.name, median, static_cast<double>(bytes) / 1e6, tbs, 100.0 * tbs / o.copy_tbs);
}

}  // namespace sluice::bench
