// SPDX-License-Identifier: Apache-2.0
// A dense product, its result in double precision, calls of the kernels on it, and what the kernels for few rows and
// for a batch of rows are both tested for.
#pragma once

#include "format/quantize_weights.h"
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/repack/repack.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {

struct Dense {
  sm90::DenseSpec spec;
  weights::QuantTensor w;
  std::vector<float> x;
  Tensor bias;
  float input_scale = 1;
  int64_t tokens = 0;

  // With the first rows of x only.
  Dense first(int64_t count) const {
    Dense d = *this;
    d.tokens = count;
    d.x.resize(static_cast<size_t>(count * spec.cols));
    return d;
  }
};

inline Dense make(const sm90::DenseSpec& s, int64_t tokens, bool bias, std::mt19937& rng) {
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
  if (format::is_static(s.inputs))
    d.input_scale = 0.8f * amax / (s.inputs == format::InputFormat::nvfp4 ? 2688.0f : 448.0f);
  if (bias) {
    d.bias = Tensor(DType::f32, {s.rows});
    for (int64_t i = 0; i < s.rows; ++i) d.bias.as<float>()[i] = normal(rng);
  }
  return d;
}

inline void check_result(const Dense& d, const std::vector<float>& y, Excursion& all) {
  Arithmetic m;
  if (sm90::is_fp8(sm90::dense_shape(d.spec).operand)) m.product_error = kFp8TensorCoreError;
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

inline std::vector<float> run(const sm90::DenseGemm& gemm, sm90::DenseCall call, const sm90::GemmForce& force = {}) {
  const auto& s = gemm.spec();
  const sm90::DeviceBuffer y = poisoned(call.tokens * s.rows * bytes_of(s.dtype));
  const sm90::DeviceBuffer workspace = poisoned(gemm.workspace_bytes(call.tokens, force));
  call.y = y.data();
  call.workspace = workspace.data();
  call.workspace_size = workspace.bytes();
  call.force = force;
  gemm.run(call, nullptr);
  return widened(s.dtype, y);
}

inline sm90::DeviceBuffer upload_x(const Dense& d) {
  if (d.spec.dtype == DType::f32) return upload(d.x.data(), static_cast<int64_t>(d.x.size()) * 4);
  std::vector<uint16_t> narrow;
  for (float v : d.x) narrow.push_back(float_to_bf16(v));
  return upload(narrow.data(), static_cast<int64_t>(narrow.size()) * 2);
}

// Every pair of formats that runs, FP8 with float32 sums too.
inline std::vector<sm90::DenseSpec> specs_of(int64_t n, int64_t k, DType dtype) {
  std::vector<sm90::DenseSpec> out;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (bool f32_sums : {false, true}) {
        sm90::DenseSpec s{n, k, f, inputs, dtype};
        s.fp8_f32_sums = f32_sums;
        if ((!f32_sums || format::is_fp8(f)) && sm90::supports_dense(s)) out.push_back(s);
      }
  return out;
}

inline std::string describe(const sm90::DenseSpec& s, int64_t tokens) {
  return fmt::format("{} {} {} [{}, {}] T={} f32_sums={}", sluice::name_of(format::kFormats, s.weights),
                     sluice::name_of(format::kInputFormats, s.inputs), to_string(s.dtype), s.rows, s.cols, tokens,
                     s.fp8_f32_sums);
}

// bfloat16 rows `stride` elements apart, with NaN between them.
inline sm90::DeviceBuffer upload_x_apart(const Dense& d, int64_t stride) {
  std::vector<uint16_t> apart(static_cast<size_t>(d.tokens * stride), 0x7fc0);
  for (int64_t t = 0; t < d.tokens; ++t)
    for (int64_t k = 0; k < d.spec.cols; ++k)
      apart[static_cast<size_t>(t * stride + k)] = float_to_bf16(d.x[static_cast<size_t>(t * d.spec.cols + k)]);
  return upload(apart.data(), static_cast<int64_t>(apart.size()) * 2);
}

// Rows of y that lie apart, at any address: the same bits as side by side, and nothing between them is written.
inline void check_rows_of_y_apart(const sm90::DenseGemm& gemm, sm90::DenseCall call) {
  const int64_t columns = gemm.spec().rows;
  const DType dtype = call.y_dtype.value_or(gemm.spec().dtype);
  const auto run_at = [&](int64_t stride, int64_t offset) {
    const sm90::DeviceBuffer y = poisoned((call.tokens * stride + offset) * bytes_of(dtype));
    call.y = y.as<char>() + offset * bytes_of(dtype);
    call.y_stride = stride;
    gemm.run(call, nullptr);
    return widened(dtype, y);
  };
  const auto together = run_at(columns, 0);
  for (const auto& [more, offset] : {std::pair<int64_t, int64_t>{8, 0}, {4, 4}, {3, 0}, {8, 1}}) {
    const int64_t stride = columns + more;
    const auto apart = run_at(stride, offset);
    for (int64_t i = 0; i < static_cast<int64_t>(apart.size()); ++i) {
      const int64_t row = (i - offset) / stride, column = (i - offset) % stride;
      const float got = apart[static_cast<size_t>(i)];
      if (i >= offset && column < columns)
        ASSERT_EQ(got, together[static_cast<size_t>(row * columns + column)]) << stride << " " << offset << " " << i;
      else
        ASSERT_TRUE(std::isnan(got)) << stride << " " << offset << " " << i;
    }
  }
}

// Calls of a square matrix that follow each other, each reading what the one before wrote: programmatic launches change
// no bit. make(i): the i-th call, but for x, y and pdl.
template <class Make>
void check_chain(const sm90::DenseGemm& gemm, const Dense& d, Make&& make) {
  const auto chain = [&](bool pdl) {
    const sm90::DeviceBuffer x = upload_x(d), y = poisoned(x.bytes());
    for (int i = 0; i < 40; ++i) {
      sm90::DenseCall call = make(i);
      call.pdl = pdl;
      call.x = i % 2 == 0 ? x.data() : y.data();
      call.y = i % 2 == 0 ? y.data() : x.data();
      gemm.run(call, nullptr);
    }
    return widened(DType::bf16, x);
  };
  EXPECT_EQ(chain(true), chain(false));
}

}  // namespace sluice::test
