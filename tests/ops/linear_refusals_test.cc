// SPDX-License-Identifier: Apache-2.0
// What a matrix product refuses: workspaces, shapes, types and threads that do not fit.
#include "tests/ops/linear_problem.h"

namespace sluice::ops {
namespace {

using format::Format;
using format::InputFormat;

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

}  // namespace
}  // namespace sluice::ops
