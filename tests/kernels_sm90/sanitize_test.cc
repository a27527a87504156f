// SPDX-License-Identifier: Apache-2.0
// One small call through every kernel and tile, for compute-sanitizer (tools/gpu.sh): no reference, and no memory is
// cleared that the library does not clear itself, so that initcheck sees what it reads. SanitizeCopies is not for
// racecheck: it does not follow copies (cp.async) whose end counts on a barrier in shared memory and reports every read
// after one, and does not end within five minutes with the batches of rows.
#include "format/quantize_weights.h"
#include "kernels/sm90/attention/attention.h"
#include "kernels/sm90/dense/dense_gemm.h"
#include "kernels/sm90/quantize/four_over_six.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {
namespace {

void run_plain(const sm90::FusedMoe& moe, const DeviceProblem& d, const sm90::GemmForce& force) {
  const sm90::DeviceBuffer workspace(moe.workspace_bytes(d.tokens, force));
  sm90::MoeCall call = d.call;
  call.workspace = workspace.data();
  call.workspace_size = workspace.bytes();
  call.force = force;
  moe.run(call, nullptr);
  cuda(cudaDeviceSynchronize(), "the call");
}

Case case_of(format::Format f, format::InputFormat x, int64_t tokens) {
  Case c;
  c.spec.experts = 3;
  c.spec.top_k = 2;
  c.spec.hidden = 160;
  c.spec.inter = 96;
  c.spec.weights = f;
  c.spec.inputs = x;
  c.tokens = tokens;
  return c;
}

// With more k-blocks than a ring has stages, so that stages are used again.
TEST(Sanitize, EveryTile) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [x, input_name] : format::kInputFormats)
      for (bool f32_sums : {false, true}) {
        Case c = case_of(f, x, 5);
        c.spec.hidden = 1184;
        c.spec.fp8_f32_sums = f32_sums;
        if (!format::fits(f, x) || (f32_sums && !format::is_fp8(f)) || !sm90::supports_spec(c.spec)) continue;
        c.spec.act = input_name.size() % 2 == 0 ? activation::Activation::swiglu : activation::Activation::relu2;
        const Problem p = make_problem(c, rng);
        const DeviceProblem d(p);
        const auto moe = prepared(p);
        const auto operand = sm90::gemm_problem(c.spec, 5).operand;
        for (const sm90::Instance& i : sm90::instances())
          if (i.operand == operand) run_plain(*moe, d, {i.name(), {2, 1}});
      }
}

// FP8 per token: rows of one, two and four parts that the warpgroup which completes a tile rounds, several at a time
// and one after the other; and the kernel between two launches.
TEST(Sanitize, CompletedRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (bool f32_sums : {false, true})
    for (int64_t inter : {96, 1056, 2080}) {
      Case c = case_of(format::Format::fp8_channel, format::InputFormat::fp8_token, 9);
      c.spec.inter = inter;
      c.spec.fp8_f32_sums = f32_sums;
      c.spec.act = inter == 1056 ? activation::Activation::gelu : activation::Activation::swiglu;
      const Problem p = make_problem(c, rng);
      const DeviceProblem d(p);
      const auto moe = prepared(p);
      for (const sm90::Instance& i : sm90::instances())
        if (sm90::completes_rows(c.spec, i.operand, i.max_n) && i.operand == sm90::gemm_problem(c.spec, 9).operand)
          for (bool separate : {false, true}) run_plain(*moe, d, {i.name(), {1, 1}, separate});
    }
}

// Several k-blocks per warp, clusters, a sum and none.
TEST(Sanitize, OneToken) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [x, input_name] : format::kInputFormats)
      for (bool f32_sums : {false, true}) {
        Case c = case_of(f, x, 1);
        c.spec.hidden = 1184;
        c.spec.fp8_f32_sums = f32_sums;
        c.spec.finalize = !f32_sums;
        if (!format::fits(f, x) || (f32_sums && !format::is_fp8(f)) || !sm90::supports_spec(c.spec)) continue;
        const Problem p = make_problem(c, rng);
        run_plain(*prepared(p), DeviceProblem(p), {});
      }
}

// Weights that are streamed before the tables are there.
TEST(Sanitize, EarlyWeights) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats) {
    Case c = case_of(f, format::info(f).input, 3);
    c.spec.hidden = 4096;
    c.spec.routed = true;
    c.choice = Choice::unpacked;
    const Problem p = make_problem(c, rng);
    run_plain(*prepared(p), DeviceProblem(p), {});
  }
}

// Routing of many tokens, separate tables and gather, separate finalize, no finalize, FP8 block's second rounding.
TEST(Sanitize, EveryOtherKernel) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  Case c = case_of(format::Format::nvfp4, format::InputFormat::nvfp4, 90);
  for (const auto& [m, name] : routing::kMethods) {
    c.spec.routing = m;
    c.spec.top_k = m == routing::Method::llama4 ? 1 : 2;
    const Problem p = make_problem(c, rng);
    run_plain(*prepared(p), DeviceProblem(p), {});
  }
  c = case_of(format::Format::fp8_block, format::InputFormat::fp8_group, 9);
  c.spec.fp8_block_trtllm = true;
  c.spec.finalize = false;
  c.spec.local_experts = 2;
  const Problem p = make_problem(c, rng);
  run_plain(*prepared(p), DeviceProblem(p), {});
}

TEST(Sanitize, DenseAndQuantisers) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const std::vector<float> x(5 * 160, 0.5f), w(96 * 160, 0.25f);
  const sm90::DeviceBuffer in = upload(x.data(), 5 * 160 * 4);
  for (const auto& [f, name] : format::kFormats) {
    const sm90::DenseSpec s{96, 160, f, format::info(f).input, DType::bf16};
    if (!sm90::supports_dense(s)) continue;
    weights::QuantTensor q = weights::make_quant_tensor(f, 1, s.rows, s.cols);
    format::quantize_weight(f, w.data(), s.rows, s.cols, q.codes.data(), q.scales.empty() ? nullptr : q.scales.data(),
                            q.global.empty() ? nullptr : q.global.as<float>());
    sm90::DenseGemm gemm(s);
    gemm.set_weights(q, 0.01f, {}, nullptr);
    const sm90::DeviceBuffer y(5 * 96 * 2), workspace(gemm.workspace_bytes(5));
    sm90::DenseCall call;
    call.tokens = 5;
    call.x = in.data();
    call.y = y.data();
    call.workspace = workspace.data();
    call.workspace_size = workspace.bytes();
    gemm.run(call, nullptr);
    cuda(cudaDeviceSynchronize(), "dense");
  }
  const float scale = 0.01f;
  const sm90::DeviceBuffer input_scale = upload(&scale, 4), codes(5 * 160), scales(128 * 16 * 4), rows(5 * 4);
  for (const auto& [c, name] : sm90::kCodings) {
    sm90::QuantizeArgs a{};
    a.coding = c;
    a.x = in.data();
    a.x_f32 = true;
    a.rows = 5;
    a.cols = 160;
    a.input_scale = input_scale.as<float>();
    a.codes = codes.as<uint8_t>();
    a.scales = sm90::coding_group(c) > 0 ? scales.data() : nullptr;
    a.layout = c == sm90::Coding::fp8_group ? format::ScaleLayout::transposed : format::ScaleLayout::swizzled_128x4;
    a.row_scales = c == sm90::Coding::fp8_token || c == sm90::Coding::nvfp4_token ? rows.as<float>() : nullptr;
    sm90::launch_quantize(a, nullptr, false);
    cuda(cudaDeviceSynchronize(), "quantize");
    if (c != sm90::Coding::nvfp4 && c != sm90::Coding::nvfp4_token) continue;
    sm90::launch_quantize_four_over_six(a, {.on = true}, nullptr, false);
    cuda(cudaDeviceSynchronize(), "quantize by the better of two scales");
  }
}

// Every tile of the kernel for a batch of rows, with K in two parts; more k-blocks than the rings of the wider tiles
// have stages.
void run_batches(const sm90::DenseSpec& s) {
  const std::vector<float> x(static_cast<size_t>(37 * s.cols), 0.5f), w(static_cast<size_t>(s.rows * s.cols), 0.25f);
  const sm90::DeviceBuffer in = upload(x.data(), static_cast<int64_t>(x.size()) * 4);
  weights::QuantTensor q = weights::make_quant_tensor(s.weights, 1, s.rows, s.cols);
  format::quantize_weight(s.weights, w.data(), s.rows, s.cols, q.codes.data(),
                          q.scales.empty() ? nullptr : q.scales.data(),
                          q.global.empty() ? nullptr : q.global.as<float>());
  sm90::DenseGemm gemm(s);
  gemm.set_weights(q, 0.01f, {}, nullptr);
  const sm90::DeviceBuffer y(37 * s.rows * 2), workspace(gemm.workspace_bytes(37));
  const auto run = [&](const sm90::BatchRowsChoice& choice) {
    if (!sm90::batch_rows_possible(gemm.matrix().shape, choice)) return;
    sm90::DenseCall call;
    call.tokens = 37;
    call.x = in.data();
    call.x_dtype = DType::f32;
    call.y = y.data();
    call.workspace = workspace.data();
    call.workspace_size = workspace.bytes();
    call.batch_rows = choice;
    gemm.run(call, nullptr);
    cuda(cudaDeviceSynchronize(), "a batch of rows");
  };
  for (const sm90::BatchTileSize& t : sm90::kBatchTiles) run({t.rows, t.blocks, 2});
  for (const int tile : sm90::kChainTiles) run({tile, 1, 1, sm90::kChainMParts[0], true});
}
TEST(SanitizeCopies, BatchesOfRows) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  for (const auto& [f, name] : format::kFormats)
    for (const bool f32_sums : {false, true}) {
      sm90::DenseSpec s{96, 1568, f, format::info(f).input, DType::bf16};
      s.fp8_f32_sums = f32_sums;
      // Each row's scale and each block's have kernels of their own; one scale of all has those of each row's.
      if (f != format::Format::fp8_tensor && sm90::supports_dense(s)) run_batches(s);
    }
}

// New tokens: whole sequences, parts that a second kernel folds, clusters. Pages end in the middle of a block. q, k and
// v come as they were projected, or q alone, beside pages that hold the new rows.
TEST(SanitizeCopies, AttentionOfNewTokens) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  sm90::allow_attention();
  constexpr int kBlock = 64, kSequences = 3;
  const std::vector<int32_t> row_begin{0, 1, 2, 3}, contexts{70, 1, 700}, block_begin{0, 2, 3, 14},
      blocks{0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13}, new_slots{70, 129, -1};
  const auto ints = [](const std::vector<int32_t>& v) { return upload(v.data(), static_cast<int64_t>(v.size() * 4)); };
  const sm90::DeviceBuffer rows_at = ints(row_begin), contexts_at = ints(contexts), begin_at = ints(block_begin),
                           blocks_at = ints(blocks), slots = ints(new_slots);
  for (const sm90::AttentionShape& shape : {sm90::AttentionShape{8, 2, 128, 128}, {5, 1, 64, 64}})
    for (const bool e4m3 : {false, true})
      for (const bool row_invariant : {true, false})
        for (const int multiprocessors : {1, 132}) {
          const int64_t width = shape.key_width, cols = shape.heads * width;
          const int64_t qkv_cols = cols + 2 * shape.key_heads * width;
          const int64_t page_values = static_cast<int64_t>(blocks.size()) * shape.key_heads * kBlock * width;
          const std::vector<uint16_t> q(static_cast<size_t>(kSequences * qkv_cols), 0x3f00);
          const std::vector<uint16_t> pages(static_cast<size_t>(page_values), e4m3 ? 0x3838 : 0x3f80);
          const sm90::DeviceBuffer queries = upload(q.data(), kSequences * qkv_cols * 2),
                                   keys = upload(pages.data(), page_values * (e4m3 ? 1 : 2)),
                                   values = upload(pages.data(), page_values * (e4m3 ? 1 : 2)),
                                   out(kSequences * cols * 2);
          sm90::AttentionArgs a{};
          a.q = {queries.data(), qkv_cols, false};
          a.keys = keys.data();
          a.values = values.data();
          a.pages_e4m3 = e4m3;
          a.out = {out.data(), cols, false};
          a.shape = shape;
          a.block_size = kBlock;
          a.scale = 0.1f;
          a.rows = a.sequences = kSequences;
          a.one_row_each = true;
          a.row_begin = rows_at.as<int32_t>();
          a.block_begin = begin_at.as<int32_t>();
          a.blocks = blocks_at.as<int32_t>();
          a.contexts = contexts_at.as<int32_t>();
          a.plan = sm90::plan_attention(shape, true, {kSequences, kSequences, 1, 701}, row_invariant, multiprocessors);
          const sm90::DeviceBuffer partial(std::max<int64_t>(sm90::partial_bytes(shape, a.plan), 1)),
              stats(std::max<int64_t>(sm90::partial_stats_bytes(shape, a.plan), 1));
          a.partial = partial.as<float>();
          a.partial_stats = stats.as<float>();
          sm90::launch_attention(a, nullptr, true);
          cuda(cudaDeviceSynchronize(), "attention");
          const std::vector<float> ones(static_cast<size_t>(kSequences * width), 1.0f);
          const sm90::DeviceBuffer floats = upload(ones.data(), kSequences * width * 4);
          auto& heads = a.projected;
          heads.keys = queries.as<bf16_t>() + cols;
          heads.values = heads.keys + shape.key_heads * width;
          heads.q_norm = heads.k_norm = heads.cosine = heads.sine = floats.as<float>();
          heads.kv_slots = slots.as<int32_t>();
          heads.key_pages = keys.data();
          heads.value_pages = values.data();
          heads.key_scale = 1.0f;
          a.plan.token_tiles = 3;  // blocks of two tiles take no projected heads
          ASSERT_TRUE(sm90::takes_projected(a));
          sm90::launch_attention(a, nullptr, true);
          cuda(cudaDeviceSynchronize(), "attention");
        }
}

}  // namespace
}  // namespace sluice::test
