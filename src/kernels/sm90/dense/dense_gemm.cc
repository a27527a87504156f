// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/dense/dense_gemm.h"

#include "base/error.h"
#include "base/math.h"
#include "kernels/sm90/dense/dense_rows.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "kernels/sm90/prepare/prepare.h"
#include "kernels/sm90/quantize/input_round.h"
#include "kernels/sm90/route/route.h"

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

}  // namespace

Support supports_dense(const DenseSpec& s) {
  const Operand op = operand_of(s.weights);
  const auto weights = name_of(format::kFormats, s.weights), inputs = name_of(format::kInputFormats, s.inputs);
  if (!format::fits(s.weights, s.inputs))
    return Support::no(fmt::format("{} weights take no {} inputs", weights, inputs));
  if (s.inputs == format::InputFormat::plain && (is_fp8(op) || s.dtype == DType::f32))
    return Support::no(
        fmt::format("{} weights with {} inputs of {} have no tensor core path", weights, inputs, to_string(s.dtype)));
  const format::FormatInfo f = format::info(s.weights);
  if (s.rows < 1 || s.cols < 1 || (f.group_k > 1 && f.group_n == 1 && s.cols % f.group_k != 0))
    return Support::no(fmt::format("a matrix [{}, {}] cannot be {}: columns come in groups of {}", s.rows, s.cols,
                                   weights, f.group_k));
  return Support::yes();
}

DenseGemm::DenseGemm(const DenseSpec& spec) : spec_(spec), device_(current_device()) {
  const Support s = supports_dense(spec);
  check(static_cast<bool>(s), "{}", s.reason);
  multiprocessors_ = multiprocessors();
  matrix_.shape = {operand_of(spec.weights), 1, spec.rows, spec.cols, false, 0};
  matrix_.allocate();
  input_scales_ = DeviceBuffer(2 * sizeof(InputScale));
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
  if (!filled_) bias_ = DeviceBuffer(bias.bytes());
  copy_to_device(bias_.data(), bias.data(), bias.bytes(), stream);
  InputScale scales[2];
  const Round round = round_of(spec_.inputs);
  if (is_static(round)) scales[0] = input_scale(round, scale);
  copy_to_device(input_scales_.data(), scales, sizeof(scales), stream);
  filled_ = true;
}

GemmChoice DenseGemm::choice(int64_t tokens, const GemmForce& force) const {
  GemmProblem p{};
  p.operand = matrix_.shape.operand;
  p.tokens = tokens;
  p.top_k = p.experts = p.locals = 1;
  p.row_tiles[0] = matrix_.shape.row_tiles();
  p.slabs[0] = matrix_.shape.slabs();
  return choose_gemm(p, multiprocessors_, force);
}

struct DenseGemm::Plan {
  GemmChoice choice;
  int units = 0;
  int64_t bytes = 0;
  Header* header;
  Tile* tiles;
  int32_t *row_pair, *arrivals;
  float *partial, *row_scale, *block_scale;
  uint8_t* x;
};

DenseGemm::Plan DenseGemm::plan(int64_t tokens, const GemmForce& force, void* workspace, bool row_scales) const {
  Plan p{};
  p.choice = choice(tokens, force);
  const Instance& tile = p.choice.instance;
  p.units = static_cast<int>(ceil_div(matrix_.shape.row_tiles(), tile.m_tiles));
  const int64_t tiles = max_tiles(tokens, 1, tile.max_n), rows = max_rows(tokens, 1, tile.max_n, tile.step_n());
  const int64_t slabs = matrix_.shape.slabs();
  const auto take = [&](int64_t bytes) -> void* {
    char* at = workspace == nullptr ? nullptr : static_cast<char*>(workspace) + p.bytes;
    p.bytes = round_up<int64_t>(p.bytes + bytes, 256);
    return bytes == 0 ? nullptr : at;
  };
  const bool split = p.choice.splits[0] > 1;
  p.header = static_cast<Header*>(take(sizeof(Header)));
  p.tiles = static_cast<Tile*>(take(tiles * static_cast<int64_t>(sizeof(Tile))));
  p.row_pair = static_cast<int32_t*>(take(rows * 4));
  p.arrivals = static_cast<int32_t*>(take(split ? tiles * p.units * 4 : 0));
  p.partial = static_cast<float*>(take(split ? rows * p.units * tile.m_tiles * kTileRows * p.choice.splits[0] * 4 : 0));
  p.row_scale = static_cast<float*>(take(row_scales ? rows * 4 : 0));
  p.block_scale = static_cast<float*>(take(round_of(spec_.inputs) == Round::fp8_group ? rows * slabs * 4 : 0));
  p.x = static_cast<uint8_t*>(take(rows * slabs * 128));
  return p;
}

int64_t DenseGemm::workspace_bytes(int64_t tokens, const GemmForce& force) const {
  return tokens == 0 ? 0 : plan(tokens, force, nullptr, true).bytes;
}

void DenseGemm::run(const DenseCall& call, Stream stream) const {
  if (call.tokens == 0) return;
  const Round round = round_of(spec_.inputs);
  check((call.x == nullptr) != (call.codes == nullptr), "one of x and codes must be given");
  check(call.codes == nullptr || round != Round::plain, "codes are given, but the inputs are not quantised");
  check(call.y != nullptr && call.workspace != nullptr, "y and workspace must be given");
  const bool coded = call.codes != nullptr, rows_scaled = coded ? call.row_scales != nullptr : scales_rows(round);
  check(!coded || !scales_rows(round) || rows_scaled, "row_scales must be given with codes of {}",
        name_of(format::kInputFormats, spec_.inputs));
  check(!coded || call.scales != nullptr || coding_group(coding_of(spec_.inputs)) == 0,
        "scales must be given with codes of {}", name_of(format::kInputFormats, spec_.inputs));
  check(coded || call.row_scales == nullptr, "row_scales are given with x; the call makes its own");
  const DeviceGuard guard(device_);
  const Plan p = plan(call.tokens, call.force, call.workspace, rows_scaled);
  const Instance& tile = p.choice.instance;

  DenseRowsArgs rows{};
  RowsArgs& r = rows.rows;
  r.tokens = call.x;
  r.tokens_f32 = spec_.dtype == DType::f32;
  r.max_tokens = call.tokens;
  r.num_tokens = call.num_tokens;
  r.columns = static_cast<int>(spec_.cols);
  r.round = round;
  r.e4m3 = is_fp8(tile.operand);
  r.static_scale = input_scales_.as<InputScale>();
  r.out = p.x;
  r.out_slabs = matrix_.shape.slabs();
  r.scale_runs = scale_runs(tile.operand, r.out_slabs);
  r.row_scale = rows_scaled ? p.row_scale : nullptr;
  r.block_scale = p.block_scale;
  rows.coding = coding_of(spec_.inputs);
  rows.codes = call.codes;
  rows.scales = call.scales;
  rows.layout = call.layout;
  rows.row_scales = call.row_scales;
  rows.max_n = tile.max_n;
  rows.step_n = tile.step_n();
  rows.units = p.units;
  rows.header = p.header;
  rows.tiles = p.tiles;
  rows.row_pair = p.row_pair;
  rows.arrivals = p.arrivals;
  launch_dense_rows(rows, stream, call.pdl);

  GroupedGemmArgs args{};
  args.tiles = p.tiles;
  args.header = p.header;
  args.row_pair = p.row_pair;
  args.arrivals[0] = p.arrivals;
  args.gemms = 1;
  Gemm& g = args.gemm[0];
  g.weights = matrix_.weights.as<uint8_t>();
  g.row_scale = matrix_.row_scale.as<float>();
  g.block_scale = matrix_.block_scale.as<float>();
  g.x = p.x;
  g.x_row_scale = r.row_scale;
  g.x_block_scale = p.block_scale;
  // Given row scales are the whole factor.
  g.x_scale = input_scales_.as<InputScale>() + (coded && rows_scaled ? 1 : 0);
  g.out_scale = g.x_scale;
  g.slabs = matrix_.shape.slabs();
  g.row_tiles = matrix_.shape.row_tiles();
  g.splits = p.choice.splits[0];
  g.partial = p.partial;
  g.store = Store::result;
  g.round = round;
  g.act = activation::Activation::identity;
  g.out_f32 = spec_.dtype == DType::f32;
  g.columns = static_cast<int>(spec_.rows);
  g.bias = bias_.as<float>();
  g.out = call.y;
  launch_grouped_gemm(args, tile, stream, call.pdl);
}

}  // namespace sluice::sm90
