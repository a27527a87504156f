// SPDX-License-Identifier: Apache-2.0
// The dense GEMM in every format against double precision, from plain rows and from rows that are quantised already.
#include "kernels/sm90/dense/dense_gemm.h"
#include "tests/kernels_sm90/dense_problem.h"

namespace sluice::test {
namespace {

using format::InputFormat;
using format::ScaleLayout;

// FP8 with float32 sums too, and in a fixed tile.
std::vector<sm90::DenseSpec> variants_of(sm90::DenseSpec s) {
  std::vector<sm90::DenseSpec> out;
  for (bool f32_sums : {false, true})
    for (bool deterministic : {false, true}) {
      s.fp8_f32_sums = f32_sums;
      s.deterministic = deterministic;
      if ((!f32_sums || format::is_fp8(s.weights)) && sm90::supports_dense(s)) out.push_back(s);
    }
  return out;
}

TEST(DenseGemm, EveryFormat) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (DType dtype : {DType::bf16, DType::f32})
        for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 128}, {1856, 96}, {96, 2688}, {257, 224}})
          for (int64_t tokens : {1, 5, 64, 333})
            for (const sm90::DenseSpec& s : variants_of({n, k, f, inputs, dtype})) {
              SCOPED_TRACE(fmt::format("{} {} {} [{}, {}] T={} f32_sums={} deterministic={}", name, input_name,
                                       to_string(dtype), n, k, tokens, s.fp8_f32_sums, s.deterministic));
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

// With `deterministic` a row of y is the same alone, in a small and in a large batch.
TEST(DenseGemm, ATokenDoesNotDependOnItsBatch) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const sm90::DenseSpec& s : variants_of({160, 1504, f, inputs, DType::bf16})) {
        if (!s.deterministic) continue;
        SCOPED_TRACE(fmt::format("{} {} f32_sums={}", name, input_name, s.fp8_f32_sums));
        const Dense d = make(s, 300, true, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
        const sm90::DeviceBuffer x = upload_x(d);
        sm90::DenseCall call;
        call.tokens = d.tokens;
        call.x = x.data();
        const auto together = run(gemm, call);
        for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {57, 1}, {120, 20}, {200, 100}}) {
          call.tokens = count;
          call.x = x.as<uint16_t>() + begin * s.cols;
          const auto from = together.begin() + static_cast<std::ptrdiff_t>(begin * s.rows);
          ASSERT_EQ(run(gemm, call), std::vector<float>(from, from + static_cast<std::ptrdiff_t>(count * s.rows)))
              << "tokens " << begin << " to " << begin + count;
        }
      }
}

// A count in device memory, in range or not: rows beyond it stay, the others are those of a call without.
TEST(DenseGemm, TokensOnTheDevice) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  constexpr int64_t kMost = 40;
  for (const auto& [f, name] : format::kFormats) {
    const sm90::DenseSpec s{192, 352, f, format::info(f).input, DType::bf16};
    const Dense d = make(s, kMost, false, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d), count(4);
    sm90::DenseCall call;
    call.tokens = kMost;
    call.x = x.data();
    const auto all = run(gemm, call);
    call.num_tokens = count.as<int32_t>();
    for (const int32_t given : {40, 1, 0, 17, -1, -40, INT32_MIN, 41, INT32_MAX}) {
      cuda(cudaMemcpy(count.data(), &given, 4, cudaMemcpyHostToDevice));
      const auto got = run(gemm, call);
      const auto used = static_cast<size_t>(std::clamp<int64_t>(given, 0, kMost) * s.rows);
      for (size_t i = 0; i < got.size(); ++i) {
        if (i < used)
          ASSERT_EQ(got[i], all[i]) << name << " " << given << " tokens";
        else
          ASSERT_TRUE(std::isnan(got[i])) << name << " beyond " << given << " tokens";
      }
    }
  }
}

// Rows that the copy engine can read are not copied first: the same bits as from rows that it cannot, in every tile,
// with every split of K, with a count on the device. It cannot read float32 as bfloat16, or codes at half its
// alignment.
TEST(DenseGemm, RowsInPlaceGiveTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const InputFormat inputs : {InputFormat::plain, InputFormat::fp8_static, InputFormat::fp8_token})
    for (const int64_t cols : {352, 1088})
      for (const sm90::Instance& tile : sm90::instances()) {
        const bool plain = inputs == InputFormat::plain;
        const sm90::DenseSpec s{200, cols, plain ? format::Format::bf16 : format::Format::fp8_tensor, inputs,
                                DType::bf16};
        if (tile.operand != sm90::dense_shape(s).operand) continue;
        const int64_t tokens = 1 + static_cast<int64_t>(rng() % 700);
        const Dense d = make(s, tokens, true, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
        // Any codes do, but the two that are no numbers. Factors are those of fp8_token.
        std::vector<uint8_t> codes(static_cast<size_t>(8 + tokens * cols));
        for (uint8_t& c : codes) c = static_cast<uint8_t>(rng() % 2 * 128 + rng() % 127);
        std::vector<float> factors;
        for (int64_t t = 0; t < tokens; ++t) factors.push_back(0.5f + static_cast<float>(rng() % 100));
        const sm90::DeviceBuffer narrow = upload_x(d), wide = upload(d.x.data(), tokens * cols * 4);
        const sm90::DeviceBuffer at_16 = upload(codes.data() + 8, tokens * cols),
                                 at_8 = upload(codes.data(), 8 + tokens * cols),
                                 row_scales = upload(factors.data(), tokens * 4);
        const int32_t given = static_cast<int32_t>(rng() % static_cast<uint32_t>(tokens));
        const sm90::DeviceBuffer count = upload(&given, 4);
        for (const int splits : {1, 3})
          for (const bool counted : {false, true}) {
            SCOPED_TRACE(fmt::format("{} {} columns {} tokens splits {} counted {}", tile.name(), cols, tokens, splits,
                                     counted));
            sm90::GemmForce force;
            force.instance = tile.name();
            force.splits[0] = splits;
            const auto result = [&](bool in_place) {
              sm90::DenseCall call;
              call.tokens = tokens;
              call.num_tokens = counted ? count.as<int32_t>() : nullptr;
              if (plain) {
                call.x = in_place ? narrow.data() : wide.data();
                call.x_dtype = in_place ? DType::bf16 : DType::f32;
              } else {
                call.codes = in_place ? at_16.as<uint8_t>() : at_8.as<uint8_t>() + 8;
                call.row_scales = inputs == InputFormat::fp8_token ? row_scales.as<float>() : nullptr;
              }
              return run(gemm, call, force);
            };
            const auto in_place = result(true), copied = result(false);
            ASSERT_EQ(std::memcmp(in_place.data(), copied.data(), in_place.size() * 4), 0);
          }
      }
}

// Rounding by the quantiser and then multiplying equals the call that rounds, bit for bit, from every layout.
TEST(DenseGemm, QuantisedRowsGiveTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats)
      for (const auto& [layout, layout_name] : format::kScaleLayouts)
        for (int64_t tokens : {3, 200, 600}) {
          if (inputs == InputFormat::plain) continue;
          for (const sm90::DenseSpec& s : variants_of({192, 352, f, inputs, DType::bf16})) {
            const auto coding = parse_name(sm90::kCodings, "coding", input_name);
            const int group = sm90::coding_group(coding);
            const bool floats = coding == sm90::Coding::fp8_group;
            if (layout != ScaleLayout::linear && (group == 0 || (layout == ScaleLayout::transposed) != floats))
              continue;
            SCOPED_TRACE(fmt::format("{} {} {} T={}", name, input_name, layout_name, tokens));
            const Dense d = make(s, tokens, false, rng);
            sm90::DenseGemm gemm(s);
            gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
            const sm90::DeviceBuffer x = upload_x(d), scale = upload(&d.input_scale, 4);
            const int64_t groups = group > 0 ? (s.cols + group - 1) / group : 0;
            const sm90::DeviceBuffer codes = poisoned(tokens * s.cols), rows = poisoned(tokens * 4);
            const sm90::DeviceBuffer scales =
                poisoned(format::scale_elements(layout, tokens, groups) * (floats ? 4 : 1));
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
            const sm90::BatchRowsChoice choice = gemm.batch_rows_choice(call);
            call = {};
            call.tokens = tokens;
            call.x = x.data();
            // The same kernel: each has its order of sums.
            if (choice.tile > 0)
              call.batch_rows = choice;
            else
              call.few_rows = 0;
            EXPECT_EQ(from_codes, run(gemm, call));
            if (HasFailure()) return;
          }
        }
}

}  // namespace
}  // namespace sluice::test
