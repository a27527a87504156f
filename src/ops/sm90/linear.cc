// SPDX-License-Identifier: Apache-2.0
#include "ops/sm90/linear.h"

#include <algorithm>

#include "base/bf16.h"
#include "base/math.h"
#include "kernels/sm90/elementwise/elementwise.h"
#include "kernels/sm90/float_linear/float_linear.h"
#include "ops/linear_checks.h"
#include "ops/sm90/views.h"
#include "weights/pad.h"

namespace sluice::ops::sm90 {

using namespace sluice::sm90;

namespace {
// Inputs whose rows are not aligned or are padded, and outputs that are a part of wider rows, go through memory of
// their own, in pieces of at most kPieceBytes.
constexpr int64_t kPieceBytes = int64_t{16} << 20;
// LinearInput::bytes_ahead from which a product's blocks begin beside those of the operation ahead. o of Qwen3-30B-A3B
// per layer, BF16 and FP8 (H200): 4 contexts of 8192 (64 MiB) 2.7 and 3.1 us less, 8 of 8192 6.1 and 6.9; 2 of 16384
// 0.9 more and 0.7 less; 2 of 4096 (16 MiB) 3.2 and 2.0 more. 8 of 2048 (32 MiB) would gain 4.8 and 5.5.
constexpr int64_t kBytesWorthRoom = int64_t{64} << 20;

// Those from row `first` on.
RoundedRows rows_from(RoundedRows r, int64_t first, int64_t cols) {
  r.codes += first * cols;
  if (r.row_scales != nullptr) r.row_scales += first;
  if (r.scales != nullptr) r.scales = static_cast<std::byte*>(r.scales) + first * group_scale_bytes(r.rounding, cols);
  return r;
}

void check_run(const Linear& linear, ConstMatrix x, Matrix y, const void* workspace, int64_t workspace_size) {
  check_shapes(linear, x, y);
  is_f32(x.dtype, "x");
  is_f32(y.dtype, "y");
  const int64_t needed = linear.workspace_bytes(x.rows);
  check(workspace_size >= needed && (needed == 0 || workspace != nullptr),
        "the workspace has {} bytes; {} rows need {}", workspace_size, x.rows, needed);
}

// float32 in host memory; empty stays empty.
Tensor float_bias(const Tensor& bias, int64_t rows) {
  if (bias.empty()) return {};
  check_bias(bias, rows);
  if (bias.dtype() == DType::f32) return bias;
  Tensor out(DType::f32, {rows});
  std::transform(bias.as<bf16_t>(), bias.as<bf16_t>() + rows, out.as<float>(),
                 [](bf16_t b) { return bf16_to_float(b); });
  return out;
}

// Parts whose whole matrices have different scales, as one format in which each row has its own: the kernels read both
// alike, so the product is the same, bit for bit, and one instead of several.
std::vector<weights::QuantTensor> scaled_by_row(std::span<const weights::QuantTensor> parts) {
  std::vector<weights::QuantTensor> out(parts.begin(), parts.end());
  if (parts.size() < 2 || parts[0].format != format::Format::fp8_tensor) return out;
  for (weights::QuantTensor& w : out) {
    const float scale = *w.scales.as<float>();
    w.format = format::Format::fp8_channel;
    w.scales = Tensor(DType::f32, {1, w.rows});
    std::fill_n(w.scales.as<float>(), w.rows, scale);
  }
  return out;
}

// With zeros after the last column, up to `columns`: added on the host, where the result is.
weights::QuantTensor padded(const weights::QuantTensor& w, int64_t columns, Queue& queue) {
  if (w.cols == columns) return w;
  weights::QuantTensor host = w;
  for (Tensor* t : {&host.codes, &host.scales})
    if (!t->device().is_host()) *t = t->to({}, queue);
  queue.wait();
  return weights::pad(host, w.rows, columns);
}
}  // namespace

struct Sm90Linear::Memory {
  void *x = nullptr, *y = nullptr, *gemm = nullptr;
  int64_t gemm_bytes = 0;
  int64_t x_rows = 0, y_rows = 0;  // that fit in x and y
};

Sm90Linear::Sm90Linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                       const LinearOptions& options)
    : options_(options) {
  check_parts(parts);
  const std::vector<weights::QuantTensor> alike = scaled_by_row(parts);
  const std::optional<weights::QuantTensor> one = weights::concatenate_rows(alike, ctx.queue);
  const std::span<const weights::QuantTensor> matrices = one ? std::span(&*one, 1) : parts;
  inputs_ = parts[0].cols;
  columns_ = round_up<int64_t>(inputs_, weights::small_group(parts[0].format));
  for (const weights::QuantTensor& w : matrices) {
    outputs_ += w.rows;
    widest_ = std::max(widest_, w.rows);
  }
  const Tensor biases = float_bias(bias, outputs_);
  biased_ = !biases.empty();
  const DeviceGuard guard(ctx.device().id().index);
  int64_t first = 0;
  for (const weights::QuantTensor& w : matrices) {
    DenseSpec spec{w.rows, columns_, w.format, options.inputs, options.dtype};
    spec.fp8_f32_sums = options.fp8_f32_sums && format::is_fp8(w.format);
    spec.deterministic = options.deterministic;
    if (const Support s = supports_dense(spec); !s) fail(ErrorCode::unsupported, "{}", s.reason);
    DenseGemm& gemm = parts_.emplace_back(spec);
    gemm.set_weights(padded(w, columns_, ctx.queue), options.input_scale,
                     biases.empty() ? Tensor() : biases.rows(first, first + w.rows), ctx.queue.stream());
    first += w.rows;
  }
  ctx.queue.wait();  // the weights and the bias may go away
}

int64_t Sm90Linear::weight_bytes() const {
  int64_t bytes = 0;
  for (const DenseGemm& g : parts_) bytes += g.weight_bytes();
  return bytes;
}

const uint8_t* Sm90Linear::plain_weights() const {
  const sluice::sm90::DenseSpec& spec = parts_[0].spec();
  const bool plain = parts_.size() == 1 && !biased_ && !options_.deterministic && columns_ == inputs_ &&
                     spec.weights == format::Format::bf16 && spec.inputs == format::InputFormat::plain;
  return plain ? parts_[0].matrix().weights.as<uint8_t>() : nullptr;
}

int64_t Sm90Linear::lay_out(void* base, int64_t rows, Memory* out) const {
  int64_t used = 0;
  const auto take = [&](int64_t bytes) -> void* {
    void* at = base == nullptr ? nullptr : static_cast<std::byte*>(base) + used;
    used += round_up<int64_t>(bytes, Device::kAlignment);
    return at;
  };
  const auto piece_rows = [&](int64_t row_bytes) {
    return std::min(rows, std::max<int64_t>(1, kPieceBytes / row_bytes));
  };
  out->x_rows = piece_rows(columns_ * 4);
  out->x = take(out->x_rows * columns_ * 4);
  out->y_rows = piece_rows(widest_ * 4);
  out->y = take(out->y_rows * widest_ * 4);
  for (const DenseGemm& g : parts_) out->gemm_bytes = std::max(out->gemm_bytes, g.workspace_bytes(rows));
  out->gemm = take(out->gemm_bytes);
  return used;
}

int64_t Sm90Linear::workspace_bytes(int64_t rows) const {
  Memory unused;
  return rows == 0 ? 0 : lay_out(nullptr, rows, &unused);
}

Rounding Sm90Linear::rounding(int64_t rows) const {
  using format::InputFormat;
  const InputFormat f = options_.inputs;
  const bool fp8 = f == InputFormat::fp8_static || f == InputFormat::fp8_token || f == InputFormat::fp8_group ||
                   f == InputFormat::mxfp8;
  // Codes are written in eights, and without columns that pad. The kernel for few rows rounds the values itself, and of
  // MXFP8 that for a batch of rows does.
  if (!fp8 || inputs_ % 8 != 0 || columns_ != inputs_ || takes_few(rows) || batches_values_alone(rows)) return {};
  return {f, f == InputFormat::fp8_static ? options_.input_scale : 1.0f};
}

bool Sm90Linear::readable(ConstMatrix x) const {
  return columns_ == inputs_ && (x.cols % 8 != 0 || rows_aligned(view(x, "x")));
}

bool Sm90Linear::takes_few(int64_t rows) const {
  DenseCall call;
  call.tokens = rows;
  call.x = this;  // any values
  return std::all_of(parts_.begin(), parts_.end(),
                     [&](const DenseGemm& gemm) { return gemm.few_rows_parts(call) > 0; });
}

bool Sm90Linear::batches_values_alone(int64_t rows) const {
  alignas(16) static constexpr uint8_t kAnyCodes[1] = {};
  DenseCall values, codes;
  values.tokens = codes.tokens = rows;
  values.x = this;
  codes.codes = kAnyCodes;
  return std::all_of(parts_.begin(), parts_.end(), [&](const DenseGemm& gemm) {
    return gemm.batch_rows_choice(values).tile > 0 && gemm.batch_rows_choice(codes).tile == 0;
  });
}

void Sm90Linear::run(Context& ctx, const LinearInput& input, Matrix y, void* workspace, int64_t workspace_size) const {
  const ConstMatrix& x = input.rows;
  check_run(*this, x, y, workspace, workspace_size);
  if (x.rows == 0) return;
  const DeviceGuard guard(ctx.device().id().index);
  Memory m;
  lay_out(workspace, x.rows, &m);
  const Rounding wanted = rounding(x.rows);
  const bool coded = wanted && input.rounded.rounding == wanted;
  // What is true of all rows together is true of fewer.
  const DenseCall call = call_of({x, coded ? input.rounded : RoundedRows{}}, y.dtype, m);
  const bool y_fits =
      std::all_of(parts_.begin(), parts_.end(), [&](const DenseGemm& g) { return g.writes_apart(call); }) ||
      (parts_.size() == 1 && y.stride == y.cols && reinterpret_cast<uintptr_t>(y.data) % 16 == 0);
  const int64_t step = std::min(coded || readable(x) ? x.rows : m.x_rows, y_fits ? x.rows : m.y_rows);
  for (int64_t first = 0; first < x.rows; first += step) {
    const int64_t rows = std::min(step, x.rows - first);
    const RoundedRows codes = coded ? rows_from(input.rounded, first, x.cols) : RoundedRows{};
    LinearInput part{{x.row(first), x.dtype, rows, x.cols, x.stride}, codes};
    part.bytes_ahead = input.bytes_ahead;
    run_rows(ctx, part, {y.row(first), y.dtype, rows, y.cols, y.stride}, m);
  }
}

DenseCall Sm90Linear::call_of(const LinearInput& input, DType y, const Memory& m) const {
  const ConstMatrix& x = input.rows;
  DenseCall call;
  call.tokens = x.rows;
  if (input.rounded) {
    call.codes = input.rounded.codes;
    call.row_scales = input.rounded.row_scales;
    call.scales = input.rounded.scales;
  } else {
    const bool there = readable(x);
    call.x = there ? x.data : m.x;
    call.x_dtype = x.dtype;
    call.x_stride = there ? x.stride : columns_;
  }
  call.y_dtype = y;
  call.leaves_room = input.bytes_ahead >= kBytesWorthRoom;
  call.workspace = m.gemm;
  call.workspace_size = m.gemm_bytes;
  return call;
}

void Sm90Linear::run_rows(Context& ctx, const LinearInput& input, Matrix y, const Memory& m) const {
  void* stream = ctx.queue.stream();
  const ConstMatrix& x = input.rows;
  DenseCall call = call_of(input, y.dtype, m);
  if (call.x == m.x) {
    if (columns_ != inputs_) ctx.queue.zero(m.x, x.rows * columns_ * bytes_of(x.dtype));
    launch_gather_rows({view(x, "x"), nullptr, {m.x, columns_, x.dtype == DType::f32}, x.rows, x.cols}, stream, true);
  }
  int64_t first = 0;
  for (const DenseGemm& gemm : parts_) {
    const int64_t n = gemm.spec().rows;
    const Matrix part = y.columns(first, n);
    first += n;
    const bool apart = gemm.writes_apart(call);
    const bool direct = apart || (part.stride == n && reinterpret_cast<uintptr_t>(part.data) % 16 == 0);
    call.y = direct ? part.data : m.y;
    call.y_stride = apart ? part.stride : 0;
    gemm.run(call, stream);
    if (!direct)
      launch_gather_rows({{m.y, n, y.dtype == DType::f32}, nullptr, view(part, "y"), y.rows, n}, stream, true);
  }
}

Sm90FloatLinear::Sm90FloatLinear(Context& ctx, const Tensor& weight, const Tensor& bias) {
  check(weight.rank() == 2 && weight.dtype() == DType::f32, "the weight is {} {}; a float32 matrix is expected",
        to_string(weight.dtype()), to_string(weight.shape()));
  const Tensor biases = float_bias(bias, weight.dim(0));
  weight_ = weight.to(ctx.device().id(), ctx.queue);
  bias_ = biases.to(ctx.device().id(), ctx.queue);
  ctx.queue.wait();  // the host's copies may go away
}

void Sm90FloatLinear::run(Context& ctx, const LinearInput& input, Matrix y, void* workspace,
                          int64_t workspace_size) const {
  const ConstMatrix& x = input.rows;
  check_run(*this, x, y, workspace, workspace_size);
  FloatLinearArgs args{};
  args.x = view(x, "x");
  args.weight = weight_.address();
  args.weight_f32 = true;
  args.bias = floats(bias_, "the bias");
  args.y = view(y, "y");
  args.rows = x.rows;
  args.heads = 1;
  args.n = static_cast<int>(outputs());
  args.k = static_cast<int>(inputs());
  const DeviceGuard guard(ctx.device().id().index);
  launch_float_linear(args, ctx.queue.stream(), true);
}

std::unique_ptr<Linear> make_sm90_linear(Context& ctx, std::span<const weights::QuantTensor> parts, const Tensor& bias,
                                         const LinearOptions& options) {
  if (options.dtype != DType::f32 || options.inputs != format::InputFormat::plain)
    return std::make_unique<Sm90Linear>(ctx, parts, bias, options);
  check_parts(parts);
  int64_t rows = 0;
  for (const weights::QuantTensor& w : parts) rows += w.rows;
  Tensor weight(DType::f32, {rows, parts[0].cols});
  float* to = weight.as<float>();
  for (const weights::QuantTensor& w : parts) {
    const Tensor values = weights::dequantize(w);
    to = std::copy_n(values.as<float>(), values.elements(), to);
  }
  return std::make_unique<Sm90FloatLinear>(ctx, weight, bias);
}

}  // namespace sluice::ops::sm90
