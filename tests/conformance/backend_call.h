// SPDX-License-Identifier: Apache-2.0
// One call of a backend's layer over poisoned memory, its results as floats.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <cstring>

#include "moe/backends.h"
#include "tests/support/cases.h"

namespace sluice::test {

inline std::vector<float> widened(const Tensor& t) {
  std::vector<float> out(static_cast<size_t>(t.elements()));
  for (size_t i = 0; i < out.size(); ++i)
    out[i] = t.dtype() == DType::bf16 ? bf16_to_float(t.as<bf16_t>()[i]) : t.as<float>()[i];
  return out;
}

inline std::vector<uint32_t> bits_of(const std::vector<float>& values) {
  std::vector<uint32_t> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = std::bit_cast<uint32_t>(values[i]);
  return out;
}

inline Tensor poisoned(DType d, Shape shape) {
  Tensor t(d, std::move(shape));
  std::memset(t.data(), 0xff, static_cast<size_t>(t.bytes()));  // NaN in every float type
  return t;
}

struct Call {
  std::vector<float> output;
  std::vector<int32_t> ids;
  std::vector<float> weights;
};

inline Call call(const moe::MoeLayer& layer, const Problem& p, Context& ctx, moe::Trace* trace = nullptr,
                 Tensor* used_workspace = nullptr, bool finalize = true) {
  const MoeSpec& s = p.spec;
  Tensor out =
      poisoned(s.dtype, s.finalize && finalize ? Shape{p.tokens, s.hidden} : Shape{p.tokens, s.top_k, s.hidden});
  Tensor workspace = used_workspace ? *used_workspace : poisoned(DType::u8, {layer.workspace_bytes(p.tokens)});
  Call c;
  c.ids.assign(static_cast<size_t>(p.tokens * s.top_k), -9);
  c.weights.assign(c.ids.size(), NAN);
  moe::MoeArgs args = p.args();
  args.output = out.data();
  args.finalize = finalize;
  args.workspace = workspace.data();
  args.workspace_size = workspace.bytes();
  args.chosen_ids = c.ids.data();
  args.chosen_weights = c.weights.data();
  args.trace = trace;
  layer.run(ctx, args);
  c.output = widened(out);
  return c;
}

inline std::string backend_name(const ::testing::TestParamInfo<size_t>& param) {
  return std::string(moe::backends()[param.param]->name());
}

}  // namespace sluice::test
