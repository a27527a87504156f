// SPDX-License-Identifier: Apache-2.0
// Matrix products in every pair of formats against double sums over rows rounded by the formats' definition.
#include "ops/linear.h"

#include <numeric>

#include "format/quantize_weights.h"
#include "tests/ops/conformance.h"
#include "tests/support/reference_quantize.h"
#include "weights/pad.h"

namespace sluice::ops {
namespace {

using format::Format;
using format::InputFormat;

std::vector<std::pair<Format, InputFormat>> format_pairs() {
  std::vector<std::pair<Format, InputFormat>> pairs;
  for (const auto& weights : format::kFormats)
    for (const auto& inputs : format::kInputFormats)
      if (format::fits(weights.value, inputs.value)) pairs.push_back({weights.value, inputs.value});
  return pairs;
}

std::string name(Format w, InputFormat x) {
  return fmt::format("{} x {}", name_of(format::kFormats, w), name_of(format::kInputFormats, x));
}

// Random [rows, cols] in a format. `size` spreads the scales of parts apart.
weights::QuantTensor random_weights(Format f, int64_t rows, int64_t cols, float size = 1) {
  weights::QuantTensor w = weights::make_quant_tensor(f, 1, rows, cols);
  std::vector<float> values(static_cast<size_t>(rows * cols));
  for (float& v : values) v = round_to_bf16(normal(0, size));
  format::quantize_weight(f, values.data(), rows, cols, w.codes.data(), w.scales.empty() ? nullptr : w.scales.data(),
                          w.global.empty() ? nullptr : w.global.as<float>());
  return w;
}

LinearOptions options_for(InputFormat inputs, DType dtype) {
  LinearOptions o;
  o.inputs = inputs;
  o.dtype = dtype;
  o.input_scale = inputs == InputFormat::nvfp4 ? 4.5f / (448 * 6) : 4.5f / 448;
  return o;
}

// Null where the device does not run the format, with a sentence why not. The CPU runs them all.
std::unique_ptr<Linear> try_linear(Conformance& t, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                                   const LinearOptions& options) {
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
void run(Conformance& t, const Linear& linear, ConstMatrix x, Matrix y) {
  const int64_t bytes = linear.workspace_bytes(x.rows);
  Memory workspace(*t.queue, bytes);
  linear.run(t.ctx, x, y, workspace.device(), bytes);
  t.queue->wait();
  std::as_const(workspace).host();  // compares the bands around it
}

// Row r of x as the product reads it.
std::vector<double> rounded_row(const Rows& x, int64_t r, const LinearOptions& o) {
  std::vector<double> row(static_cast<size_t>(x.cols()));
  for (int64_t c = 0; c < x.cols(); ++c) {
    const double v = x.at(r, c);
    row[static_cast<size_t>(c)] = o.inputs == InputFormat::plain && o.dtype == DType::bf16 ? test::to_bf16(v) : v;
  }
  if (o.inputs == InputFormat::plain) return row;
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
Tensor dequantized(const std::vector<weights::QuantTensor>& parts) {
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
void check_product(const Tensor& weight, const Rows* bias, const Rows& x, const LinearOptions& o, const Rows& y) {
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
void check_rounding_and_rows(Conformance& t, const Linear& linear, const Tensor& weight, const Rows* bias,
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

void check_linear(Conformance& t, Format weights, LinearOptions options, int64_t n, int64_t k) {
  const std::vector<weights::QuantTensor> parts{random_weights(weights, n, k)};
  Rows bias = t.rows(DType::f32, 1, n, 0);
  for (int64_t i = 0; i < n; ++i) bias.set(0, i, static_cast<double>(i) * 0.25);
  Tensor host_bias(DType::f32, {n});
  for (int64_t i = 0; i < n; ++i) host_bias.as<float>()[i] = static_cast<float>(bias.at(0, i));
  const auto linear = try_linear(t, parts, host_bias, options);
  if (linear == nullptr) {  // a format that the device does not run in any size
    EXPECT_EQ(try_linear(t, std::vector{random_weights(weights, 128, 128)}, {}, options), nullptr)
        << name(weights, options.inputs) << " n " << n << " k " << k;
    return;
  }
  EXPECT_EQ(linear->inputs(), k);
  EXPECT_EQ(linear->outputs(), n);
  EXPECT_GE(linear->weight_bytes(), n * k * info(weights).bits / 8);
  const Tensor dense = dequantize(parts[0]);
  for (const int64_t tokens : {1, 3, 17, 140}) {
    SCOPED_TRACE(fmt::format("{} {} n {} k {} T {} deterministic {}", name(weights, options.inputs),
                             to_string(options.dtype), n, k, tokens, options.deterministic));
    Rows x = t.rows(options.dtype, tokens, k), y = t.rows(DType::f32, tokens, n);
    x.randomize();
    run(t, *linear, x.view(), y.view());
    check_product(dense, &bias, x, options, y);
    check_rounding_and_rows(t, *linear, dense, &bias, options, x, y, options.deterministic);
  }
}

TEST_P(Conformance, LinearInEveryFormatAndType) {
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const auto& [n, k] : {std::pair<int64_t, int64_t>{5, 64}, {70, 290}, {33, 40}, {130, 256}, {1, 2}})
        for (const bool deterministic : {true, false}) {
          // Without it only the size of the sums' errors counts: one shape shows that.
          if (!deterministic && n != 70) continue;
          LinearOptions options = options_for(inputs, dtype);
          options.deterministic = deterministic;
          check_linear(*this, weights, options, n, k);
        }
}

TEST_P(Conformance, LinearTakesBothTypesOfInputs) {
  // x of the other type than the run's: `plain` rounds it to the run's type, the others round it as it is.
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes) {
      SCOPED_TRACE(fmt::format("{} {}", name(weights, inputs), to_string(dtype)));
      const std::vector<weights::QuantTensor> parts{random_weights(weights, 33, 96)};
      const LinearOptions options = options_for(inputs, dtype);
      const auto linear = try_linear(*this, parts, {}, options);
      if (linear == nullptr) continue;
      Rows x = rows(dtype == DType::f32 ? DType::bf16 : DType::f32, 5, 96), y = rows(DType::f32, 5, 33);
      x.randomize();
      run(*this, *linear, x.view(), y.view());
      check_product(dequantize(parts[0]), nullptr, x, options, y);
    }
}

// Matrices whose last groups of columns are short: those that can and cannot be put below each other, on the host and
// in the device's memory.
TEST_P(Conformance, LinearOfColumnsThatFillNoGroups) {
  constexpr int64_t kCols = 72, kTokens = 19;
  for (const auto& [weights, inputs] : format_pairs())
    for (const float size : {1.0f, 5.0f}) {
      if (weights::small_group(weights) == 1) continue;
      SCOPED_TRACE(fmt::format("{} size of the second {}", name(weights, inputs), size));
      std::vector<weights::QuantTensor> parts{random_weights(weights, 40, kCols),
                                              random_weights(weights, 7, kCols, size)};
      if (size == 1 && !parts[0].global.empty()) parts[1].global = parts[0].global;
      const LinearOptions options = options_for(inputs, DType::bf16);
      const auto linear = try_linear(*this, parts, {}, options);
      if (linear == nullptr) continue;
      Rows x = rows(DType::bf16, kTokens, kCols), y = rows(DType::f32, kTokens, 47), same = y;
      x.randomize();
      run(*this, *linear, x.view(), y.view());
      check_product(dequantized(parts), nullptr, x, options, y);
      for (weights::QuantTensor& part : parts) {
        part.codes = part.codes.to(ctx.device().id(), *queue);
        part.scales = part.scales.to(ctx.device().id(), *queue);
        queue->wait();
      }
      run(*this, *make_linear(ctx, parts, {}, options), x.view(), same.view());
      ASSERT_TRUE(same.same_bytes(y)) << "weights of the device";
    }
}

// Rows so long that a GPU, which pads them, takes the largest batch in two pieces.
TEST_P(Conformance, LinearOfLongRowsThatFillNoGroups) {
  LinearOptions options;
  options.deterministic = true;
  check_linear(*this, Format::mxfp4, options, 2, 33010);
}

TEST_P(Conformance, LinearOfLongBatchesAndNoRows) {
  const int64_t n = 20, k = 40, tokens = 2500;
  const std::vector<weights::QuantTensor> parts{random_weights(Format::bf16, n, k)};
  const auto linear = make_linear(ctx, parts);
  const Tensor dense = dequantize(parts[0]);
  Rows x = rows(DType::bf16, tokens, k), y = rows(DType::f32, tokens, n);
  x.randomize();
  run(*this, *linear, x.view(), y.view());
  check_product(dense, nullptr, x, {}, y);
  EXPECT_TRUE(y.gaps_untouched());
  const Rows before = y;
  run(*this, *linear, x.view(0, 0), y.view(0, 0));
  EXPECT_TRUE(y.same_bytes(before));
}

TEST_P(Conformance, LinearWorkspaceGrowsWithRowsAndIsChecked) {
  for (const auto& [weights, inputs] : format_pairs()) {
    SCOPED_TRACE(name(weights, inputs));
    const std::vector<weights::QuantTensor> parts{random_weights(weights, 40, 64)};
    const auto linear = try_linear(*this, parts, {}, options_for(inputs, DType::bf16));
    if (linear == nullptr) continue;
    int64_t last = 0;
    for (int64_t t = 0; t <= 2500; t += t < 40 ? 1 : 41) {
      const int64_t bytes = linear->workspace_bytes(t);
      ASSERT_GE(bytes, last) << t;
      last = bytes;
    }
    for (const int64_t t : {1, 17, 1024, 1100}) {
      const int64_t bytes = linear->workspace_bytes(t);
      if (bytes == 0) continue;
      Rows x = rows(DType::bf16, t, 64), y = rows(DType::bf16, t, 40);
      Memory workspace(*queue, bytes);
      try {
        linear->run(ctx, x.view(), y.view(), workspace.device(), bytes - 1);
        ADD_FAILURE() << t << " rows in a workspace that is a byte too small";
      } catch (const Error& e) {
        EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
        EXPECT_NE(std::string_view(e.what()).find(std::to_string(bytes)), std::string_view::npos) << e.what();
      }
      EXPECT_TRUE(y.row_untouched(0));
    }
  }
}

TEST_P(Conformance, LinearOfPartsIsThatOfTheirConcatenation) {
  struct Sizes {
    std::vector<int64_t> rows;
    bool equal_scales;  // of whole matrices: they fit one tensor
  };
  constexpr int64_t kCols = 160;
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const Sizes& sizes :
           {Sizes{{128, 256, 128}, true}, {{40, 7, 130}, true}, {{1, 33, 20}, false}, {{96, 5}, false}}) {
        SCOPED_TRACE(fmt::format("{} {} {} parts, the first of {} rows, equal scales {}", name(weights, inputs),
                                 to_string(dtype), sizes.rows.size(), sizes.rows[0], sizes.equal_scales));
        std::vector<weights::QuantTensor> parts;
        float size = 1;
        int64_t total = 0;
        for (const int64_t n : sizes.rows) {
          parts.push_back(random_weights(weights, n, kCols, sizes.equal_scales ? 1 : size));
          size *= 5;
          total += n;
          if (!sizes.equal_scales) continue;
          if (!parts[0].global.empty()) parts.back().global = parts[0].global;
          if (weights == Format::fp8_tensor) parts.back().scales = parts[0].scales;
        }
        Tensor bias(DType::f32, {total});
        for (int64_t i = 0; i < total; ++i) bias.as<float>()[i] = normal();
        LinearOptions options = options_for(inputs, dtype);
        options.deterministic = true;
        const auto joined = try_linear(*this, parts, bias, options);
        if (joined == nullptr) continue;
        ASSERT_EQ(joined->outputs(), total);
        Rows x = rows(dtype, 19, kCols), y = rows(DType::f32, 19, total), singles = y;
        x.randomize();
        run(*this, *joined, x.view(), y.view());

        int64_t first = 0;
        std::vector<double> exact;
        for (const weights::QuantTensor& part : parts) {
          Tensor own(DType::f32, {part.rows});
          std::copy_n(bias.as<float>() + first, part.rows, own.as<float>());
          const auto single = make_linear(ctx, {&part, 1}, own, options);
          run(*this, *single, x.view(), singles.view().columns(first, part.rows));
          first += part.rows;
        }
        ASSERT_TRUE(singles.same_bytes(y)) << "single products";
        if (const auto one = weights::concatenate_rows(parts)) {
          Rows again = rows(DType::f32, 19, total);
          run(*this, *make_linear(ctx, {&*one, 1}, bias, options), x.view(), again.view());
          ASSERT_TRUE(again.same_bytes(y)) << "one matrix";
        }
        const Tensor dense = dequantized(parts);  // and the values
        Rows bias_row = rows(DType::f32, 1, total);
        for (int64_t i = 0; i < total; ++i) bias_row.set(0, i, bias.as<float>()[i]);
        check_product(dense, &bias_row, x, options, y);
        // One row and a bfloat16 result.
        check_rounding_and_rows(*this, *joined, dense, &bias_row, options, x, y, true);
      }
}

// Codes that a norm made of the rows give the bits that the rows give, or, where a kernel of another order of sums may
// take them, values within the same bounds. Codes of another rounding are not read.
TEST_P(Conformance, LinearOfRoundedRowsIsThatOfTheirValues) {
  for (const auto& [weights, inputs] : format_pairs())
    for (const DType dtype : kTypes)
      for (const auto& [k, tokens] : {std::pair<int64_t, int64_t>{264, 3}, {128, 17}, {2048, 70}, {264, 300}})
        for (const bool deterministic : {true, false}) {
          SCOPED_TRACE(fmt::format("{} {} K {} T {} deterministic {}", name(weights, inputs), to_string(dtype), k,
                                   tokens, deterministic));
          const std::vector<weights::QuantTensor> parts{random_weights(weights, 40, k), random_weights(weights, 8, k)};
          LinearOptions options = options_for(inputs, dtype);
          options.deterministic = deterministic;
          const auto linear = try_linear(*this, parts, {}, options);
          if (linear == nullptr) continue;
          const Rounding wanted = linear->rounding(tokens);
          EXPECT_FALSE(wanted && ctx.device().id().is_host());
          EXPECT_TRUE(!wanted || wanted.format == inputs);
          Rows x = rows(dtype, tokens, k, 0), normed = rows(dtype, tokens, k, 0), weight = vector(k, 0.5f, 1);
          Rows y = rows(DType::f32, tokens, 48), same = y, other = y;
          x.randomize();
          const auto codes = [&](const Rounding& rounding) {
            const RoundedRows out = ops->workspace().rounded_rows(rounding, tokens, k);
            ops->rms_norm(x.view(), {weight.tensor({k})}, normed.view(), out);
            return out;
          };
          const auto run_coded = [&](const RoundedRows& rounded, Rows& to) {
            const int64_t bytes = linear->workspace_bytes(tokens);
            Memory workspace(*queue, bytes);
            linear->run(ctx, {normed.view(), rounded}, to.view(), workspace.device(), bytes);
            queue->wait();
          };
          const Workspace::Scope scope(ops->workspace());
          const RoundedRows rounded = codes(wanted);
          run_coded({}, y);
          run_coded(rounded, same);
          if (deterministic || ctx.device().id().is_host())
            ASSERT_TRUE(y.same_bytes(same));
          else
            check_product(dequantized(parts), nullptr, normed, options, same);
          run_coded(codes({InputFormat::fp8_static, 7.0f}), other);
          ASSERT_TRUE(y.same_bytes(other)) << "with codes of another rounding";
        }
}

TEST_P(Conformance, LinearBiasInBfloat16) {
  const std::vector<weights::QuantTensor> parts{random_weights(Format::bf16, 21, 32)};
  Tensor narrow(DType::bf16, {21}), wide(DType::f32, {21});
  for (int64_t i = 0; i < 21; ++i) {
    narrow.as<bf16_t>()[i] = float_to_bf16(normal());
    wide.as<float>()[i] = bf16_to_float(narrow.as<bf16_t>()[i]);
  }
  Rows x = rows(DType::bf16, 3, 32), y = rows(DType::f32, 3, 21), same = y;
  x.randomize();
  run(*this, *make_linear(ctx, parts, narrow), x.view(), y.view());
  run(*this, *make_linear(ctx, parts, wide), x.view(), same.view());
  EXPECT_TRUE(y.same_bytes(same));
}

TEST_P(Conformance, LinearSaysWhatIsWrong) {
  const auto expect_refused = [](auto&& call) {
    try {
      call();
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_TRUE(e.code() == ErrorCode::invalid_argument || e.code() == ErrorCode::unsupported) << e.what();
    }
  };
  const std::vector<weights::QuantTensor> one{random_weights(Format::bf16, 4, 8)};
  LinearOptions options;
  options.inputs = InputFormat::fp8_group;
  expect_refused([&] { make_linear(ctx, one, {}, options); });
  expect_refused([&] { make_linear(ctx, one, Tensor(DType::f32, {3}).zero()); });
  expect_refused([&] { make_linear(ctx, std::span<const weights::QuantTensor>{}); });
  const std::vector<weights::QuantTensor> widths{one[0], random_weights(Format::bf16, 4, 10)};
  expect_refused([&] { make_linear(ctx, widths); });
  const std::vector<weights::QuantTensor> formats{one[0], random_weights(Format::fp8_channel, 4, 8)};
  expect_refused([&] { make_linear(ctx, formats); });
  const std::vector<weights::QuantTensor> stack{weights::make_quant_tensor(Format::bf16, 2, 4, 8)};
  expect_refused([&] { make_linear(ctx, stack); });

  const auto linear = make_linear(ctx, one);
  const auto expect_shapes_refused = [&](ConstMatrix x, Matrix y) {
    Memory workspace(*queue, linear->workspace_bytes(8));
    expect_refused([&] { linear->run(ctx, x, y, workspace.device(), workspace.bytes()); });
  };
  Rows x = rows(DType::f32, 2, 8), y = rows(DType::f32, 2, 4);
  expect_shapes_refused(x.view().columns(0, 7), y.view());
  expect_shapes_refused(x.view(), y.view().columns(0, 3));
  expect_shapes_refused(x.view(), y.view(0, 1));
  ConstMatrix ints = x.view();
  ints.dtype = DType::i32;
  expect_shapes_refused(ints, y.view());
  EXPECT_TRUE(y.row_untouched(0));
}

// Work is cut into tasks of some rows each: none of no rows.
TEST(CpuLinear, RefusesMatricesWithoutElements) {
  ThreadPool pool(1);
  Context ctx{pool};
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{0, 64}, {64, 0}, {0, 0}}) {
    weights::QuantTensor w;
    w.experts = 1, w.rows = n, w.cols = k;
    w.codes = Tensor(DType::bf16, {1, n, k});
    try {
      make_linear(ctx, std::vector<weights::QuantTensor>{w});
      ADD_FAILURE() << n << " x " << k;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find(fmt::format("[{}, {}]", n, k)), std::string::npos) << e.what();
    }
  }
}

TEST(CpuLinear, RefusesMoreThreadsThanItWasPackedFor) {
  // Its workspace has room for as many threads.
  const FreshRandom fresh;
  ThreadPool two(2), three(3);
  Context packed{two}, run{three};
  const std::vector<weights::QuantTensor> parts{random_weights(Format::bf16, 4, 8)};
  for (const auto& linear :
       {make_linear(packed, parts), make_float_linear(packed, Tensor(DType::f32, {4, 8}).zero())}) {
    Tensor x(DType::f32, {1, 8}), y(DType::f32, {1, 4}), workspace(DType::u8, {linear->workspace_bytes(1)});
    const ConstMatrix from{x.zero().data(), DType::f32, 1, 8, 8};
    const Matrix to{y.data(), DType::f32, 1, 4, 4};
    linear->run(packed, from, to, workspace.data(), workspace.bytes());
    try {
      linear->run(run, from, to, workspace.data(), workspace.bytes());
      ADD_FAILURE() << "accepted";
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_EQ(std::string_view(e.what()), "the layer was prepared for 2 threads and is run by 3");
    }
  }
}

TEST_P(Conformance, FloatLinear) {
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8, 64}, {5, 33}, {1, 1}, {200, 1030}})
    for (const bool with_bias : {false, true}) {
      Tensor weight(DType::f32, {n, k}), bias(DType::f32, {n});
      for (int64_t i = 0; i < n * k; ++i) weight.as<float>()[i] = normal();
      Rows bias_row = rows(DType::f32, 1, n);
      bias_row.randomize();
      for (int64_t i = 0; i < n; ++i) bias.as<float>()[i] = static_cast<float>(bias_row.at(0, i));
      const auto linear = make_float_linear(ctx, weight, with_bias ? bias : Tensor{});
      EXPECT_EQ(linear->inputs(), k);
      EXPECT_EQ(linear->outputs(), n);
      EXPECT_GE(linear->weight_bytes(), n * k * 4);
      for (const DType d : kTypes)
        for (const int64_t tokens : {1, 3, 17, 70}) {
          SCOPED_TRACE(fmt::format("{} n {} k {} T {} bias {}", to_string(d), n, k, tokens, with_bias));
          Rows x = rows(d, tokens, k), y = rows(DType::f32, tokens, n);
          x.randomize();
          run(*this, *linear, x.view(), y.view());
          // Multiplied as they are: float32 throughout whatever the type of x.
          LinearOptions options;
          options.dtype = DType::f32;
          check_product(weight, with_bias ? &bias_row : nullptr, x, options, y);
          check_rounding_and_rows(*this, *linear, weight, with_bias ? &bias_row : nullptr, options, x, y, true);
        }
      int64_t last = 0;
      for (int64_t t = 0; t < 200; ++t) {
        const int64_t bytes = linear->workspace_bytes(t);
        ASSERT_GE(bytes, last);
        last = bytes;
      }
      Rows x = rows(DType::f32, 3, k), y = rows(DType::f32, 3, n);
      run(*this, *linear, x.view(0, 0), y.view(0, 0));
      const int64_t bytes = linear->workspace_bytes(3);
      if (bytes > 0) {
        Memory workspace(*queue, bytes);
        EXPECT_THROW(linear->run(ctx, x.view(), y.view(), workspace.device(), bytes - 1), Error);
      }
      EXPECT_TRUE(y.row_untouched(0) && y.gaps_untouched());
    }
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::f32, {3}).zero()), Error);
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::bf16, {3, 2}).zero()), Error);
  EXPECT_THROW(make_float_linear(ctx, Tensor(DType::f32, {3, 2}).zero(), Tensor(DType::f32, {2}).zero()), Error);
}

}  // namespace
}  // namespace sluice::ops
