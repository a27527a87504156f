// SPDX-License-Identifier: Apache-2.0
// The kernel for a batch of rows against double precision: every operand, tile, number of parts of K and way of
// storing.
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/quantize/tensor.h"
#include "tests/kernels_sm90/dense_problem.h"

namespace sluice::test {
namespace {

using format::InputFormat;
using sm90::BatchRowsChoice;

// With these parts of K.
std::vector<BatchRowsChoice> choices_of(const sm90::WeightShape& shape, int parts) {
  std::vector<BatchRowsChoice> out;
  for (const sm90::BatchTileSize& t : sm90::kBatchTiles)
    for (const int m_parts : {1, 2, 4}) {
      const BatchRowsChoice c{t.rows, t.blocks, parts, m_parts};
      if (sm90::batch_rows_possible(shape, c)) out.push_back(c);
    }
  for (const int tile : sm90::kChainTiles)
    for (const int m_parts : sm90::kChainMParts)
      for (const bool leaves_room : {false, true}) {
        const BatchRowsChoice c{tile, 1, parts, m_parts, true, leaves_room};
        if (sm90::batch_rows_possible(shape, c)) out.push_back(c);
      }
  return out;
}
std::string name_of(const sm90::DenseSpec& s, int64_t tokens, const BatchRowsChoice& c) {
  return fmt::format("{} tile={} blocks={} parts={} m_parts={} chain={} leaves_room={}", describe(s, tokens), c.tile,
                     c.blocks, c.parts, c.m_parts, c.chain, c.leaves_room);
}
sm90::DenseCall call_of(int64_t tokens, const sm90::DeviceBuffer& x, std::optional<BatchRowsChoice> choice) {
  sm90::DenseCall call;
  call.tokens = tokens;
  call.x = x.data();
  call.batch_rows = choice;
  return call;
}
std::vector<float> first_rows(const std::vector<float>& y, int64_t rows, int64_t columns) {
  return {y.begin(), y.begin() + static_cast<std::ptrdiff_t>(rows * columns)};
}

// Matrices of one M-tile and of several, with ragged rows and columns. The bits of a row depend on the parts of K
// alone: not on the tile or the other rows.
TEST(BatchRows, EveryFormat) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 128}, {96, 1344}, {641, 544}})
      for (const sm90::DenseSpec& s : specs_of(n, k, dtype)) {
        if (dtype == DType::f32 && n != 96) continue;
        const Dense d = make(s, 256, n == 96, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
        const sm90::DeviceBuffer x = upload_x(d);
        for (const int parts : {1, 2, 3, 5, 8}) {
          std::vector<float> most;
          for (const BatchRowsChoice& c : choices_of(gemm.matrix().shape, parts))
            for (const int64_t tokens : {256, 5, 17, 90, 150}) {
              if (tokens != 256 && (c.tile < tokens / 3 || c.tile > 4 * tokens)) continue;
              SCOPED_TRACE(name_of(s, tokens, c));
              const auto y = run(gemm, call_of(tokens, x, c));
              if (most.empty()) {
                most = y;
                if (parts == 1 || parts == 3) check_result(d, y, all);
                EXPECT_LE(all.worst, 1);
              }
              EXPECT_EQ(y, first_rows(most, tokens, s.rows));
              if (HasFailure()) return;
            }
        }
      }
  all.print("batch of rows");
}

// A device of three multiprocessors: a block takes several tasks in turn.
TEST(BatchRows, TasksInTurn) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const sm90::DenseSpec& s : specs_of(641, 544, DType::bf16)) {
    const Dense d = make(s, 150, true, rng);
    sm90::DenseGemm gemm(s), small(s, 3);
    for (sm90::DenseGemm* g : {&gemm, &small}) g->set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    for (const BatchRowsChoice& c : choices_of(gemm.matrix().shape, 1)) {
      SCOPED_TRACE(name_of(s, d.tokens, c));
      ASSERT_EQ(run(small, call_of(d.tokens, x, c)), run(gemm, call_of(d.tokens, x, BatchRowsChoice{64, 1, 1})));
    }
  }
}

// More of K than the ring of a chain holds: 140 k-blocks and a part of one, the last stage not whole.
TEST(BatchRows, LongChains) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, inputs, k] : {std::tuple{format::Format::bf16, InputFormat::plain, int64_t{64 * 140 + 24}},
                                     {format::Format::fp8_channel, InputFormat::fp8_token, 128 * 140 + 48},
                                     {format::Format::fp8_block, InputFormat::fp8_group, 128 * 140 + 48}}) {
    const sm90::DenseSpec s{200, k, f, inputs, DType::bf16};
    const Dense d = make(s, 50, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    const auto y = run(gemm, call_of(d.tokens, x, BatchRowsChoice{64, 1, 1}));
    check_result(d, y, all);
    ASSERT_LE(all.worst, 1);
    for (const BatchRowsChoice& c : choices_of(gemm.matrix().shape, 1))
      for (const int64_t tokens : {1, 8, 13, 32, 50}) {
        if (!c.chain && tokens != 8) continue;
        SCOPED_TRACE(name_of(s, tokens, c));
        ASSERT_EQ(run(gemm, call_of(tokens, x, c)), first_rows(y, tokens, s.rows));
      }
  }
  all.print("batch of rows, long chains");
}

// What is chosen, for every number of rows. Columns that are no multiple of eight are copied first.
TEST(BatchRows, EveryNumberOfRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [f, inputs] : {std::pair{format::Format::bf16, InputFormat::plain},
                                  {format::Format::fp8_channel, InputFormat::fp8_token},
                                  {format::Format::fp8_block, InputFormat::fp8_group}})
    for (const int64_t k : {192, 131}) {
      const sm90::DenseSpec s{136, k, f, inputs, DType::bf16};
      const Dense whole = make(s, 260, false, rng);
      sm90::DenseGemm gemm(s);
      gemm.set_weights(whole.w, whole.input_scale, whole.bias, nullptr);
      const sm90::DeviceBuffer x = upload_x(whole);
      for (int64_t tokens = 1; tokens <= 260; tokens += k == 131 ? 13 : 1) {
        const sm90::DenseCall call = call_of(tokens, x, std::nullopt);
        const bool few = gemm.few_rows_parts(call) > 0;
        ASSERT_EQ(gemm.batch_rows_choice(call).tile > 0, !few && tokens <= sm90::kMaxBatchRows) << tokens;
        SCOPED_TRACE(name_of(s, tokens, gemm.batch_rows_choice(call)));
        check_result(whole.first(tokens), run(gemm, call), all);
        ASSERT_LE(all.worst, 1);
      }
    }
  all.print("batch of rows, 1 to 260");
}

// Without `deterministic` too, BF16 rows that need no copy are chains from one row on, and a row has the same bits
// beside any others. So are FP8 rows, which a launch before rounds. Others stay with the kernel for few rows: float32
// rows, rows that are not aligned, and narrow matrices.
TEST(BatchRows, ChainsOfFewRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{8192, 512}, {8200, 328}}) {
    const sm90::DenseSpec s{n, k, format::Format::bf16, InputFormat::plain, DType::bf16};
    const Dense d = make(s, sm90::kFewChainRows, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    const auto y = run(gemm, call_of(d.tokens, x, std::nullopt));
    sm90::DenseCall beside = call_of(sm90::kMostSharedChainRows, x, std::nullopt);
    beside.leaves_room = true;
    ASSERT_TRUE(gemm.batch_rows_choice(beside).leaves_room);
    EXPECT_EQ(run(gemm, beside), first_rows(y, beside.tokens, n));
    beside.tokens += 1;
    EXPECT_FALSE(gemm.batch_rows_choice(beside).leaves_room);
    check_result(d, y, all);
    ASSERT_LE(all.worst, 1);
    for (int64_t tokens = 1; tokens <= d.tokens; ++tokens) {
      const sm90::DenseCall call = call_of(tokens, x, std::nullopt);
      ASSERT_TRUE(gemm.batch_rows_choice(call).chain) << tokens;
      ASSERT_EQ(run(gemm, call), first_rows(y, tokens, n)) << tokens;
    }
    sm90::DenseCall call = call_of(8, x, std::nullopt);
    EXPECT_EQ(gemm.few_rows_parts(call), 0);
    call.x_dtype = DType::f32;
    EXPECT_GT(gemm.few_rows_parts(call), 0);
    call.x_dtype = std::nullopt;
    call.x = x.as<uint16_t>() + 4;
    EXPECT_GT(gemm.few_rows_parts(call), 0);
  }
  const sm90::DenseSpec fp8{8192, 512, format::Format::fp8_channel, InputFormat::fp8_token, DType::bf16};
  const sm90::DeviceBuffer x(16 * 512);
  EXPECT_EQ(sm90::DenseGemm(fp8).few_rows_parts(call_of(8, x, std::nullopt)), 0);
  const sm90::DenseSpec router{256, 512, format::Format::bf16, InputFormat::plain, DType::bf16};
  EXPECT_GT(sm90::DenseGemm(router).few_rows_parts(call_of(8, x, std::nullopt)), 0);
  all.print("batch of rows, chains");
}

// Columns that are no multiple of eight are read one by one, and results of such rows written so.
TEST(BatchRows, RaggedMatrices) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{1, 1}, {3, 67}, {131, 701}, {250, 127}, {520, 2100}})
      for (sm90::DenseSpec s : specs_of(n, k, dtype))
        for (int64_t tokens : {19, 140}) {
          // Others have no ragged columns, or columns as FP8's.
          if (s.fp8_f32_sums && s.weights != format::Format::fp8_block) continue;
          const Dense d = make(s, tokens, tokens == 19, rng);
          sm90::DenseGemm gemm(s);
          gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
          const sm90::DeviceBuffer x = upload_x(d);
          for (const int parts : {1, 3})
            for (const BatchRowsChoice& c : choices_of(gemm.matrix().shape, parts)) {
              if (!c.chain && c.tile != 64 && c.tile != 256) continue;
              SCOPED_TRACE(name_of(s, tokens, c));
              check_result(d, run(gemm, call_of(tokens, x, c)), all);
              ASSERT_LE(all.worst, 1);
            }
        }
  all.print("batch of rows, ragged");
}

// One part of K gives the bits of the grouped GEMM that does not split it.
TEST(BatchRows, OnePartEqualsTheGroupedGemm) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (DType dtype : {DType::bf16, DType::f32})
    for (const auto& [n, k] : {std::pair<int64_t, int64_t>{384, 1536}, {300, 480}})
      for (sm90::DenseSpec s : specs_of(n, k, dtype)) {
        s.deterministic = true;
        // The grouped GEMM's tile of deterministic FP8 block has tokens as the M side, so that kernel takes all calls.
        if (sm90::dense_shape(s).operand == sm90::WeightOperand::fp8_block) continue;
        const Dense d = make(s, 100, true, rng);
        sm90::DenseGemm gemm(s);
        gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
        const sm90::DeviceBuffer x = upload_x(d);
        sm90::DenseCall call = call_of(d.tokens, x, std::nullopt);
        const BatchRowsChoice chosen = gemm.batch_rows_choice(call);
        ASSERT_EQ(chosen.parts, 1);
        call.few_rows = 0;
        const auto grouped = run(gemm, call);
        SCOPED_TRACE(name_of(s, d.tokens, chosen));
        EXPECT_EQ(run(gemm, call_of(d.tokens, x, chosen)), grouped);
      }
}

// A narrow deterministic matrix: K is in as many parts whatever the rows, and a row's bits depend on no other.
TEST(BatchRows, NarrowMatricesOfAnyNumberOfRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const auto& [n, k] : {std::pair<int64_t, int64_t>{128, 2048}, {200, 1344}, {100, 700}}) {
    sm90::DenseSpec s{n, k, format::Format::bf16, InputFormat::plain, DType::bf16};
    s.deterministic = true;
    const Dense d = make(s, 1500, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    const auto y = run(gemm, call_of(d.tokens, x, std::nullopt));
    SCOPED_TRACE(name_of(s, d.tokens, gemm.batch_rows_choice(call_of(d.tokens, x, std::nullopt))));
    check_result(d, y, all);
    ASSERT_LE(all.worst, 1);
    for (const int64_t tokens : {1, 2, 16, 17, 63, 130, 256, 257, 700}) {
      const sm90::DenseCall call = call_of(tokens, x, std::nullopt);
      ASSERT_EQ(gemm.batch_rows_choice(call).parts, sm90::deterministic_parts(gemm.matrix().shape));
      ASSERT_GT(gemm.batch_rows_choice(call).parts, 1);
      ASSERT_EQ(run(gemm, call), std::vector<float>(y.begin(), y.begin() + tokens * n)) << tokens;
    }
  }
  all.print("batch of rows, narrow");
}

// More tasks than blocks, with the stages of several tasks in the rings, and several tiles of rows; rows of x that lie
// apart.
TEST(BatchRows, ManyTasks) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Excursion all;
  for (const format::Format f :
       {format::Format::bf16, format::Format::nvfp4, format::Format::fp8_tensor, format::Format::fp8_block}) {
    const sm90::DenseSpec s{70000, 128, f, format::info(f).input, DType::bf16};
    const Dense d = make(s, 70, false, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    constexpr int64_t kStride = 136;
    const sm90::DeviceBuffer x = upload_x_apart(d, kStride);
    std::vector<float> first;
    for (const BatchRowsChoice& c : choices_of(gemm.matrix().shape, 1)) {
      SCOPED_TRACE(name_of(s, d.tokens, c));
      sm90::DenseCall call = call_of(d.tokens, x, c);
      call.x_stride = kStride;
      const auto y = run(gemm, call);
      if (first.empty()) {
        first = y;
        check_result(d, y, all);
        ASSERT_LE(all.worst, 1);
      }
      ASSERT_EQ(y, first);
    }
  }
  all.print("batch of rows, many tasks");
}

// A count in device memory, in range or not: rows beyond it stay, the others are those of a call without.
TEST(BatchRows, RowsOnTheDevice) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  constexpr int64_t kMost = 200;
  for (const auto& [f, inputs] : {std::pair{format::Format::bf16, InputFormat::plain},
                                  {format::Format::fp8_channel, InputFormat::fp8_token},
                                  {format::Format::fp8_block, InputFormat::fp8_group},
                                  {format::Format::nvfp4, InputFormat::nvfp4_token}}) {
    const sm90::DenseSpec s{192, 1024, f, inputs, DType::bf16};
    const Dense d = make(s, kMost, false, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d), count(4);
    for (const BatchRowsChoice& c :
         {BatchRowsChoice{64, 2, 1}, {64, 2, 3}, {256, 1, 2}, {8, 1, 1, 4, true}, {32, 1, 1, 2, true}}) {
      if (!sm90::batch_rows_possible(gemm.matrix().shape, c)) continue;  // weights that are decoded have no chains
      sm90::DenseCall call = call_of(kMost, x, c);
      const auto all = run(gemm, call);
      call.num_tokens = count.as<int32_t>();
      for (const int32_t given : {200, 1, 0, 17, 64, 129, -1, INT32_MIN, 201, INT32_MAX}) {
        cuda(cudaMemcpy(count.data(), &given, 4, cudaMemcpyHostToDevice));
        const auto got = run(gemm, call);
        const auto used = static_cast<size_t>(std::clamp<int64_t>(given, 0, kMost) * s.rows);
        for (size_t i = 0; i < got.size(); ++i) {
          if (i < used)
            ASSERT_EQ(got[i], all[i]) << name_of(s, given, c);
          else
            ASSERT_TRUE(std::isnan(got[i])) << name_of(s, given, c);
        }
      }
    }
  }
}

// Rows that were rounded before, each with a scale of its own or all with the calibrated one: the bits of the call that
// rounds them.
TEST(BatchRows, CodesGiveTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const InputFormat inputs : {InputFormat::fp8_token, InputFormat::fp8_static})
    for (const bool f32_sums : {false, true}) {
      sm90::DenseSpec s{300, 1040, format::Format::fp8_channel, inputs, DType::bf16};
      s.fp8_f32_sums = f32_sums;
      const Dense d = make(s, 150, true, rng);
      sm90::DenseGemm gemm(s);
      gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
      const sm90::DeviceBuffer x = upload_x(d), scale = upload(&d.input_scale, 4);
      const sm90::DeviceBuffer codes = poisoned(d.tokens * s.cols), rows = poisoned(d.tokens * 4);
      sm90::QuantizeArgs q{};
      q.coding = inputs == InputFormat::fp8_token ? sm90::Coding::fp8_token : sm90::Coding::fp8_static;
      q.x = x.data();
      q.rows = d.tokens;
      q.cols = static_cast<int>(s.cols);
      q.input_scale = scale.as<float>();
      q.codes = codes.as<uint8_t>();
      q.row_scales = inputs == InputFormat::fp8_token ? rows.as<float>() : nullptr;
      sm90::launch_quantize(q, nullptr, true);
      for (const BatchRowsChoice& c : {BatchRowsChoice{64, 2, 1}, {128, 1, 3}, {256, 1, 2}, {16, 1, 1, 4, true}}) {
        if (!sm90::batch_rows_possible(gemm.matrix().shape, c)) continue;  // sums in float32 have no chains
        sm90::DenseCall call = call_of(d.tokens, x, c);
        const auto rounded = run(gemm, call);
        call.x = nullptr;
        call.codes = codes.as<uint8_t>();
        call.row_scales = q.row_scales;
        EXPECT_EQ(run(gemm, call), rounded) << name_of(s, d.tokens, c);
      }
    }
}

// FP8 block: codes with a scale per 128 columns, of one row after the other or of one run of columns after the other.
// The last run is short.
TEST(BatchRows, CodesOfGroupsGiveTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const bool f32_sums : {false, true}) {
    sm90::DenseSpec s{300, 1040, format::Format::fp8_block, InputFormat::fp8_group, DType::bf16};
    s.fp8_f32_sums = f32_sums;
    const Dense d = make(s, 149, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    for (const format::ScaleLayout layout : {format::ScaleLayout::linear, format::ScaleLayout::transposed}) {
      const sm90::DeviceBuffer codes = poisoned(d.tokens * s.cols), scales = poisoned(d.tokens * 9 * 4);
      sm90::QuantizeArgs q{};
      q.coding = sm90::Coding::fp8_group;
      q.x = x.data();
      q.rows = d.tokens;
      q.cols = static_cast<int>(s.cols);
      q.codes = codes.as<uint8_t>();
      q.scales = scales.data();
      q.layout = layout;
      sm90::launch_quantize(q, nullptr, true);
      for (const BatchRowsChoice& c :
           {BatchRowsChoice{32, 2, 1}, {64, 2, 1}, {64, 1, 2}, {128, 1, 3}, {256, 1, 2}, {16, 1, 1, 4, true}}) {
        if (!sm90::batch_rows_possible(gemm.matrix().shape, c)) continue;
        sm90::DenseCall call = call_of(d.tokens, x, c);
        const auto rounded = run(gemm, call);
        call.x = nullptr;
        call.codes = codes.as<uint8_t>();
        call.scales = scales.data();
        call.layout = layout;
        EXPECT_EQ(run(gemm, call), rounded) << name_of(s, d.tokens, c);
        call.batch_rows.reset();
        EXPECT_GT(gemm.batch_rows_choice(call).tile, 0);
      }
    }
  }
}

TEST(BatchRows, RowsOfYApart) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (DType dtype : {DType::bf16, DType::f32}) {
    const sm90::DenseSpec s{200, 512, format::Format::bf16, InputFormat::plain, DType::bf16};
    const Dense d = make(s, 75, true, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer x = upload_x(d);
    for (const BatchRowsChoice& c : {BatchRowsChoice{64, 2, 1}, {128, 1, 3}, {8, 1, 1, 4, true}, {64, 1, 1, 2, true}}) {
      sm90::DenseCall call = call_of(d.tokens, x, c);
      call.y_dtype = dtype;
      check_rows_of_y_apart(gemm, call);
    }
  }
}

TEST(BatchRows, ChainedCalls) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, inputs] : {std::pair{format::Format::bf16, InputFormat::plain},
                                  {format::Format::fp8_channel, InputFormat::fp8_token},
                                  {format::Format::fp8_block, InputFormat::fp8_group}}) {
    const sm90::DenseSpec s{1024, 1024, f, inputs, DType::bf16};
    const Dense d = make(s, 130, false, rng);
    sm90::DenseGemm gemm(s);
    gemm.set_weights(d.w, d.input_scale, d.bias, nullptr);
    const sm90::DeviceBuffer workspace = poisoned(gemm.workspace_bytes(d.tokens));
    check_chain(gemm, d, [&](int i) {
      constexpr BatchRowsChoice kChoices[] = {
          {256, 1, 2}, {64, 2, 1}, {64, 2, 7}, {32, 1, 1, 4, true}, {8, 1, 1, 2, true}};
      sm90::DenseCall call = call_of(d.tokens, {}, kChoices[static_cast<size_t>(i) % std::size(kChoices)]);
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      return call;
    });
  }
}

}  // namespace
}  // namespace sluice::test
