// SPDX-License-Identifier: Apache-2.0
// A dense matrix on the host through the shared library.
#include <algorithm>
#include <cmath>
#include <limits>

#include "tests/capi/arrays.h"

namespace {

// y [T, N] = x [T, K] w [N, K]^T + bias in double precision, within the rounding of K + 2 float32 operations.
void expect_product(const std::vector<float>& y, const std::vector<float>& x, const std::vector<uint16_t>& w,
                    const std::vector<float>& bias, size_t k_size) {
  const size_t n_size = bias.size();
  ASSERT_EQ(y.size(), x.size() / k_size * n_size);
  for (size_t t = 0; t < x.size() / k_size; ++t)
    for (size_t n = 0; n < n_size; ++n) {
      double sum = bias[n], magnitude = std::fabs(sum);
      for (size_t k = 0; k < k_size; ++k) {
        const double term = double{x[t * k_size + k]} * widen(w[n * k_size + k]);
        sum += term;
        magnitude += std::fabs(term);
      }
      ASSERT_NEAR(y[t * n_size + n], sum, magnitude * static_cast<double>(k_size + 2) * 0x1p-24);
    }
}

TEST(CapiGemm, ByTheDefinition) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kN = 40, kK = 72, kT = 9;
  auto w = bf16s(random, kN * kK, 0.3f);
  const auto kept = w;
  const auto x = floats(random, kT * kK), bias = floats(random, kN);
  auto options = SLUICE_INIT(sluice_gemm_options);
  options.rows = kN;
  options.cols = kK;
  options.weights = "bf16";
  options.w.codes = w.data();
  options.bias = bias.data();
  sluice_gemm* gemm = nullptr;
  ASSERT_EQ(sluice_gemm_create(context.get(), &options, &gemm), SLUICE_OK) << sluice_last_error();
  std::fill(w.begin(), w.end(), uint16_t{0x7fc0});  // NaN: the matrix was copied
  int64_t bytes = 0;
  ASSERT_EQ(sluice_gemm_workspace_bytes(gemm, kT, &bytes), SLUICE_OK);
  std::vector<char> memory(static_cast<size_t>(bytes) + 64, '\x7f');
  auto args = SLUICE_INIT(sluice_gemm_args);
  args.tokens = kT;
  args.x = x.data();
  const auto base = reinterpret_cast<uintptr_t>(memory.data());
  for (const bool own : {false, true}) {
    std::vector<float> y(kT * kN, std::numeric_limits<float>::quiet_NaN());
    args.y = y.data();
    args.workspace = own ? nullptr : memory.data() + ((base + 63) / 64 * 64 - base);
    args.workspace_size = own ? 0 : bytes;
    ASSERT_EQ(sluice_gemm_run(gemm, &args), SLUICE_OK) << sluice_last_error();
    expect_product(y, x, kept, bias, kK);
  }
  if (bytes > 0) {
    args.workspace = memory.data() + ((base + 63) / 64 * 64 - base);
    args.workspace_size = bytes - 1;
    expect_refusal(sluice_gemm_run(gemm, &args), "workspace_size is " + std::to_string(bytes - 1) +
                                                     "; a call of 9 tokens needs " + std::to_string(bytes) + " bytes");
  }
  args.tokens = -3;
  expect_refusal(sluice_gemm_run(gemm, &args), "tokens is -3; it must be 0 or more");
  args = SLUICE_INIT(sluice_gemm_args);  // no tokens: nothing is touched
  EXPECT_EQ(sluice_gemm_run(gemm, &args), SLUICE_OK);
  sluice_gemm_destroy(gemm);
  sluice_gemm_destroy(nullptr);
  options.inputs = "nvfp4";
  expect_refusal(sluice_gemm_create(context.get(), &options, &gemm),
                 "options.inputs is nvfp4 with weights bf16; nobody multiplies these");
  options.rows = 0;
  expect_refusal(sluice_gemm_create(context.get(), &options, &gemm), "the matrix is [0, 72]; both must be positive");
}

// A matrix in a number format, as the loader quantises it.
struct Quantised {
  std::vector<uint8_t> codes, scales;
  std::vector<float> global{1};
  Quantised(sluice::Context& context, const char* format, const std::vector<float>& values, int64_t n, int64_t k)
      : codes(static_cast<size_t>(2 * n * k)), scales(static_cast<size_t>(n * k)) {
    EXPECT_EQ(sluice_quantize_weights(context.get(), format, 1, n, k, values.data(), SLUICE_F32, codes.data(),
                                      std::string(format) == "bf16" ? nullptr : scales.data(),
                                      std::string(format) == "nvfp4" ? global.data() : nullptr),
              SLUICE_OK)
        << sluice_last_error();
  }
};

std::vector<float> run_gemm(sluice::Context& context, const sluice_gemm_options& options, const float* x,
                            int64_t tokens) {
  std::vector<float> y(static_cast<size_t>(tokens * options.rows), std::numeric_limits<float>::quiet_NaN());
  sluice_gemm* gemm = nullptr;
  EXPECT_EQ(sluice_gemm_create(context.get(), &options, &gemm), SLUICE_OK) << sluice_last_error();
  auto args = SLUICE_INIT(sluice_gemm_args);
  args.tokens = tokens;
  args.x = x;
  args.y = y.data();
  EXPECT_EQ(sluice_gemm_run(gemm, &args), SLUICE_OK) << sluice_last_error();
  sluice_gemm_destroy(gemm);
  return y;
}

std::vector<float> run_gemm(const sluice_gemm* gemm, const std::vector<float>& x, int64_t tokens, int64_t rows) {
  std::vector<float> y(static_cast<size_t>(tokens * rows), std::numeric_limits<float>::quiet_NaN());
  auto args = SLUICE_INIT(sluice_gemm_args);
  args.tokens = tokens;
  args.x = x.data();
  args.y = y.data();
  EXPECT_EQ(sluice_gemm_run(gemm, &args), SLUICE_OK) << sluice_last_error();
  return y;
}

// Exactly as many bytes as asked for, on a 64-byte boundary between 64 bytes that must stay as they are.
class Fenced {
 public:
  Fenced(int64_t bytes, uint8_t poison) : memory_(static_cast<size_t>(bytes) + 192, poison), poison_(poison) {
    begin_ = memory_.data() + 64 + (64 - reinterpret_cast<uintptr_t>(memory_.data()) % 64) % 64;
    end_ = begin_ + bytes;
  }
  uint8_t* data() const { return begin_; }
  std::vector<uint8_t> copy() const { return {begin_, end_}; }
  void expect_fences() const {
    const auto untouched = [&](const uint8_t* first, const uint8_t* last) {
      return std::all_of(first, last, [&](uint8_t b) { return b == poison_; });
    };
    EXPECT_TRUE(untouched(memory_.data(), begin_));
    EXPECT_TRUE(untouched(end_, memory_.data() + memory_.size()));
  }

 private:
  std::vector<uint8_t> memory_;
  uint8_t poison_, *begin_, *end_;
};

// The prepared matrix lies in the caller's memory, all of it there and nothing beyond; a refit writes it again.
TEST(CapiGemm, InTheCallersMemory) {
  std::mt19937 random = sluice::test::rng();
  constexpr int64_t kN = 40, kK = 72, kT = 9;
  const auto first = bf16s(random, kN * kK, 0.3f), second = bf16s(random, kN * kK, 0.3f);
  const auto x = floats(random, kT * kK), bias = floats(random, kN), other_bias = floats(random, kN);
  auto options = SLUICE_INIT(sluice_gemm_options);
  options.rows = kN;
  options.cols = kK;
  options.weights = "bf16";
  int64_t bytes = 0;
  ASSERT_EQ(sluice_gemm_prepared_bytes(&options, &bytes), SLUICE_OK)
      << sluice_last_error();  // before there are weights
  EXPECT_GE(bytes, 2 * kN * kK);
  const Fenced memory(bytes, 0x7f);
  auto w = first;
  options.w.codes = w.data();
  options.bias = bias.data();
  sluice_context* context = nullptr;
  ASSERT_EQ(sluice_context_create(2, &context), SLUICE_OK);
  sluice_gemm* gemm = nullptr;
  ASSERT_EQ(sluice_gemm_prepare_into(context, &options, memory.data(), bytes, &gemm), SLUICE_OK) << sluice_last_error();
  sluice_context_destroy(context);
  std::fill(w.begin(), w.end(), uint16_t{0x7fc0});  // NaN: the matrix was copied
  expect_product(run_gemm(gemm, x, kT, kN), x, first, bias, kK);
  const auto before = memory.copy();

  w = second;
  ASSERT_EQ(sluice_gemm_refit(gemm, &options.w, 0, other_bias.data()), SLUICE_OK) << sluice_last_error();
  std::fill(w.begin(), w.end(), uint16_t{0x7fc0});
  expect_product(run_gemm(gemm, x, kT, kN), x, second, other_bias, kK);
  EXPECT_NE(memory.copy(), before);

  expect_refusal(sluice_gemm_refit(gemm, &options.w, 0, nullptr), "a refit cannot add or drop the bias");
  auto none = options.w;
  none.codes = nullptr;
  expect_refusal(sluice_gemm_refit(gemm, &none, 0, bias.data()),
                 "weights.w.codes is NULL; accepted: [1, 40, 72] of bf16");
  EXPECT_EQ(sluice_gemm_refit(nullptr, &options.w, 0, nullptr), SLUICE_INVALID_ARGUMENT);
  expect_product(run_gemm(gemm, x, kT, kN), x, second, other_bias, kK);  // what was refused changed nothing

  w = first;
  ASSERT_EQ(sluice_gemm_refit(gemm, &options.w, 0, bias.data()), SLUICE_OK);
  EXPECT_EQ(memory.copy(), before);
  sluice_gemm_destroy(gemm);
  memory.expect_fences();
}

// In every format, beside a matrix that owns its memory: nothing that a product reads was there before.
TEST(CapiGemm, InTheCallersMemoryInEveryFormat) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kN = 37, kK = 200, kT = 3;  // no whole tile of either
  const auto x = floats(random, kT * kK);
  for (const char* format : {"bf16", "fp8_tensor", "fp8_channel", "fp8_block", "mxfp8", "nvfp4", "mxfp4"}) {
    const Quantised w(context, format, floats(random, kN * kK, 0.3f), kN, kK);
    auto options = SLUICE_INIT(sluice_gemm_options);
    options.rows = kN;
    options.cols = kK;
    options.weights = format;
    int64_t bytes = 0;
    ASSERT_EQ(sluice_gemm_prepared_bytes(&options, &bytes), SLUICE_OK) << sluice_last_error();
    options.w.codes = w.codes.data();
    options.w.scales = std::string(format) == "bf16" ? nullptr : w.scales.data();
    options.w.global_scales = std::string(format) == "nvfp4" ? w.global.data() : nullptr;
    const auto expected = run_gemm(context, options, x.data(), kT);
    for (const uint8_t poison : {0x7f, 0xff, 0x00}) {
      const Fenced memory(bytes, poison);
      sluice_gemm* gemm = nullptr;
      ASSERT_EQ(sluice_gemm_prepare_into(context.get(), &options, memory.data(), bytes, &gemm), SLUICE_OK)
          << sluice_last_error();
      EXPECT_EQ(run_gemm(gemm, x, kT, kN), expected) << format;
      sluice_gemm_destroy(gemm);
      memory.expect_fences();
    }
  }
}

TEST(CapiGemm, RefusesMemory) {
  sluice::Context context(1);
  const std::vector<uint16_t> w(40 * 72);
  auto options = SLUICE_INIT(sluice_gemm_options);
  options.rows = 40;
  options.cols = 72;
  options.weights = "bf16";
  options.w.codes = w.data();
  int64_t bytes = 0;
  ASSERT_EQ(sluice_gemm_prepared_bytes(&options, &bytes), SLUICE_OK);
  const Fenced memory(bytes + 64, 0x7f);
  sluice_gemm* gemm = nullptr;
  const auto prepare = [&](void* data, int64_t size) {
    return sluice_gemm_prepare_into(context.get(), &options, data, size, &gemm);
  };
  for (const int64_t size : {bytes - 1, int64_t{0}, int64_t{-1}})
    expect_refusal(prepare(memory.data(), size),
                   "memory has " + std::to_string(size) + " bytes; the prepared weights need " + std::to_string(bytes));
  for (const int shift : {1, 8, 32})
    expect_refusal(prepare(memory.data() + shift, bytes), "memory is not aligned to 64 bytes");
  expect_refusal(prepare(nullptr, bytes), "memory is NULL; it must be given");
  EXPECT_EQ(gemm, nullptr);
  const auto held = memory.copy();
  EXPECT_TRUE(std::all_of(held.begin(), held.end(), [](uint8_t b) { return b == 0x7f; }));

  EXPECT_EQ(sluice_gemm_prepared_bytes(&options, nullptr), SLUICE_INVALID_ARGUMENT);
  options.cols = INT64_MAX;
  expect_refusal(sluice_gemm_prepared_bytes(&options, &bytes),
                 "the matrix is [40, 9223372036854775807]; accepted: at most 2^46 elements");
  options.cols = 71;
  options.weights = "mxfp4";
  expect_refusal(sluice_gemm_prepared_bytes(&options, &bytes), "the matrix has 71 columns; mxfp4 needs an even number");
  options.inputs = "fp8_group";
  expect_refusal(sluice_gemm_prepared_bytes(&options, &bytes),
                 "options.inputs is fp8_group with weights mxfp4; nobody multiplies these");
}

// On the host FP8 is always summed in float32 and a row never depends on its batch: both options change nothing there
// (CudaGemm.OptionsReachTheKernels: what they change on a GPU).
TEST(CapiGemm, OptionsOfSums) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kN = 40, kK = 256, kT = 9;
  const auto x = floats(random, kT * kK);
  for (const char* format : {"fp8_tensor", "fp8_channel", "fp8_block"}) {
    const Quantised w(context, format, floats(random, kN * kK, 0.3f), kN, kK);
    auto options = SLUICE_INIT(sluice_gemm_options);
    options.rows = kN;
    options.cols = kK;
    options.weights = format;
    options.w.codes = w.codes.data();
    options.w.scales = w.scales.data();
    const auto plain = run_gemm(context, options, x.data(), kT);
    for (const int f32_sums : {0, 1})
      for (const int deterministic : {0, 1}) {
        options.fp8_f32_sums = f32_sums;
        options.deterministic = deterministic;
        EXPECT_EQ(run_gemm(context, options, x.data(), kT), plain) << format;
      }
    for (int64_t t = 0; t < kT; ++t)
      EXPECT_EQ(run_gemm(context, options, x.data() + t * kK, 1),
                std::vector<float>(plain.begin() + t * kN, plain.begin() + (t + 1) * kN))
          << format << " row " << t;
  }
}

// Others than 0, which is 1: what the layers refuse too.
TEST(CapiGemm, RefusesInputScales) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kN = 16, kK = 32;
  const Quantised w(context, "fp8_tensor", floats(random, 2 * kN * kK, 0.3f), kN, kK);
  auto options = SLUICE_INIT(sluice_gemm_options);
  options.rows = kN;
  options.cols = kK;
  options.weights = "fp8_tensor";
  options.w.codes = w.codes.data();
  options.w.scales = w.scales.data();
  sluice_gemm* gemm = nullptr;
  for (const auto& [scale, text] :
       {std::pair{1e-40f, "1e-40"}, {-1.0f, "-1"}, {std::numeric_limits<float>::infinity(), "inf"}, {NAN, "nan"}}) {
    const std::string sentence =
        "the input scale of fp8_static is " + std::string(text) + "; a positive, normal, finite float is needed";
    options.inputs = "fp8_static";
    options.input_scale = scale;
    expect_refusal(sluice_gemm_create(context.get(), &options, &gemm), sentence);
    options.input_scale = std::numeric_limits<float>::min();
    ASSERT_EQ(sluice_gemm_create(context.get(), &options, &gemm), SLUICE_OK) << sluice_last_error();
    expect_refusal(sluice_gemm_refit(gemm, &options.w, scale, nullptr), sentence);
    sluice_gemm_destroy(gemm);
    options.inputs = "fp8_token";  // reads none
    options.input_scale = scale;
    ASSERT_EQ(sluice_gemm_create(context.get(), &options, &gemm), SLUICE_OK) << sluice_last_error();
    sluice_gemm_destroy(gemm);
  }
}

// What c.h says of fields that are zero: the inputs of the weights, float32, an input scale of 1, no bias.
TEST(CapiGemm, ZeroedOptions) {
  std::mt19937 random = sluice::test::rng();
  sluice::Context context(2);
  constexpr int64_t kN = 24, kK = 96, kT = 3;
  const auto x = floats(random, kT * kK);
  const std::vector<float> no_bias(kN, 0.0f);
  for (const auto& [format, inputs] : {std::pair{"bf16", "plain"},
                                       {"fp8_tensor", "fp8_token"},
                                       {"fp8_block", "fp8_group"},
                                       {"nvfp4", "nvfp4"},
                                       {"mxfp8", "mxfp8"}}) {
    const Quantised w(context, format, floats(random, 2 * kN * kK, 0.3f), kN, kK);
    auto zeroed = SLUICE_INIT(sluice_gemm_options);
    zeroed.rows = kN;
    zeroed.cols = kK;
    zeroed.weights = format;
    zeroed.w.codes = w.codes.data();
    zeroed.w.scales = std::string(format) == "bf16" ? nullptr : w.scales.data();
    zeroed.w.global_scales = std::string(format) == "nvfp4" ? w.global.data() : nullptr;
    auto stated = zeroed;
    stated.inputs = inputs;
    stated.dtype = SLUICE_F32;
    stated.input_scale = 1;
    stated.bias = no_bias.data();
    EXPECT_EQ(run_gemm(context, zeroed, x.data(), kT), run_gemm(context, stated, x.data(), kT)) << format;
  }
}

}  // namespace
