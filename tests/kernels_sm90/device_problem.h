// SPDX-License-Identifier: Apache-2.0
// The common cases (tests/support/cases.h) in device memory, and one call of the kernels on them.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <random>

#include "kernels/sm90/fused_moe/fused_moe.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"
#include "tests/support/reference_moe.h"

#define SLUICE_SKIP_WITHOUT_DEVICE() \
  if (const std::string problem = sluice::sm90::device_problem(); !problem.empty()) GTEST_SKIP() << problem

namespace sluice::test {

inline void cuda(cudaError_t status, const char* what = "test") { sm90::check_cuda(status, what); }

inline Arithmetic arithmetic_of(const MoeSpec& s) {
  Arithmetic a;
  if (sm90::is_fp8(sm90::gemm_problem(s, 1).operand)) a.product_error = kFp8TensorCoreError;
  return a;
}

inline sm90::DeviceBuffer upload(const void* data, int64_t bytes) {
  sm90::DeviceBuffer b(bytes);
  sm90::copy_to_device(b.data(), data, bytes, nullptr);
  sm90::synchronize(nullptr);
  return b;
}
inline sm90::DeviceBuffer upload(const Tensor& t) { return upload(t.data(), t.bytes()); }
// NaN in every float type, -1 in every integer. Waits: a stream that does not block on the default one could otherwise
// run before the poison is there, and lose its results to it.
inline void poison(const sm90::DeviceBuffer& b) {
  if (b.bytes() > 0) cuda(cudaMemset(b.data(), 0xff, static_cast<size_t>(b.bytes())));
  cuda(cudaDeviceSynchronize());
}
inline sm90::DeviceBuffer poisoned(int64_t bytes) {
  sm90::DeviceBuffer b(bytes);
  poison(b);
  return b;
}
template <class T>
std::vector<T> download(const sm90::DeviceBuffer& b) {
  std::vector<T> host(static_cast<size_t>(b.bytes()) / sizeof(T));
  cuda(cudaDeviceSynchronize());
  sm90::copy_to_host(host.data(), b.data(), b.bytes(), nullptr);
  sm90::synchronize(nullptr);
  return host;
}

inline std::vector<float> widened(DType d, const sm90::DeviceBuffer& b) {
  if (d == DType::f32) return download<float>(b);
  std::vector<float> out;
  for (uint16_t v : download<uint16_t>(b)) out.push_back(bf16_to_float(v));
  return out;
}

// Device copies of a problem's inputs with room for its results.
struct DeviceProblem {
  explicit DeviceProblem(const Problem& p)
      : spec(p.spec),
        tokens(p.tokens),
        hidden(upload(p.hidden_tensor)),
        logits(upload(p.logits)),
        bias(upload(p.bias)),
        ids(upload(p.ids)),
        given(upload(p.given_weights)) {
    const int64_t pairs = tokens * spec.top_k;
    output = poisoned((spec.finalize ? tokens : pairs) * spec.hidden * bytes_of(spec.dtype));
    chosen_ids = poisoned(pairs * 4);
    chosen_weights = poisoned(pairs * 4);
    call.tokens = tokens;
    call.hidden = hidden.data();
    call.logits = spec.routed ? nullptr : logits.data();
    call.logits_bf16 = p.logits.dtype() == DType::bf16;
    call.bias = bias.data();
    call.bias_bf16 = p.bias.dtype() == DType::bf16;
    call.topk_ids = ids.as<int32_t>();
    call.topk_weights = given.data();
    call.topk_weights_bf16 = p.given_weights.dtype() == DType::bf16;
    call.output = output.data();
    call.chosen_ids = chosen_ids.as<int32_t>();
    call.chosen_weights = chosen_weights.as<float>();
  }
  // One eager call over a poisoned workspace of exactly the size asked for; the output as floats.
  std::vector<float> run(const sm90::FusedMoe& moe, const sm90::GemmForce& force = {}, bool pdl = true) {
    const sm90::DeviceBuffer workspace = poisoned(moe.workspace_bytes(tokens, force));
    poison(output);
    sm90::MoeCall c = call;
    c.workspace = workspace.data();
    c.workspace_size = workspace.bytes();
    c.force = force;
    c.pdl = pdl;
    moe.run(c, nullptr);
    cuda(cudaDeviceSynchronize(), "the call");
    return widened(spec.dtype, output);
  }

  MoeSpec spec;
  int64_t tokens;
  sm90::DeviceBuffer hidden, logits, bias, ids, given, output, chosen_ids, chosen_weights;
  sm90::MoeCall call;
};

inline std::unique_ptr<sm90::FusedMoe> prepared(const Problem& p) {
  auto moe = std::make_unique<sm90::FusedMoe>(p.spec);
  moe->set_weights(p.weights, nullptr);
  return moe;
}

// Largest excursion from the double-precision reference in units of what is allowed; NaN counts as infinite.
struct Excursion {
  double worst = 0;
  int64_t values = 0, equal = 0;
  void add(const ReferenceMoe& r, const std::vector<float>& got) {
    EXPECT_EQ(got.size(), r.output.size());
    for (size_t i = 0; i < r.output.size(); ++i) {
      ++values;
      const double g = got[i], e = r.output[i];
      if (g == e) {
        ++equal;
        continue;
      }
      const double room = g < e ? e - r.lowest[i] : r.highest[i] - e;
      const double ratio = std::fabs(g - e) / std::max(room, 1e-300);
      worst = std::isnan(g) ? INFINITY : std::max(worst, ratio);
    }
  }
  void print(const char* what) const {
    std::printf("%-44s largest excursion %.3f of what is allowed, %.1f %% of %lld values equal the reference\n", what,
                worst, 100.0 * static_cast<double>(equal) / static_cast<double>(std::max<int64_t>(values, 1)),
                static_cast<long long>(values));
    std::fflush(stdout);
  }
};

inline ReferenceMoe reference_of(const Problem& p, const DeviceProblem& d) {
  return reference_moe(p.spec, p.weights, p.hidden, download<int32_t>(d.chosen_ids), download<float>(d.chosen_weights),
                       arithmetic_of(p.spec));
}

}  // namespace sluice::test
