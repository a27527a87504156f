// SPDX-License-Identifier: Apache-2.0
// The kernel for few rows against double precision: every operand, tile, number of parts of K and way of storing.
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/few_rows/heuristic.h"
#include "tests/kernels_sm90/dense_problem.h"

namespace sluice::test {
namespace {

using format::InputFormat;

std::string name_of(const sm90::DenseSpec& s, int64_t tokens, int parts) {
  return fmt::format("{} parts={}", describe(s, tokens), parts);
}
sm90::DenseCall call_of(const Dense& d, const sm90::DeviceBuffer& x, std::optional<int> parts) {
  sm90::DenseCall call;
  call.tokens = d.tokens;
  call.x = x.data();
  call.few_rows = parts;
  return call;
}

// Matrices of one M-tile and of several, with ragged rows and columns; K shorter than the parts.
TEST(FewRows, EveryFormat) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 128}, {96, 2688}, {257, 224}, {1000, 1056}})
      for (const sm90::DenseSpec& s : specs_of(n, k, dtype)) {
        const Dense whole = make(s, 16, true, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(whole.w, whole.input_scale, whole.bias, nullptr);
        for (int64_t tokens : {1, 7, 8, 9, 16}) {
          const Dense d = whole.first(tokens);
          const sm90::DeviceBuffer x = upload_x(d);
          for (int parts : {1, 2, 4, 8}) {
            SCOPED_TRACE(name_of(s, tokens, parts));
            const auto y = run(gemm, call_of(d, x, parts));
            if (parts == 1 || tokens == 9) check_result(d, y, all);
            EXPECT_LE(all.worst, 1);
            EXPECT_EQ(y, run(gemm, call_of(d, x, parts))) << "the second time";
            if (HasFailure()) return;
          }
        }
      }
  all.print("few rows");
}

TEST(FewRows, EveryNumberOfRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const sm90::DenseSpec& s : specs_of(136, 520 + 120, DType::bf16)) {
    const Dense whole = make(s, 20, false, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(whole.w, whole.input_scale, whole.bias, nullptr);
    std::vector<float> most;
    for (int64_t tokens = 20; tokens >= 1; --tokens) {
      const Dense d = whole.first(tokens);
      const sm90::DeviceBuffer x = upload_x(d);
      sm90::DenseCall call = call_of(d, x, std::nullopt);
      const int parts = sm90::few_rows_splits(gemm.matrix().shape, sm90::multiprocessors());
      const bool rounded = sm90::decodes(gemm.matrix().shape.operand) && s.inputs != InputFormat::plain;
      ASSERT_EQ(gemm.few_rows_parts(call),
                tokens <= (rounded ? sm90::kMaxRoundedFewRows : sm90::kMaxFewRows) ? parts : 0);
      if (tokens <= sm90::kMaxFewRows) call.few_rows = parts;
      SCOPED_TRACE(name_of(s, tokens, call.few_rows.value_or(0)));
      const auto y = run(gemm, call);
      check_result(d, y, all);
      ASSERT_LE(all.worst, 1);
      // A row does not depend on the rows beside it.
      if (tokens == sm90::kMaxFewRows) most = y;
      if (tokens <= sm90::kMaxFewRows) {
        ASSERT_EQ(y, std::vector<float>(most.begin(), most.begin() + static_cast<std::ptrdiff_t>(tokens * s.rows)));
      }
    }
  }
  all.print("few rows, 1 to 20");
}

// Columns that are no multiple of eight are read one by one, and results of such rows written so.
TEST(FewRows, RaggedMatrices) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {3, 67}, {131, 701}, {250, 127}, {520, 130}})
      for (const format::Format f : {format::Format::bf16, format::Format::fp8_tensor, format::Format::fp8_channel})
        for (const InputFormat inputs : {InputFormat::plain, InputFormat::fp8_token})
          for (int64_t tokens : {1, 12, 16}) {
            const sm90::DenseSpec s{n, k, f, inputs, dtype};
            if (!sm90::supports_dense(s)) continue;
            const Dense d = make(s, tokens, tokens == 12, rng);
            sm90::DenseGemm gemm(s);
            gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
            const sm90::DeviceBuffer x = upload_x(d);
            for (int parts : {1, 4}) {
              SCOPED_TRACE(name_of(s, tokens, parts));
              check_result(d, run(gemm, call_of(d, x, parts)), all);
              ASSERT_LE(all.worst, 1);
            }
          }
  all.print("few rows, ragged");
}

// One part of K gives the bits of the grouped GEMM that does not split it.
TEST(FewRows, OnePartEqualsTheGroupedGemm) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{384, 1536}, {100, 480}})
      for (sm90::DenseSpec s : specs_of(n, k, dtype)) {
        s.deterministic = true;
        const Dense d = make(s, 13, true, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
        const sm90::DeviceBuffer x = upload_x(d);
        SCOPED_TRACE(name_of(s, d.tokens, 1));
        EXPECT_EQ(run(gemm, call_of(d, x, 1)), run(gemm, call_of(d, x, 0)));
      }
}

// More M-tiles than blocks, with the stages of several tasks in the ring; rows of x that lie apart.
TEST(FewRows, ManyTasks) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const format::Format f : {format::Format::bf16, format::Format::nvfp4, format::Format::fp8_block})
    for (const int64_t tokens : {1, 9}) {
      // With one row a stage is one warp's work, and there are more warps than stages.
      const sm90::DenseSpec s{90000, 256, f, format::info(f).input, DType::bf16};
      const Dense d = make(s, tokens, false, rng);
      sm90::DenseGemm gemm(s);
      gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
      constexpr int64_t kStride = 264;
      const sm90::DeviceBuffer x = upload_x_apart(d, kStride);
      sm90::DenseCall call = call_of(d, x, 1);
      call.x_stride = kStride;
      check_result(d, run(gemm, call), all);
      ASSERT_LE(all.worst, 1);
    }
  all.print("few rows, many tasks");
}

TEST(FewRows, RowsOfYApart) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (DType dtype : {DType::bf16, DType::f32}) {
    const sm90::DenseSpec s{200, 512, format::Format::bf16, InputFormat::plain, DType::bf16};
    const Dense d = make(s, 13, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    for (int parts : {1, 4}) {
      sm90::DenseCall call = call_of(d, x, parts);
      call.y_dtype = dtype;
      check_rows_of_y_apart(gemm, call);
    }
  }
}

TEST(FewRows, ChainedCalls) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  const sm90::DenseSpec s{1024, 1024, format::Format::bf16, InputFormat::plain, DType::bf16};
  const Dense d = make(s, 8, false, rng);
  sm90::DenseGemm gemm(s);
  gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
  check_chain(gemm, d, [&](int i) { return call_of(d, {}, i % 2 == 0 ? 8 : 1); });
}

}  // namespace
}  // namespace sluice::test
