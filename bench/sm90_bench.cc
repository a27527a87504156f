// SPDX-License-Identifier: Apache-2.0
#include "sm90_bench.h"

#include <algorithm>
#include <numeric>

namespace sluice::bench {

const std::vector<Kind> kKinds = {
    {"bf16", format::Format::bf16, format::InputFormat::plain, 16, false},
    {"fp8pt", format::Format::fp8_tensor, format::InputFormat::fp8_static, 8, true},
    {"fp8blk", format::Format::fp8_block, format::InputFormat::fp8_group, 8, true},
    {"fp8pt32", format::Format::fp8_tensor, format::InputFormat::fp8_static, 8.25, false, true},
    {"fp8blk32", format::Format::fp8_block, format::InputFormat::fp8_group, 8.25, false, true},
    {"mxfp8", format::Format::mxfp8, format::InputFormat::mxfp8, 8.25, false},
    {"nvfp4", format::Format::nvfp4, format::InputFormat::nvfp4, 4.5, false},
    {"nvfp4tok", format::Format::nvfp4, format::InputFormat::nvfp4_token, 4.5, false},
    {"fp8tok", format::Format::fp8_channel, format::InputFormat::fp8_token, 8.0, true},
    {"fp8tok32", format::Format::fp8_channel, format::InputFormat::fp8_token, 8.25, false, true},
    {"mxfp4", format::Format::mxfp4, format::InputFormat::plain, 4.25, false},
};

double measure_copy() {
  const int64_t bytes = int64_t{4} << 30;
  sm90::DeviceBuffer a(bytes), b(bytes);
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(start);
    cudaMemcpyAsync(a.data(), b.data(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice);
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    ms.push_back(0);
    cudaEventElapsedTime(&ms.back(), start, stop);
  }
  std::sort(ms.begin(), ms.end());
  return 2.0 * static_cast<double>(bytes) / ms[ms.size() / 2] / 1e9;
}

void fill(sm90::RepackedMatrix& m, std::mt19937_64& rng) {
  using sm90::WeightOperand;
  const WeightOperand op = m.shape.operand;
  const int k_block = sm90::k_block_bytes(op), codes = sm90::k_block_code_bytes(op);
  std::vector<uint64_t> host(static_cast<size_t>(k_block) * 1024 / 8);
  for (uint64_t& v : host) v = rng();
  auto* bytes = reinterpret_cast<uint8_t*>(host.data());
  for (int s = 0; s < 1024; ++s) {
    uint8_t* p = bytes + static_cast<int64_t>(s) * k_block;
    if (op == WeightOperand::bf16)
      for (int i = 0; i < codes; i += 2) p[i + 1] = static_cast<uint8_t>((p[i + 1] & 0x80) | 0x3c);
    else if (sm90::is_fp8(op))
      for (int i = 0; i < codes; ++i) p[i] &= 0xbf;
    else if (sm90::decodes_e4m3(op))  // the top exponent bits of place_e4m3
      for (int i = 1; i < codes; i += 2) p[i] &= 0xbb;
    for (int i = codes; i < k_block; ++i)
      p[i] = op == WeightOperand::nvfp4 ? static_cast<uint8_t>(0x40 + (p[i] & 15))
                                        : static_cast<uint8_t>((sm90::decodes_e4m3(op) ? 246 : 252) + (p[i] & 1));
  }
  const int64_t total = m.weights.bytes(), block = static_cast<int64_t>(host.size()) * 8;
  sm90::copy_to_device(m.weights.data(), bytes, std::min(block, total), nullptr);
  for (int64_t done = block; done < total; done *= 2)
    check_cuda(cudaMemcpyAsync(m.weights.as<uint8_t>() + done, m.weights.data(),
                               static_cast<size_t>(std::min(done, total - done)), cudaMemcpyDeviceToDevice),
               "fill");
  for (sm90::DeviceBuffer* b : {&m.row_scale, &m.block_scale}) {
    std::vector<float> scales(static_cast<size_t>(b->bytes() / 4), 0.01f);
    sm90::copy_to_device(b->data(), scales.data(), b->bytes(), nullptr);
  }
  sm90::synchronize(nullptr);
}

double replayed_us(int calls, int replays, const std::function<void(cudaStream_t, int)>& call) {
  cudaStream_t stream;
  cudaGraph_t graph;
  cudaGraphExec_t exec;
  check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
  check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  for (int c = 0; c < calls; ++c) call(stream, c);
  check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
  check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms;
  for (int i = 0; i < replays + 2; ++i) {
    cudaEventRecord(start, stream);
    check_cuda(cudaGraphLaunch(exec, stream), "replay");
    cudaEventRecord(stop, stream);
    check_cuda(cudaEventSynchronize(stop), "replay");
    float t = 0;
    cudaEventElapsedTime(&t, start, stop);
    if (i >= 2) ms.push_back(t);
  }
  cudaEventDestroy(start);
  cudaEventDestroy(stop);
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaStreamDestroy(stream);
  std::sort(ms.begin(), ms.end());
  return ms[ms.size() / 2] * 1000.0 / calls;
}

MoeSpec spec_of(const BenchShape& shape, const Kind& kind, bool logits) {
  MoeSpec spec = spec_of(shape, kind.weights);
  spec.inputs = kind.inputs;
  spec.fp8_f32_sums = kind.f32_sums;
  spec.routed = !logits;
  return spec;
}

}  // namespace sluice::bench
