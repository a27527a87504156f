// SPDX-License-Identifier: Apache-2.0
// The dense GEMM in every format against double precision, from plain rows and from rows that are quantised already.
#include "kernels/sm90/dense/dense_gemm.h"
#include "format/quantize_weights.h"
#include "kernels/sm90/prepare/prepare.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {
namespace {

using format::InputFormat;
using format::ScaleLayout;

struct Dense {
  sm90::DenseSpec spec;
  weights::QuantTensor w;
  std::vector<float> x;
  Tensor bias;
  float input_scale = 1;
  int64_t tokens = 0;
};

Dense make(const sm90::DenseSpec& s, int64_t tokens, bool bias, std::mt19937& rng) {
  Dense d{s, weights::make_quant_tensor(s.weights, 1, s.rows, s.cols), {}, {}, 1, tokens};
  std::normal_distribution<float> normal;
  std::vector<float> w;
  for (int64_t i = 0; i < s.rows * s.cols; ++i)
    w.push_back(normal(rng) / std::sqrt(static_cast<float>(s.cols)) * (rng() % 400 == 0 ? 12.0f : 1.0f));
  format::quantize_weight(s.weights, w.data(), s.rows, s.cols, d.w.codes.data(),
                          d.w.scales.empty() ? nullptr : d.w.scales.data(),
                          d.w.global.empty() ? nullptr : d.w.global.as<float>());
  float amax = 0;
  for (int64_t i = 0; i < tokens * s.cols; ++i) {
    const float v = normal(rng) * (rng() % 200 == 0 ? 20.0f : 1.0f);
    d.x.push_back(s.dtype == DType::bf16 ? round_to_bf16(v) : v);
    amax = std::max(amax, std::fabs(v));
  }
  if (format::is_static(s.inputs)) d.input_scale = 0.8f * amax / (s.inputs == InputFormat::nvfp4 ? 2688.0f : 448.0f);
  if (bias) {
    d.bias = Tensor(DType::f32, {s.rows});
    for (int64_t i = 0; i < s.rows; ++i) d.bias.as<float>()[i] = normal(rng);
  }
  return d;
}

void check_result(const Dense& d, const std::vector<float>& y, Excursion& all) {
  Arithmetic m;
  if (sm90::is_fp8(sm90::operand_of(d.spec.weights))) m.product_error = kFp8TensorCoreError;
  const auto w = reference_decode(d.w);
  const auto cols = static_cast<size_t>(d.spec.cols), rows = static_cast<size_t>(d.spec.rows);
  ASSERT_EQ(y.size(), static_cast<size_t>(d.tokens) * rows);
  for (size_t t = 0; t < static_cast<size_t>(d.tokens); ++t) {
    std::vector<Bounded> x(cols);
    for (size_t k = 0; k < cols; ++k) x[k] = {d.x[t * cols + k], 0};
    round_bounded_row(d.spec.inputs, x.data(), d.spec.cols, d.input_scale);
    for (size_t n = 0; n < rows; ++n) {
      double sum = d.bias.empty() ? 0.0 : d.bias.as<float>()[n], magnitude = std::fabs(sum);
      for (size_t k = 0; k < cols; ++k) {
        sum += x[k].value * w[n * cols + k];
        magnitude += std::fabs(x[k].value * w[n * cols + k]);
      }
      const double slack = (m.sum_error(static_cast<double>(cols)) + m.product_error) * magnitude;
      const auto round = [&](double v) { return d.spec.dtype == DType::bf16 ? to_bf16(v) : to_f32(v); };
      const double got = y[t * rows + n], expected = round(sum);
      ++all.values;
      if (got == expected) {
        ++all.equal;
        continue;
      }
      const double room = got < expected ? expected - round(sum - slack) : round(sum + slack) - expected;
      all.worst = std::isnan(got) ? INFINITY : std::max(all.worst, std::fabs(got - expected) / std::max(room, 1e-300));
    }
  }
}

std::vector<float> run(const sm90::DenseGemm& gemm, sm90::DenseCall call, const sm90::GemmForce& force = {}) {
  const auto& s = gemm.spec();
  const sm90::DeviceBuffer y = poisoned(call.tokens * s.rows * bytes_of(s.dtype));
  const sm90::DeviceBuffer workspace = poisoned(gemm.workspace_bytes(call.tokens, force));
  call.y = y.data();
  call.workspace = workspace.data();
  call.force = force;
  gemm.run(call, nullptr);
  return widened(s.dtype, y);
}

sm90::DeviceBuffer upload_x(const Dense& d) {
  if (d.spec.dtype == DType::f32) return upload(d.x.data(), static_cast<int64_t>(d.x.size()) * 4);
  std::vector<uint16_t> narrow;
  for (float v : d.x) narrow.push_back(float_to_bf16(v));
  return upload(narrow.data(), static_cast<int64_t>(narrow.size()) * 2);
}

TEST(DenseGemm, EveryFormat) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (DType dtype : {DType::bf16, DType::f32})
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 128}, {1856, 96}, {96, 2688}, {257, 224}})
          for (int64_t tokens : {1, 5, 64, 333}) {
            const sm90::DenseSpec s{n, k, f, inputs, dtype};
            if (!sm90::supports_dense(s)) continue;
            SCOPED_TRACE(fmt::format("{} {} {} [{}, {}] T={}", name, input_name, to_string(dtype), n, k, tokens));
            const Dense d = make(s, tokens, tokens == 5, rng);
            sm90::DenseGemm gemm(s);
            gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
            const sm90::DeviceBuffer x = upload_x(d);
            sm90::DenseCall call;
            call.tokens = tokens;
            call.x = x.data();
            const auto y = run(gemm, call);
            check_result(d, y, all);
            EXPECT_LE(all.worst, 1);
            EXPECT_EQ(y, run(gemm, call)) << "the second time";
            if (HasFailure()) return;
          }
  all.print("dense GEMM");
}

// Rounding by the quantiser and then multiplying equals the call that rounds, bit for bit, from every layout.
TEST(DenseGemm, QuantisedRowsGiveTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const auto& [layout, layout_name] : format::kScaleLayouts)
        for (int64_t tokens : {3, 200}) {
          const sm90::DenseSpec s{192, 352, f, inputs, DType::bf16};
          if (inputs == InputFormat::plain || !sm90::supports_dense(s)) continue;
          const auto coding = parse_name(sm90::kCodings, "coding", input_name);
          const int group = sm90::coding_group(coding);
          const bool floats = coding == sm90::Coding::fp8_group;
          if (layout != ScaleLayout::linear && (group == 0 || (layout == ScaleLayout::transposed) != floats)) continue;
          SCOPED_TRACE(fmt::format("{} {} {} T={}", name, input_name, layout_name, tokens));
          const Dense d = make(s, tokens, false, rng);
          sm90::DenseGemm gemm(s);
          gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
          const sm90::DeviceBuffer x = upload_x(d), scale = upload(&d.input_scale, 4);
          const int64_t groups = group > 0 ? (s.cols + group - 1) / group : 0;
          const sm90::DeviceBuffer codes = poisoned(tokens * s.cols), rows = poisoned(tokens * 4);
          const sm90::DeviceBuffer scales = poisoned(format::scale_elements(layout, tokens, groups) * (floats ? 4 : 1));
          sm90::QuantizeArgs q{};
          q.coding = coding;
          q.x = x.data();
          q.rows = tokens;
          q.cols = static_cast<int>(s.cols);
          q.input_scale = scale.as<float>();
          q.codes = codes.as<uint8_t>();
          q.scales = group > 0 ? scales.data() : nullptr;
          q.layout = layout;
          const bool by_row = coding == sm90::Coding::fp8_token || coding == sm90::Coding::nvfp4_token;
          q.row_scales = by_row ? rows.as<float>() : nullptr;
          sm90::launch_quantize(q, nullptr, true);
          sm90::DenseCall call;
          call.tokens = tokens;
          call.codes = codes.as<uint8_t>();
          call.scales = q.scales;
          call.layout = layout;
          call.row_scales = q.row_scales;
          const auto from_codes = run(gemm, call);
          call = {};
          call.tokens = tokens;
          call.x = x.data();
          EXPECT_EQ(from_codes, run(gemm, call));
          if (HasFailure()) return;
        }
}

}  // namespace
}  // namespace sluice::test
