// SPDX-License-Identifier: Apache-2.0
// Random matrices in every format, and their products against double sums over rows rounded by the formats' definition.
#pragma once

#include <numeric>

#include "format/quantize_weights.h"
#include "ops/linear.h"
#include "tests/ops/conformance.h"
#include "tests/support/reference_quantize.h"

namespace sluice::ops {

inline std::vector<std::pair<format::Format, format::InputFormat>> format_pairs() {
  std::vector<std::pair<format::Format, format::InputFormat>> pairs;
  for (const auto& weights : format::kFormats)
    for (const auto& inputs : format::kInputFormats)
      if (format::fits(weights.value, inputs.value)) pairs.push_back({weights.value, inputs.value});
  return pairs;
}

inline std::string name(format::Format w, format::InputFormat x) {
  return fmt::format("{} x {}", name_of(format::kFormats, w), name_of(format::kInputFormats, x));
}

// Random [rows, cols] in a format. `size` spreads the scales of parts apart.
inline weights::QuantTensor random_weights(format::Format f, int64_t rows, int64_t cols, float size = 1) {
  weights::QuantTensor w = weights::make_quant_tensor(f, 1, rows, cols);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& v : values) v = round_to_bf16(normal(0, size));
  format::quantize_weight(f, values.data(), rows, cols, w.codes.data(), w.scales.empty() ? nullptr : w.scales.data(),
                          w.global.empty() ? nullptr : w.global.as<float>());
  return w;
}

inline LinearOptions options_for(format::InputFormat inputs, DType dtype) {
  LinearOptions o;
  o.inputs = inputs;
  o.dtype = dtype;
  o.input_scale = inputs == format::InputFormat::nvfp4 ? 4.5f / (448 * 6) : 4.5f / 448;
  return o;
}

// Null where the device does not run the format, with a sentence why not. The CPU runs them all.
inline std::unique_ptr<Linear> try_linear(Conformance& t, std::span<const weights::QuantTensor> parts,
                                          const Tensor& bias, const LinearOptions& options) {
  try {
    return make_linear(t.ctx, parts, bias, options);
  } catch (const Error& e) {
    if (e.code() != ErrorCode::unsupported || std::string_view(e.what()).empty() || t.ctx.device().id().is_host())
      throw;
    std::printf("%s: %s\n", name(parts[0].format, options.inputs).c_str(), e.what());
    return nullptr;
  }
}

// Runs with a poisoned workspace of exactly the size asked for.
inline void run(Conformance& t, const Linear& linear, const LinearInput& x, Matrix y) {
  const int64_t bytes = linear.workspace_bytes(x.rows.rows);
  Memory workspace(*t.queue, bytes);
  linear.run(t.ctx, x, y, workspace.device(), bytes);
  t.queue->wait();
  std::as_const(workspace).host();  // compares the bands around it
}

// Row r of x as the product reads it.
inline std::vector<double> rounded_row(const Rows& x, int64_t r, const LinearOptions& o) {
  std::vector<double> row(static_cast<size_t>(x.cols()));
  for (int64_t c = 0; c < x.cols(); ++c) {
    const double v = x.at(r, c);
    row[static_cast<size_t>(c)] =
        o.inputs == format::InputFormat::plain && o.dtype == DType::bf16 ? test::to_bf16(v) : v;
  }
  if (o.inputs == format::InputFormat::plain) return row;
  const auto amax = [&](int64_t begin, int64_t end) {
    double largest = 0;
    for (int64_t c = begin; c < end; ++c) largest = std::max(largest, std::abs(x.at(r, c)));
    return largest;
  };
  const double whole = amax(0, x.cols());
  const int64_t group = test::reference_group(o.inputs) > 0 ? test::reference_group(o.inputs) : x.cols();
  for (int64_t begin = 0; begin < x.cols(); begin += group) {
    const int64_t end = std::min(begin + group, x.cols());
    const double largest = amax(begin, end);
    for (int64_t c = begin; c < end; ++c)
      row[static_cast<size_t>(c)] =
          test::reference_code(o.inputs, x.at(r, c), largest, whole, double{o.input_scale}).value();
  }
  return row;
}

// Rows of float32 below each other.
inline Tensor dequantized(const std::vector<weights::QuantTensor>& parts) {
  const auto total = std::accumulate(parts.begin(), parts.end(), int64_t{0},
                                     [](int64_t n, const auto& part) { return n + part.rows; });
  Tensor all(DType::f32, {total, parts[0].cols});
  float* to = all.as<float>();
  for (const weights::QuantTensor& part : parts) {
    const Tensor values = dequantize(part);
    to = std::copy_n(values.as<float>(), values.elements(), to);
  }
  return all;
}

// weight: float32 [N, K] on the host. bias: [1, N] or empty.
inline void check_product(const Tensor& weight, const Rows* bias, const Rows& x, const LinearOptions& o,
                          const Rows& y) {
  const int64_t n = y.cols(), k = x.cols();
  for (int64_t r = 0; r < x.rows(); ++r) {
    const std::vector<double> row = rounded_row(x, r, o);
    for (int64_t i = 0; i < n; ++i) {
      const float* w = weight.as<float>() + i * k;
      Sum sum;
      if (bias != nullptr) sum.add(bias->at(0, i));
      for (int64_t c = 0; c < k; ++c) sum.add(double{w[c]} * row[static_cast<size_t>(c)]);
      const double rounding = y.dtype() == DType::bf16 ? std::abs(sum.value) * half_ulp(DType::bf16) : 0;
      ASSERT_NEAR(y.at(r, i), sum.value, sum.size * 0x1p-24 * (static_cast<double>(k) * 1.1 + 8) * 1.01 + rounding)
          << r << " " << i;
    }
  }
}

// y in bfloat16 is the product rounded once, on the host y in float32 rounded once (a GPU's two epilogues may contract
// scale and bias differently); rows alone give the bits that they give in a batch.
inline void check_rounding_and_rows(Conformance& t, const Linear& linear, const Tensor& weight, const Rows* bias,
                                    const LinearOptions& options, Rows& x, const Rows& y, bool rows_alone) {
  Rows narrow = t.rows(DType::bf16, x.rows(), y.cols());
  run(t, linear, x.view(), narrow.view());
  check_product(weight, bias, x, options, narrow);
  for (int64_t r = 0; r < x.rows() && t.ctx.device().id().is_host(); ++r)
    for (int64_t i = 0; i < y.cols(); ++i)
      ASSERT_EQ(narrow.at(r, i), round_to_bf16(static_cast<float>(y.at(r, i)))) << r << " " << i;
  EXPECT_TRUE(narrow.gaps_untouched() && y.gaps_untouched());
  if (!rows_alone) return;
  for (int64_t r = 0; r < x.rows(); ++r) {
    Rows one = t.rows(DType::f32, 1, y.cols());
    run(t, linear, x.view(r, 1), one.view());
    ASSERT_TRUE(one.same_row(0, y, r)) << "row " << r << " alone";
  }
}

}  // namespace sluice::ops
