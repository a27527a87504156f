// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/dense/dense_gemm.h"

#include "base/error.h"
#include "kernels/sm90/batch_rows/launch.h"
#include "kernels/sm90/batch_rows/round_rows.h"
#include "kernels/sm90/dense/dense_rows.h"
#include "kernels/sm90/few_rows/launch.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/memory_plan.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/repack/repack.h"

namespace sluice::sm90 {

namespace {

Coding coding_of(format::InputFormat f) {
  using format::InputFormat;
  switch (f) {
    case InputFormat::fp8_static:
      return Coding::fp8_static;
    case InputFormat::fp8_token:
      return Coding::fp8_token;
    case InputFormat::fp8_group:
      return Coding::fp8_group;
    case InputFormat::nvfp4:
      return Coding::nvfp4;
    case InputFormat::nvfp4_token:
      return Coding::nvfp4_token;
    default:
      return Coding::mxfp8;
  }
}

const DenseSpec& supported(const DenseSpec& spec) {
  const Support s = supports_dense(spec);
  check(static_cast<bool>(s), "{}", s.reason);
  return spec;
}

}  // namespace

DenseGemm::DenseGemm(const DenseSpec& spec, int multiprocessors, const CallerMemory& memory)
    : spec_(supported(spec)),
      device_(current_device()),
      multiprocessors_(multiprocessors > 0 ? multiprocessors : sm90::multiprocessors()),
      workspace_(dense_workspace(spec_, multiprocessors_)),
      memory_at_(dense_memory(spec_)),
      memory_(device_memory(memory, memory_at_.bytes)),
      input_scales_(memory_, memory_at_.input_scales) {
  matrix_.place(dense_shape(spec_), memory_, memory_at_.matrix);
  allow_grouped_gemm(matrix_.shape.operand);
  allow_few_rows(matrix_.shape.operand);
  // The grouped GEMM's only tile of deterministic FP8 block has tokens as the M side.
  if (spec_.deterministic && matrix_.shape.operand == WeightOperand::fp8_block) return;
  allow_batch_rows(matrix_.shape.operand);
  // Rounded rows may come as codes, which this kernel does not always take: all calls have to go the same way.
  if (spec_.deterministic) k_parts_ = round_of(spec_.inputs) == Round::plain ? deterministic_parts(matrix_.shape) : 1;
  room_ = device_batch_room(matrix_.shape.operand, multiprocessors_);
  for (int64_t rows = kBatchStep; rows <= kMaxBatchRows; rows += kBatchStep)
    batch_rows_.push_back(choose_batch_rows(matrix_.shape, rows, room_, k_parts_));
}

void DenseGemm::set_weights(const weights::QuantTensor& w, float scale, const Tensor& bias, Stream stream) {
  const DeviceGuard guard(device_);
  check(w.format == spec_.weights && w.experts == 1 && w.rows == spec_.rows && w.cols == spec_.cols,
        "the weights are {} [{}, {}, {}]; needed: {} [1, {}, {}]", format::info(w.format).name, w.experts, w.rows,
        w.cols, format::info(spec_.weights).name, spec_.rows, spec_.cols);
  check(bias.empty() || bias.bytes() == spec_.rows * 4, "the bias has {} bytes; needed: {} of float32", bias.bytes(),
        spec_.rows * 4);
  check(!filled_ || bias.bytes() == bias_.bytes(), "a refit cannot add or drop the bias");
  matrix_.fill(w, nullptr, stream);
  if (!filled_ && !bias.empty()) bias_ = DeviceBuffer(memory_, memory_at_.bias);
  copy_to_device_now(bias_.data(), bias.data(), bias.bytes(), stream);
  InputScale scales[2];
  const Round round = round_of(spec_.inputs);
  if (is_static(round)) scales[0] = input_scale(round, scale);
  // The stream's last operation here is a copy: no kernel after it begins to read weights before they are all there.
  copy_to_device(input_scales_.data(), scales, sizeof(scales), stream);
  filled_ = true;
}

GemmChoice DenseGemm::choice(int64_t tokens, const GemmForce& force) const {
  return plan_dense(spec_, multiprocessors_, tokens, force, nullptr, true).choice;
}

int64_t DenseGemm::workspace_bytes(int64_t tokens) const { return workspace_.bytes(tokens); }

int64_t DenseGemm::workspace_bytes(int64_t tokens, const GemmForce& force) const {
  return plan_dense(spec_, multiprocessors_, tokens, force, nullptr, true).bytes;
}

int DenseGemm::few_rows_parts(const DenseCall& call) const {
  const bool forced = !call.force.instance.empty() || call.force.splits[0] > 0;
  if (call.x == nullptr || call.tokens > kMaxFewRows || forced) return 0;
  if (call.few_rows) return *call.few_rows;
  if (call.batch_rows) return 0;
  if (k_parts_ > 1) return 0;
  // A chain keeps more of K on the way: qkv and o of Qwen3 with 8 rows take 7.5 and 6.9 us here, in 4 and 8 parts of K,
  // and 6.2 and 6.6 there (H200). FP8 rows are rounded by a launch of their own there, and still take 4.8 and 5.8 us
  // where they take 9.4 and 9.1 here, one row 4.6 and 5.8 where it takes 6.6 and 6.6.
  if (!batch_rows_.empty() && batch_rows_.front().chain && (is_fp8(matrix_.shape.operand) || reads_in_place(call)))
    return 0;
  const bool rounded = decodes(matrix_.shape.operand) && round_of(spec_.inputs) != Round::plain;
  if (!spec_.deterministic)
    return rounded && call.tokens > kMaxRoundedFewRows ? 0 : few_rows_splits(matrix_.shape, multiprocessors_);
  return batch_rows_.empty() ? 0 : 1;  // sums in the order of the grouped GEMM
}

BatchRowsChoice DenseGemm::batch_rows_choice(const DenseCall& call) const {
  const bool forced = !call.force.instance.empty() || call.force.splits[0] > 0;
  if (call.tokens < 1 || forced || call.few_rows || batch_rows_.empty()) return {};
  if (call.tokens > kMaxBatchRows && k_parts_ <= 1) return {};
  // Of rows that come as codes those without scales of columns, or with float32 ones. The copy engine reads them where
  // they are.
  const bool groups = format::group_of(spec_.inputs) != 0 && !block_scaled(matrix_.shape.operand);
  if (call.codes != nullptr && (groups || spec_.cols % 16 != 0 || reinterpret_cast<uintptr_t>(call.codes) % 16 != 0))
    return {};
  if (call.batch_rows) return *call.batch_rows;
  if (few_rows_parts(call) > 0) return {};
  if (call.tokens > kMaxBatchRows) return choose_batch_rows(matrix_.shape, call.tokens, room_, k_parts_);
  BatchRowsChoice choice = batch_rows_[static_cast<size_t>((call.tokens - 1) / kBatchStep)];
  choice.leaves_room = call.leaves_room && choice.chain && choice.tile <= kMostSharedChainRows;
  return choice;
}

bool DenseGemm::writes_apart(const DenseCall& call) const {
  return few_rows_parts(call) > 0 || batch_rows_choice(call).tile > 0;
}

// Rounds the rows of a call, or decodes its codes, into the workspace: rows that a kernel then takes as they are.
RoundRowsArgs DenseGemm::round_rows(const DenseCall& call, Stream stream) const {
  const bool e4m3 = is_fp8(matrix_.shape.operand), coded = call.codes != nullptr;
  const Round round = round_of(spec_.inputs);
  const int64_t row_bytes = round_up<int64_t>(spec_.cols * (e4m3 ? 1 : 2), 16);
  WorkspacePlan pieces(call.workspace);
  RoundRowsArgs r{};
  r.x = coded ? static_cast<const void*>(call.codes) : call.x;
  r.x_stride = call.x_stride > 0 ? call.x_stride : spec_.cols;
  const bool f32 = call.x_dtype.value_or(spec_.dtype) == DType::f32;
  r.source = coded ? BatchSource::e4m3 : f32 ? BatchSource::f32 : BatchSource::bf16;
  r.rows = static_cast<int>(call.tokens);
  r.k = static_cast<int>(spec_.cols);
  r.num_rows = call.num_tokens;
  r.round = round;
  r.scale = input_scales_.as<InputScale>();
  r.e4m3 = e4m3;
  r.row_factor = pieces.take<float>(call.tokens);
  r.group_scales = pieces.take<float>(round == Round::fp8_group ? call.tokens * ceil_div<int64_t>(spec_.cols, 128) : 0);
  r.out = pieces.take<uint8_t>(call.tokens * row_bytes);
  r.out_stride = row_bytes;
  check(call.workspace_size >= pieces.used(), "workspace_size is {}; a call of {} tokens needs {} bytes",
        call.workspace_size, call.tokens, pieces.used());
  launch_round_rows(r, stream, call.pdl);
  return r;
}

void DenseGemm::set_batch_rows(BatchRowsArgs& args, const DenseCall& call, int tile, Stream stream) const {
  const bool e4m3 = is_fp8(matrix_.shape.operand), coded = call.codes != nullptr;
  const Round round = round_of(spec_.inputs);
  const int64_t runs = ceil_div<int64_t>(spec_.cols, 128);
  args.scale = input_scales_.as<InputScale>() + (coded && call.row_scales != nullptr ? 1 : 0);
  args.row_factor = coded ? call.row_scales : nullptr;
  args.x_scale = coded ? static_cast<const float*>(call.scales) : nullptr;
  const bool transposed = coded && call.layout == format::ScaleLayout::transposed;
  args.x_scale_row = transposed ? 1 : static_cast<int>(runs);
  args.x_scale_run = transposed ? static_cast<int>(call.tokens) : 1;
  const void* rows = coded ? static_cast<const void*>(call.codes) : call.x;
  const int64_t stride = call.x_stride > 0 ? call.x_stride : spec_.cols;
  int64_t row_bytes = coded ? spec_.cols : 2 * stride;
  // Codes are read where they are, and BF16 rows that are not rounded, if their rows are aligned.
  const bool f32 = call.x_dtype.value_or(spec_.dtype) == DType::f32;
  const bool in_place =
      coded ? e4m3
            : round == Round::plain && !f32 && row_bytes % 16 == 0 && reinterpret_cast<uintptr_t>(call.x) % 16 == 0;
  if (!in_place) {
    const RoundRowsArgs r = round_rows(call, stream);
    row_bytes = r.out_stride;
    rows = r.out;
    if (!coded && scales_rows(round)) args.row_factor = r.row_factor;
    if (!coded) args.x_scale = r.group_scales;
  }
  args.x = rows_map(rows, call.tokens, spec_.cols * (e4m3 ? 1 : 2), row_bytes, tile);
}

void DenseGemm::run_batch_rows(const DenseCall& call, const BatchRowsChoice& choice, Stream stream) const {
  check(batch_rows_possible(matrix_.shape, choice),
        "batch_rows is a tile of {} rows with {} blocks per multiprocessor, {} parts of K and {} tasks per M-tile{}, "
        "which [{}, {}] does not have",
        choice.tile, choice.blocks, choice.parts, choice.m_parts, choice.chain ? " in chains" : "", spec_.rows,
        spec_.cols);
  BatchRowsArgs a{};
  set_batch_rows(a, call, choice.tile, stream);
  a.weights.data = matrix_.weights.as<uint8_t>();
  a.weights.row_scale = matrix_.row_scale.as<float>();
  a.weights.block_scale = matrix_.block_scale.as<float>();
  a.bias = bias_.as<float>();
  a.n = static_cast<int>(spec_.rows);
  a.k = static_cast<int>(spec_.cols);
  a.m_tiles = matrix_.shape.m_tiles();
  a.k_blocks = matrix_.shape.k_blocks();
  a.parts = choice.parts;
  a.m_parts = choice.m_parts;
  a.parts_inverse = static_cast<uint32_t>(65536 / choice.parts + 1);
  a.row_tiles = static_cast<int>(ceil_div<int64_t>(call.tokens, choice.tile));
  a.rows = static_cast<int>(call.tokens);
  a.num_rows = call.num_tokens;
  a.y = call.y;
  a.y_stride = call.y_stride > 0 ? call.y_stride : spec_.rows;
  a.y_f32 = call.y_dtype.value_or(spec_.dtype) == DType::f32;
  a.y_wide = spec_.rows % 8 == 0 && reinterpret_cast<uintptr_t>(a.y) % (a.y_f32 ? 16 : 8) == 0 && a.y_stride % 4 == 0;
  launch_batch_rows(a, matrix_.shape.operand, choice, multiprocessors_, stream, call.pdl);
}

void DenseGemm::run_few_rows(const DenseCall& call, int parts, Stream stream) const {
  check(parts == 1 || parts == 2 || parts == 4 || parts == 8, "few_rows is {}; 1, 2, 4 or 8 parts of K are possible",
        parts);
  FewRowsArgs a{};
  const Round round = round_of(spec_.inputs);
  a.x = call.x;
  a.x_stride = call.x_stride > 0 ? call.x_stride : spec_.cols;
  a.x_f32 = call.x_dtype.value_or(spec_.dtype) == DType::f32;
  a.round = round;
  if (round != Round::plain &&
      rounds_rows_first(matrix_.shape, call.tokens, parts, scales_rows(round), multiprocessors_)) {
    const RoundRowsArgs r = round_rows(call, stream);
    a.x = r.out;
    a.x_stride = r.out_stride / 2;
    a.x_f32 = false;
    a.round = Round::plain;
    if (scales_rows(round)) a.row_factor = r.row_factor;
  }
  a.weights.data = matrix_.weights.as<uint8_t>();
  a.weights.row_scale = matrix_.row_scale.as<float>();
  a.weights.block_scale = matrix_.block_scale.as<float>();
  a.bias = bias_.as<float>();
  a.n = static_cast<int>(spec_.rows);
  a.k = static_cast<int>(spec_.cols);
  a.m_tiles = matrix_.shape.m_tiles();
  a.k_blocks = matrix_.shape.k_blocks();
  a.splits = parts;
  a.m_parts = parts > 1 ? 1 : few_rows_m_parts(matrix_.shape, multiprocessors_);
  a.scale = input_scales_.as<InputScale>();
  a.rows = static_cast<int>(call.tokens);
  a.num_rows = call.num_tokens;
  a.y = call.y;
  a.y_stride = call.y_stride > 0 ? call.y_stride : spec_.rows;
  a.y_f32 = call.y_dtype.value_or(spec_.dtype) == DType::f32;
  a.y_wide = reinterpret_cast<uintptr_t>(a.y) % 8 == 0 && a.y_stride % 4 == 0;
  launch_few_rows(a, matrix_.shape.operand, multiprocessors_, stream, call.pdl);
}

// Whether the grouped GEMM can read this call's rows where they are: nothing is rounded, and the copy engine takes
// them.
bool DenseGemm::reads_in_place(const DenseCall& call) const {
  const WeightOperand op = matrix_.shape.operand;
  if (!sm90::reads_in_place(op)) return false;
  const auto aligned = [](const void* rows, int64_t bytes) {
    return reinterpret_cast<uintptr_t>(rows) % 16 == 0 && bytes % 16 == 0;
  };
  if (call.codes != nullptr)
    return is_fp8(op) && format::group_of(spec_.inputs) == 0 && aligned(call.codes, spec_.cols);
  return round_of(spec_.inputs) == Round::plain && call.x_dtype.value_or(spec_.dtype) == DType::bf16 &&
         aligned(call.x, 2 * (call.x_stride > 0 ? call.x_stride : spec_.cols));
}

void DenseGemm::run(const DenseCall& call, Stream stream) const {
  if (call.tokens == 0) return;
  const Round round = round_of(spec_.inputs);
  const bool coded = call.codes != nullptr, rows_scaled = coded ? call.row_scales != nullptr : scales_rows(round);
  const DeviceGuard guard(device_);
  if (const int parts = few_rows_parts(call); parts > 0) return run_few_rows(call, parts, stream);
  if (const BatchRowsChoice choice = batch_rows_choice(call); choice.tile > 0)
    return run_batch_rows(call, choice, stream);
  check(call.y_stride == 0 || call.y_stride == spec_.rows,
        "y_stride is {}; this call's rows follow each other, {} apart", call.y_stride, spec_.rows);
  const DensePlan p = plan_dense(spec_, multiprocessors_, call.tokens, call.force, call.workspace, rows_scaled);
  check(call.workspace_size >= p.bytes, "workspace_size is {}; a call of {} tokens needs {} bytes", call.workspace_size,
        call.tokens, p.bytes);
  const Instance& tile = p.choice.instance;
  const bool in_place = reads_in_place(call);

  DenseRowsArgs rows{};
  RowsArgs& r = rows.rows;
  r.source.tokens = call.x;
  r.source.tokens_f32 = call.x_dtype.value_or(spec_.dtype) == DType::f32;
  rows.stride = call.x_stride > 0 ? call.x_stride : spec_.cols;
  r.source.max_tokens = call.tokens;
  r.source.num_tokens = call.num_tokens;
  r.source.columns = static_cast<int>(spec_.cols);
  r.out.round = round;
  r.out.e4m3 = is_fp8(tile.operand);
  r.out.static_scale = input_scales_.as<InputScale>();
  r.out.data = in_place ? nullptr : p.x;
  r.out.k_blocks = matrix_.shape.k_blocks();
  r.out.scale_runs = scale_runs(tile.operand, r.out.k_blocks);
  r.out.row_scale = rows_scaled ? p.row_scale : nullptr;
  r.out.block_scale = p.block_scale;
  rows.coding = coding_of(spec_.inputs);
  rows.codes = call.codes;
  rows.scales = call.scales;
  rows.layout = call.layout;
  rows.row_scales = call.row_scales;
  rows.max_n = tile.max_n;
  rows.step_n = tile.step_n();
  rows.m_groups = p.m_groups;
  rows.header = p.header;
  rows.tiles = p.tiles_at;
  rows.row_pair = p.row_pair;
  rows.arrivals = p.arrivals;
  launch_dense_rows(rows, stream, call.pdl);

  GroupedGemmArgs args{};
  args.tiles = p.tiles_at;
  args.header = p.header;
  args.row_pair = p.row_pair;
  args.arrivals[0] = p.arrivals;
  args.gemms = 1;
  GemmArgs& g = args.gemm[0];
  g.weights.data = matrix_.weights.as<uint8_t>();
  g.weights.row_scale = matrix_.row_scale.as<float>();
  g.weights.block_scale = matrix_.block_scale.as<float>();
  g.x.data = r.out.data;
  g.x.row_scale = in_place ? call.row_scales : r.out.row_scale;
  if (in_place)
    args.rows_in_place =
        rows_map(coded ? static_cast<const void*>(call.codes) : call.x, call.tokens, spec_.cols * (coded ? 1 : 2),
                 coded ? spec_.cols : 2 * rows.stride, tile.max_n / tile.cluster);
  g.x.block_scale = p.block_scale;
  // Given row scales are the whole factor.
  g.x.scale = input_scales_.as<InputScale>() + (coded && rows_scaled ? 1 : 0);
  g.epilogue.out_scale = g.x.scale;
  g.k_blocks = matrix_.shape.k_blocks();
  g.m_tiles = matrix_.shape.m_tiles();
  g.tiles_in_turn = tiles_in_turn(tile, g.k_blocks);
  g.splits = p.choice.splits[0];
  g.partial = p.partial;
  g.epilogue.store = Store::result;
  g.epilogue.round = round;
  g.epilogue.act = activation::Activation::identity;
  g.epilogue.out_f32 = call.y_dtype.value_or(spec_.dtype) == DType::f32;
  g.epilogue.columns = static_cast<int>(spec_.rows);
  g.epilogue.activation.bias = bias_.as<float>();
  g.epilogue.out = call.y;
  launch_grouped_gemm(args, tile, multiprocessors_, stream, call.pdl);
}

}  // namespace sluice::sm90
