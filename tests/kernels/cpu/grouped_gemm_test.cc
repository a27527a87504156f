// SPDX-License-Identifier: Apache-2.0
// Every weight format, input format and instruction set against sums in double precision. Also every row against the
// same row in a batch of one, and by another number of threads: a row's bits must not depend on what is around it.
#include "kernels/cpu/grouped_gemm.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <iostream>
#include <numeric>
#include <random>

#include "format/quantize_rows.h"
#include "format/quantize_weights.h"
#include "tests/support/random.h"

namespace sluice::kernels::cpu {
namespace {

using format::Format;
using format::InputFormat;

struct Formats {
  Format weights;
  InputFormat input;
};
constexpr Formats kFormats[] = {
    {Format::bf16, InputFormat::plain},          {Format::fp8_tensor, InputFormat::fp8_static},
    {Format::fp8_tensor, InputFormat::plain},    {Format::fp8_channel, InputFormat::fp8_token},
    {Format::fp8_block, InputFormat::fp8_group}, {Format::fp8_block, InputFormat::plain},
    {Format::mxfp8, InputFormat::mxfp8},         {Format::nvfp4, InputFormat::nvfp4},
    {Format::nvfp4, InputFormat::nvfp4_token},   {Format::nvfp4, InputFormat::plain},
    {Format::mxfp4, InputFormat::plain},         {Format::mxfp4, InputFormat::mxfp8}};

std::vector<float> normal_values(std::mt19937_64& rng, int64_t n) {
  std::normal_distribution<float> d;
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = d(rng);
  return v;
}

weights::QuantTensor random_weights(std::mt19937_64& rng, Format f, int64_t experts, int64_t n, int64_t k) {
  weights::QuantTensor w = weights::make_quant_tensor(f, experts, n, k);
  for (int64_t e = 0; e < experts; ++e) {
    std::vector<float> v = normal_values(rng, n * k);
    for (int64_t r = 0; r < n; ++r) {
      const float row = std::exp2(static_cast<float>(rng() % 9) - 4.0f);  // rows of different magnitude
      for (int64_t c = 0; c < k; ++c) v[static_cast<size_t>(r * k + c)] *= row;
    }
    format::quantize_weight(f, v.data(), n, k, w.codes.slice(e).data(),
                            w.scales.empty() ? nullptr : w.scales.rows(e, e + 1).data(),
                            w.global.empty() ? nullptr : w.global.as<float>() + e);
  }
  return w;
}

// What the input rows read as, [T, K].
std::vector<float> rounded(InputFormat f, const std::vector<float>& x, int64_t rows, int64_t k, float scale) {
  std::vector<float> v = x;
  for (int64_t r = 0; r < rows; ++r) format::round_row(f, v.data() + r * k, k, scale);
  return v;
}

struct Problem {
  int64_t groups, n, k, tokens;
  bool gated;  // two matrices, gate and up
};

// Y [rows][n], or [rows][2][n] with gate and up. Output row r of group g is token rows[r], for offsets[g] <= r <
// offsets[g + 1].
std::vector<float> run(Context& ctx, Isa isa, const Formats& p, DType dtype, const Problem& s,
                       const weights::QuantTensor& a, const weights::QuantTensor* b, const std::vector<float>& x,
                       float input_scale, const std::vector<int32_t>& offsets, const std::vector<int32_t>& rows) {
  const CpuKernel kernel = choose_cpu_kernel(isa, p.weights, p.input, dtype);
  const PackedWeights w(ctx, a, b, kernel.fp8_order);
  const int64_t total = offsets.back(), width = s.n * (s.gated ? 2 : 1);
  const auto allocate = [&](void* base, PackedRows* packed, PackedRows* gathered, GemmWorkspace* workspace,
                            float** staging) {
    BumpAllocator c(base);
    *packed = allocate_packed_rows(c, kernel, s.tokens, s.k, w.padded_k());
    *gathered = allocate_packed_rows(c, kernel, total, s.k, w.padded_k());
    *staging = c.allocate<float>(w.padded_k());
    *workspace = allocate_gemm_workspace(c, ctx.pool.size(), s.groups, total);
    return c.used();
  };
  PackedRows packed, gathered;
  GemmWorkspace workspace;
  float* staging = nullptr;
  Tensor block(DType::u8, {allocate(nullptr, &packed, &gathered, &workspace, &staging)});
  std::memset(block.data(), 0xff, static_cast<size_t>(block.bytes()));  // NaN everywhere
  allocate(block.data(), &packed, &gathered, &workspace, &staging);
  for (int64_t t = 0; t < s.tokens; ++t)
    pack_row(packed, t, {x.data() + t * s.k, DType::f32, false}, input_scale, staging);
  for (int64_t r = 0; kernel.contiguous_rows && r < total; ++r)
    copy_packed_row(packed, rows[static_cast<size_t>(r)], gathered, r);
  std::vector<float> y(static_cast<size_t>(total * width), NAN);
  const int64_t n_tile_cols = s.gated ? 16 : 32;
  grouped_gemm(
      ctx, kernel.contiguous_rows ? gathered : packed, w,
      {s.groups, offsets.data(), kernel.contiguous_rows ? nullptr : rows.data()}, workspace, [&](const OutputTile& t) {
        for (int i = 0; i < t.m; ++i)
          for (int c = 0; c < 16 * t.panels; ++c) {
            const int64_t col = t.n_tile * n_tile_cols + c % n_tile_cols;
            if (col < s.n)
              y[static_cast<size_t>((t.row + i) * width + c / n_tile_cols * s.n + col)] = t.values[i * kNTile + c];
          }
      });
  return y;
}

float bf16_exact(float x) { return round_to_bf16(x); }

class GroupedGemm : public testing::TestWithParam<Isa> {};

TEST_P(GroupedGemm, MatchesDoubleAndDoesNotDependOnTheBatch) {
  const Isa isa = GetParam();
  if (const Support s = supported(isa); !s) GTEST_SKIP() << s.reason;
  std::cout << "[   ISA    ] " << name_of(kIsas, isa) << "\n";
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  ThreadPool pool(2), seven_threads(7);
  Context ctx{pool}, other_ctx{seven_threads};
  // 10400 k: more than fits into the scratch of the kernel that keeps a row as floats.
  const Problem problems[] = {{1, 16, 32, 1, false},   {2, 7, 34, 5, false},      {3, 40, 160, 12, true},
                              {2, 33, 418, 40, false}, {1, 150, 290, 150, false}, {4, 24, 64, 9, true},
                              {2, 70, 288, 24, true},  {1, 20, 10400, 3, false}};
  for (const Formats& p : kFormats)
    for (const DType dtype : {DType::bf16, DType::f32})
      for (const Problem& s : problems) {
        SCOPED_TRACE(fmt::format("{} {} x {} {}: groups {} n {} k {} tokens {} gated {}", name_of(kIsas, isa),
                                 info(p.weights).name, name_of(format::kInputFormats, p.input), to_string(dtype),
                                 s.groups, s.n, s.k, s.tokens, s.gated));
        const weights::QuantTensor a = random_weights(rng, p.weights, s.groups, s.n, s.k);
        const weights::QuantTensor b = random_weights(rng, p.weights, s.groups, s.n, s.k);
        std::vector<float> x = normal_values(rng, s.tokens * s.k);
        if (dtype == DType::bf16)
          for (float& v : x) v = bf16_exact(v);
        const float scale = p.input == InputFormat::nvfp4 ? 4.5f / (448 * 6) : 4.5f / 448;

        // Each token goes to about two groups; the last group may stay empty.
        std::vector<int32_t> offsets{0}, rows;
        for (int64_t g = 0; g < s.groups; ++g) {
          for (int32_t t = 0; t < s.tokens; ++t)
            if (s.groups == 1 || (rng() % static_cast<uint64_t>(s.groups)) < 2) rows.push_back(t);
          offsets.push_back(static_cast<int32_t>(rows.size()));
        }
        const std::vector<float> y = run(ctx, isa, p, dtype, s, a, s.gated ? &b : nullptr, x, scale, offsets, rows);

        const std::vector<float> xr = rounded(p.input, x, s.tokens, s.k, scale);
        const Tensor wa = dequantize(a), wb = dequantize(b);
        const int64_t width = s.n * (s.gated ? 2 : 1);
        for (int64_t g = 0; g < s.groups; ++g)
          for (int64_t r = offsets[static_cast<size_t>(g)]; r < offsets[static_cast<size_t>(g) + 1]; ++r)
            for (int64_t c = 0; c < width; ++c) {
              const float* w = (c < s.n ? wa : wb).as<float>() + (g * s.n + c % s.n) * s.k;
              const float* row = xr.data() + rows[static_cast<size_t>(r)] * s.k;
              double sum = 0, size = 0;
              for (int64_t k = 0; k < s.k; ++k) {
                sum += double{w[k]} * double{row[k]};
                size += std::abs(double{w[k]} * double{row[k]});
              }
              // There are at most K + K/16 float32 roundings, each with an error of 2^-24 of a partial sum, which stays
              // below `size`. The scales of the reference's dequantised values add three roundings per term.
              const double tolerance = size * std::exp2(-24) * (static_cast<double>(s.k) * 1.1 + 8);
              ASSERT_NEAR(y[static_cast<size_t>(r * width + c)], sum, tolerance)
                  << "group " << g << " row " << r << " col " << c;
            }

        // By more threads, which take shorter tasks: the same bits.
        ASSERT_EQ(y, run(other_ctx, isa, p, dtype, s, a, s.gated ? &b : nullptr, x, scale, offsets, rows));

        // In a batch of one: the same bits.
        for (const int64_t r : {int64_t{0}, offsets.back() / int64_t{2}, int64_t{offsets.back()} - 1}) {
          if (r < 0) continue;
          int64_t g = 0;
          while (offsets[static_cast<size_t>(g) + 1] <= r) ++g;
          std::vector<int32_t> one(static_cast<size_t>(s.groups) + 1, 0);
          for (int64_t i = g + 1; i <= s.groups; ++i) one[static_cast<size_t>(i)] = 1;
          const std::vector<float> single =
              run(ctx, isa, p, dtype, s, a, s.gated ? &b : nullptr, x, scale, one, {rows[static_cast<size_t>(r)]});
          ASSERT_EQ(0, std::memcmp(single.data(), y.data() + r * width, static_cast<size_t>(width) * 4)) << "row " << r;
        }
      }
}

INSTANTIATE_TEST_SUITE_P(Isas, GroupedGemm,
                         testing::Values(Isa::scalar, Isa::avx2, Isa::avx_vnni, Isa::avx512, Isa::avx512_bf16,
                                         Isa::amx),
                         [](const auto& p) { return std::string(name_of(kIsas, p.param)); });

// The decoding of every code: a one-hot input reads each weight back.
TEST_P(GroupedGemm, ReadsEveryCode) {
  const Isa isa = GetParam();
  if (const Support s = supported(isa); !s) GTEST_SKIP() << s.reason;
  ThreadPool pool(1);
  Context ctx{pool};
  for (const Format f : {Format::fp8_tensor, Format::fp8_channel, Format::mxfp8, Format::nvfp4, Format::mxfp4}) {
    SCOPED_TRACE(info(f).name);
    const int64_t n = 256, k = 32;
    weights::QuantTensor w = weights::make_quant_tensor(f, 1, n, k);
    auto* codes = static_cast<uint8_t*>(w.codes.data());
    for (int64_t i = 0; i < w.codes.bytes(); ++i) {
      codes[i] = static_cast<uint8_t>(i / (w.codes.bytes() / n) + i);
      if (info(f).bits == 8 && (codes[i] & 0x7f) == 0x7f) codes[i] = 0;  // NaN has its own test
    }
    if (info(f).scale == format::ScaleType::f32)
      for (int64_t i = 0; i < w.scales.elements(); ++i) w.scales.as<float>()[i] = 0.5f;
    else
      for (int64_t i = 0; i < w.scales.bytes(); ++i) {  // every non-negative e4m3; e8m0 near 1 and, for mxfp4, extreme
        const int64_t e8m0 = f == Format::mxfp4 && i % 7 == 0 ? (i % 2 == 0 ? 8 : 250) : 120 + i % 16;
        static_cast<uint8_t*>(w.scales.data())[i] =
            static_cast<uint8_t>(info(f).scale == format::ScaleType::e8m0 ? e8m0 : i % 0x7f);
      }
    if (!w.global.empty()) w.global.as<float>()[0] = 2.0f;
    const Tensor expected = dequantize(w);
    std::vector<float> x(static_cast<size_t>(k * k), 0.0f);
    std::vector<int32_t> rows;
    for (int64_t i = 0; i < k; ++i) {
      x[static_cast<size_t>(i * k + i)] = 1.0f;
      rows.push_back(static_cast<int32_t>(i));
    }
    const std::vector<float> y = run(ctx, isa, {f, InputFormat::plain}, DType::bf16, {1, n, k, k, false}, w, nullptr, x,
                                     1.0f, {0, static_cast<int32_t>(k)}, rows);
    for (int64_t i = 0; i < k; ++i)
      for (int64_t c = 0; c < n; ++c)
        ASSERT_EQ(y[static_cast<size_t>(i * n + c)], expected.as<float>()[c * k + i]) << "k " << i << " row " << c;
  }
}

// Inputs that integers with one scale per 32 values cannot hold: any exponents side by side, all values near the
// largest, one value far above the others, subnormals, zeros, infinities and NaN.
TEST_P(GroupedGemm, InputsOfAnyRange) {
  const Isa isa = GetParam();
  if (const Support s = supported(isa); !s) GTEST_SKIP() << s.reason;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  ThreadPool pool(1);
  Context ctx{pool};
  // vdpbf16ps and AMX read subnormal inputs as zero.
  const int kinds = isa >= Isa::avx512_bf16 ? 6 : 8;
  const int64_t n = 40, k = 1120, tokens = 2 * kinds;
  for (const Format f : {Format::mxfp4, Format::nvfp4}) {
    SCOPED_TRACE(info(f).name);
    const weights::QuantTensor w = random_weights(rng, f, 1, n, k);
    const Tensor wf = dequantize(w);
    std::vector<float> x = normal_values(rng, tokens * k);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < k; ++c) {
        float& v = x[static_cast<size_t>(t * k + c)];
        const auto power = [&](int lowest, int range) {
          return std::exp2(static_cast<float>(lowest + static_cast<int>(rng() % static_cast<uint64_t>(range))));
        };
        switch (t % kinds) {
          case 0:
            v *= power(-100, 200);
            break;
          case 1:
            v = (v < 0 ? -1.9921875f : 1.9921875f) * (c % 64 < 32 ? 0x1p100f : 1.0f);
            break;
          case 2:
            v *= c % 32 == 7 ? 1e4f : 1.0f;
            break;
          case 3:
            v = v < 0.5f ? 0.0f : v * v * power(-12, 12);
            break;
          case 4:
            if (c == 3 || c == 901) v = c == 3 ? INFINITY : (t < kinds ? INFINITY : -INFINITY);
            break;
          case 5:
            if (c == 514) v = NAN;
            break;
          case 6:
            v *= c % 3 == 0 ? 0x1p-133f : power(-140, 30);
            break;
          default:
            v *= 0x1p-126f;
        }
        v = bf16_exact(v);
      }
    std::vector<int32_t> rows;
    for (int32_t t = 0; t < tokens; ++t) rows.push_back(t);
    const std::vector<float> y = run(ctx, isa, {f, InputFormat::plain}, DType::bf16, {1, n, k, tokens, false}, w,
                                     nullptr, x, 1.0f, {0, static_cast<int32_t>(tokens)}, rows);
    for (int64_t t = 0; t < tokens; ++t)
      for (int64_t c = 0; c < n; ++c) {
        SCOPED_TRACE(fmt::format("kind {} row {} column {}", t % kinds, t, c));
        double sum = 0, size = 0;
        for (int64_t i = 0; i < k; ++i) {
          const double term = double{wf.as<float>()[c * k + i]} * double{x[static_cast<size_t>(t * k + i)]};
          sum += term;
          size += std::abs(term);
        }
        const float got = y[static_cast<size_t>(t * n + c)];
        if (std::isnan(sum))
          ASSERT_TRUE(std::isnan(got)) << got;
        else if (std::isinf(sum))
          ASSERT_EQ(got, static_cast<float>(sum));
        else  // as above; sums of subnormals round to multiples of 2^-149
          ASSERT_NEAR(got, sum, size * std::exp2(-24) * (static_cast<double>(k) * 1.1 + 8) + k * 0x1p-149 * 64);
      }
    for (const int64_t t : {int64_t{0}, int64_t{1}, int64_t{3}, tokens - 1}) {
      const std::vector<float> single = run(ctx, isa, {f, InputFormat::plain}, DType::bf16, {1, n, k, tokens, false}, w,
                                            nullptr, x, 1.0f, {0, 1}, {static_cast<int32_t>(t)});
      ASSERT_EQ(0, std::memcmp(single.data(), y.data() + t * n, static_cast<size_t>(n) * 4)) << "row " << t;
    }
  }
}

// Rows that differ in how many of their values the integers hold, in batches of 1 to 14 rows, by every number of
// panels: each row is right and has the bits that it has in a batch of one.
TEST_P(GroupedGemm, RowsOfAnyKindTogether) {
  const Isa isa = GetParam();
  if (const Support s = supported(isa); !s) GTEST_SKIP() << s.reason;
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  ThreadPool pool(2);
  Context ctx{pool};
  const Formats formats{Format::mxfp4, InputFormat::plain};
  for (const int64_t k : {32, 270, 800})
    for (const int64_t n : {5, 30, 33, 64, 97, 128}) {
      const weights::QuantTensor w = random_weights(rng, Format::mxfp4, 1, n, k);
      const Tensor wf = dequantize(w);
      const int64_t tokens = 14;
      std::vector<float> x = normal_values(rng, tokens * k);
      for (int64_t t = 0; t < tokens; ++t)
        for (int64_t c = 0; c < k * (t % 3) / 2; ++c)  // nothing, half of the row or all of it
          x[static_cast<size_t>(t * k + c)] *= std::exp2(-static_cast<float>(rng() % 24));
      for (float& v : x) v = bf16_exact(v);
      std::vector<std::vector<float>> single;
      for (int32_t t = 0; t < tokens; ++t)
        single.push_back(
            run(ctx, isa, formats, DType::bf16, {1, n, k, tokens, false}, w, nullptr, x, 1.0f, {0, 1}, {t}));
      for (int32_t m = 1; m <= tokens; ++m) {
        SCOPED_TRACE(fmt::format("k {} n {} rows {}", k, n, m));
        std::vector<int32_t> rows;
        for (int32_t i = 0; i < m; ++i) rows.push_back(static_cast<int32_t>(rng() % static_cast<uint64_t>(tokens)));
        const std::vector<float> y =
            run(ctx, isa, formats, DType::bf16, {1, n, k, tokens, false}, w, nullptr, x, 1.0f, {0, m}, rows);
        for (int64_t i = 0; i < m; ++i) {
          const int64_t t = rows[static_cast<size_t>(i)];
          ASSERT_EQ(0,
                    std::memcmp(single[static_cast<size_t>(t)].data(), y.data() + i * n, static_cast<size_t>(n) * 4));
          for (int64_t c = 0; c < n; ++c) {
            double sum = 0, size = 0;
            for (int64_t j = 0; j < k; ++j) {
              const double term = double{wf.as<float>()[c * k + j]} * double{x[static_cast<size_t>(t * k + j)]};
              sum += term;
              size += std::abs(term);
            }
            ASSERT_NEAR(y[static_cast<size_t>(i * n + c)], sum,
                        size * std::exp2(-24) * (static_cast<double>(k) * 1.1 + 8));
          }
        }
      }
    }
}

TEST_P(GroupedGemm, NanCodesAndScalesMakeTheirRowNan) {
  const Isa isa = GetParam();
  if (const Support s = supported(isa); !s) GTEST_SKIP() << s.reason;
  ThreadPool pool(1);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  for (const Formats& p : kFormats) {
    SCOPED_TRACE(info(p.weights).name);
    weights::QuantTensor w = random_weights(rng, p.weights, 1, 20, 64);
    const format::FormatInfo f = info(p.weights);
    if (f.bits == 16)
      w.codes.as<uint16_t>()[3 * 64 + 5] = 0x7fc0;
    else if (f.bits == 8)
      static_cast<uint8_t*>(w.codes.data())[3 * 64 + 5] = 0xff;
    else
      static_cast<uint8_t*>(w.scales.data())[3 * (64 / f.group_k)] = f.scale == format::ScaleType::e8m0 ? 0xff : 0x7f;
    const std::vector<float> x(64, 1.0f);
    const std::vector<float> y =
        run(ctx, isa, p, DType::bf16, {1, 20, 64, 1, false}, w, nullptr, x, 0.01f, {0, 1}, {0});
    for (size_t c = 0; c < 20; ++c) EXPECT_EQ(std::isnan(y[c]), c == 3) << c;
  }
}

// What check_operands() in grouped_gemm.cc refuses. The base case is accepted, and each other differs in one operand.
TEST(GroupedGemmContract, RefusesOperandsThatDoNotFit) {
  ThreadPool pool(1);
  Context ctx{pool};
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  const CpuKernel kernel = choose_cpu_kernel(Isa::scalar, Format::bf16, InputFormat::plain, DType::f32);
  const int32_t offsets[] = {0, 3, 4}, too_many[] = {0, 3, 5}, input_rows[] = {3, 2, 1, 0};
  const auto pack = [&](Format f, int64_t experts, int64_t n, int64_t k, Fp8Order order) {
    return PackedWeights(ctx, random_weights(rng, f, experts, n, k), nullptr, order);
  };
  struct Operands {
    CpuKernel kernel;
    GroupedRows rows;
    PackedWeights w;
    bool scratch = true;
  };
  const auto multiply = [&](const Operands& o) {  // returns the finished tiles
    const int64_t tokens = 4, k = 64;
    PackedRows x;
    GemmWorkspace workspace;
    const auto allocate = [&](void* base) {
      BumpAllocator a(base);
      x = allocate_packed_rows(a, o.kernel, tokens, k, k);
      workspace = allocate_gemm_workspace(a, 1, 2, 5);
      return a.used();
    };
    Tensor memory(DType::u8, {allocate(nullptr)});
    std::memset(memory.data(), 0, static_cast<size_t>(memory.bytes()));
    allocate(memory.data());
    if (!o.scratch) workspace.scratch = nullptr;
    int64_t tiles = 0;
    grouped_gemm(ctx, x, o.w, o.rows, workspace, [&](const OutputTile&) { ++tiles; });
    return tiles;
  };
  const auto fitting = [&] {
    return Operands{kernel, {2, offsets, nullptr}, pack(Format::bf16, 2, 40, 64, kernel.fp8_order)};
  };
  EXPECT_EQ(multiply(fitting()), 2 * 2) << "two groups by two N-tiles";
  Operands permuted = fitting();
  permuted.rows.input_rows = input_rows;
  EXPECT_EQ(multiply(permuted), 2 * 2);

  EXPECT_THROW(pack(Format::bf16, 2, 0, 64, kernel.fp8_order), Error);
  Operands other_format = fitting();
  other_format.w = pack(Format::mxfp8, 2, 40, 64, kernel.fp8_order);
  EXPECT_THROW(multiply(other_format), Error);
  Operands other_order = fitting();
  other_order.kernel = choose_cpu_kernel(Isa::scalar, Format::mxfp8, InputFormat::plain, DType::f32);
  other_order.w = pack(Format::mxfp8, 2, 40, 64, Fp8Order::bf16_pairs);
  EXPECT_THROW(multiply(other_order), Error);
  Operands other_k = fitting();
  other_k.w = pack(Format::bf16, 2, 40, 96, kernel.fp8_order);
  EXPECT_THROW(multiply(other_k), Error);
  Operands other_groups = fitting();
  other_groups.w = pack(Format::bf16, 3, 40, 64, kernel.fp8_order);
  EXPECT_THROW(multiply(other_groups), Error);
  Operands more_rows = fitting();
  more_rows.rows.offsets = too_many;
  EXPECT_THROW(multiply(more_rows), Error);
  Operands scattered = permuted;
  scattered.kernel.contiguous_rows = true;
  EXPECT_THROW(multiply(scattered), Error);

  // check_gemm_args(): a missing buffer.
  Operands without_scratch = fitting();
  without_scratch.scratch = false;
  EXPECT_THROW(multiply(without_scratch), Error);
}

}  // namespace
// Levels that sum the same integers give the same bits.
TEST(IntegerLevels, GiveTheSameBits) {
  std::mt19937_64 rng = test::rng<std::mt19937_64>();
  ThreadPool pool(2);
  Context ctx{pool};
  const int64_t n = 97, k = 800, tokens = 14;
  for (const Formats& p :
       {Formats{Format::nvfp4, InputFormat::nvfp4_token}, Formats{Format::mxfp4, InputFormat::plain}}) {
    const weights::QuantTensor w = random_weights(rng, p.weights, 1, n, k);
    std::vector<float> x = normal_values(rng, tokens * k);
    for (float& v : x) v = bf16_exact(v);
    std::vector<int32_t> rows(static_cast<size_t>(tokens));
    std::iota(rows.begin(), rows.end(), 0);
    std::vector<float> first;
    for (const Isa isa : {Isa::avx2, Isa::avx_vnni, Isa::avx512}) {
      if (!supported(isa)) continue;
      SCOPED_TRACE(fmt::format("{} {}", name_of(kIsas, isa), info(p.weights).name));
      const std::vector<float> y = run(ctx, isa, p, DType::bf16, {1, n, k, tokens, false}, w, nullptr, x, 1.0f,
                                       {0, static_cast<int32_t>(tokens)}, rows);
      if (first.empty()) first = y;
      ASSERT_EQ(0, std::memcmp(first.data(), y.data(), y.size() * sizeof(float)));
    }
  }
}

}  // namespace sluice::kernels::cpu
