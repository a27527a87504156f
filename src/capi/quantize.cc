// SPDX-License-Identifier: Apache-2.0
// Quantisers on the host: rows of a tensor, and weight matrices.
#include "capi/quantize.h"

#include <algorithm>
#include <cstddef>
#include <vector>

#include "base/bf16.h"
#include "base/math.h"
#include "capi/context.h"
#include "capi/status.h"
#include "capi/view.h"
#include "format/quantize_weights.h"
#include "weights/requantize.h"

namespace sluice::capi {

format::ScaleLayout layout_of(sluice_scale_layout layout) {
  check(layout >= SLUICE_SCALES_LINEAR && layout <= SLUICE_SCALES_TRANSPOSED,
        "layout is {}; accepted: SLUICE_SCALES_LINEAR, _128X4, _8X4, _TRANSPOSED", layout);
  return static_cast<format::ScaleLayout>(layout);
}

namespace {

// Rows of one task of the thread pool.
constexpr int64_t kRows = 16;

format::CodedTensor coded(const char* coding, int64_t rows, int64_t cols, sluice_scale_layout layout) {
  format::CodedTensor t;
  t.coding = parse_name(format::kCodings, "coding", &required(coding, "args.coding"));
  t.layout = layout_of(layout);
  check(rows >= 0 && cols >= 0, "the tensor is [{}, {}]; neither size may be negative", rows, cols);
  check_elements("the tensor is", {rows, cols});
  t.rows = rows;
  t.cols = cols;
  return t;
}

void check_input_scale(const format::CodedTensor& t, const float* scale) {
  const bool needed = format::is_calibrated(t.coding);
  check(needed == (scale != nullptr), "{} {} input_scale", name_of(format::kCodings, t.coding),
        needed ? "needs an" : "takes no");
}

// `count` elements from `first` on as float32.
void read_floats(const void* from, DType dtype, int64_t first, int64_t count, float* out) {
  if (dtype == DType::f32)
    std::copy_n(static_cast<const float*>(from) + first, count, out);
  else
    std::transform(static_cast<const bf16_t*>(from) + first, static_cast<const bf16_t*>(from) + first + count, out,
                   bf16_to_float);
}

void for_rows(Context& ctx, int64_t rows, const std::function<void(int64_t first, int64_t count)>& body) {
  ctx.pool.parallel_for(ceil_div(rows, kRows),
                        [&](int64_t task, int) { body(task * kRows, std::min(kRows, rows - task * kRows)); });
}

void quantize(Context& ctx, const sluice_quantize_args& args) {
  QuantizeCall call = read_quantize_args(args);
  if (call.to.rows == 0 || call.to.cols == 0) return;
  if (args.input_scale != nullptr) call.to.input_scale = *args.input_scale;
  format::clear_scales(call.to);
  for_rows(ctx, call.to.rows, [&](int64_t first, int64_t count) {
    std::vector<float> x(static_cast<size_t>(count * call.to.cols));
    read_floats(args.x, call.dtype, first * call.to.cols, count * call.to.cols, x.data());
    format::quantize_into(call.to, x.data(), first, count);
  });
}

void dequantize(Context& ctx, const sluice_dequantize_args& args) {
  format::CodedTensor from = coded(args.coding, args.rows, args.cols, args.layout);
  if (from.rows == 0 || from.cols == 0) return;
  // Read only: CodedTensor is the same for both directions.
  from.codes = const_cast<uint8_t*>(args.codes);
  from.scales = const_cast<void*>(args.scales);
  from.row_scales = const_cast<float*>(args.row_scales);
  check_input_scale(from, args.input_scale);
  if (args.input_scale != nullptr) from.input_scale = *args.input_scale;
  format::check_coded(from);
  float* const x = &required(args.x, "args.x");
  for_rows(ctx, from.rows,
           [&](int64_t first, int64_t count) { format::dequantize_from(from, first, count, x + first * from.cols); });
}

struct Matrices {
  format::Format format;
  int64_t count, rows, cols;
  int64_t elements() const { return rows * cols; }
};

Matrices read_matrices(const char* format, int64_t matrices, int64_t rows, int64_t cols) {
  const Matrices m{parse_name(format::kFormats, "format", &required(format, "format")), matrices, rows, cols};
  check(matrices >= 0 && rows >= 0 && cols >= 0, "the weights are [{}, {}, {}]; no size may be negative", matrices,
        rows, cols);
  check_elements("the weights are", {matrices, rows, cols});
  format::code_bytes(m.format, rows, cols);  // refuses an odd number of 4-bit columns
  return m;
}

void check_given(const char* name, const void* given, bool needed, const Matrices& m) {
  check(needed == (given != nullptr), "{} is {}; weights of {} {}", name, given == nullptr ? "NULL" : "given",
        name_of(format::kFormats, m.format), needed ? "have them" : "have none");
}

void copy_out(const Tensor& from, void* to) {
  if (!from.empty() && from.bytes() > 0) std::memcpy(to, from.data(), static_cast<size_t>(from.bytes()));
}

void quantize_weights(Context& ctx, const Matrices& m, const void* values, DType dtype, void* codes, void* scales,
                      float* global) {
  if (dtype == DType::bf16) {  // as the loader does, with tasks smaller than a matrix
    const weights::QuantTensor w{format::Format::bf16,
                                 m.count,
                                 m.rows,
                                 m.cols,
                                 Tensor(DType::bf16, {m.count, m.rows, m.cols}, values, nullptr),
                                 {},
                                 {}};
    const weights::QuantTensor q = weights::quantize(ctx, m.format, w);
    copy_out(q.codes, codes);
    copy_out(q.scales, scales);
    copy_out(q.global, global);
    return;
  }
  const int64_t code_bytes = format::code_bytes(m.format, m.rows, m.cols);
  const int64_t scale_bytes =
      format::scale_count(m.format, m.rows, m.cols) * (format::info(m.format).scale == format::ScaleType::f32 ? 4 : 1);
  ctx.pool.parallel_for(m.count, [&](int64_t i, int) {
    format::quantize_weight(m.format, static_cast<const float*>(values) + i * m.elements(), m.rows, m.cols,
                            static_cast<char*>(codes) + i * code_bytes, static_cast<char*>(scales) + i * scale_bytes,
                            global == nullptr ? nullptr : global + i);
  });
}

format::FourOverSix read_four_over_six(const sluice_four_over_six* given) {
  format::FourOverSix to;
  if (given == nullptr) return to;
  const auto from = read_struct(given, "args.four_over_six", sizeof(sluice_four_over_six));
  to.on = true;
  if (from.e4m3_max != 0) to.e4m3_max = from.e4m3_max;
  check(to.e4m3_max == 256 || to.e4m3_max == 448, "args.four_over_six.e4m3_max is {}; accepted: 256, 448", to.e4m3_max);
  if (from.error != nullptr) to.error = parse_name(format::kBlockErrors, "args.four_over_six.error", from.error);
  check(from.fast_error == 0 || from.fast_error == 1, "args.four_over_six.fast_error is {}; accepted: 0, 1",
        from.fast_error);
  to.fast = from.fast_error != 0;
  return to;
}

}  // namespace

QuantizeCall read_quantize_args(const sluice_quantize_args& args) {
  QuantizeCall call;
  call.to = coded(args.coding, args.rows, args.cols, args.layout);
  call.dtype = dtype_of(args.dtype, "args.dtype");
  if (args.rows == 0 || args.cols == 0) return call;
  check(args.x != nullptr, "args.x is NULL; it must be given");
  call.to.codes = args.codes;
  call.to.scales = args.scales;
  call.to.row_scales = args.row_scales;
  check_input_scale(call.to, args.input_scale);
  check(args.encodes == 0 || args.encodes == 1, "args.encodes is {}; accepted: 0, 1", args.encodes);
  check(args.encodes == 0 || call.to.coding == format::Coding::nvfp4, "args.encodes is 1 with {}; accepted with nvfp4",
        name_of(format::kCodings, call.to.coding));
  call.to.encodes = args.encodes != 0;
  call.to.four_over_six = read_four_over_six(args.four_over_six);
  format::check_coded(call.to);
  return call;
}

}  // namespace sluice::capi

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;

extern "C" {

sluice_status sluice_scale_elements(sluice_scale_layout layout, int64_t rows, int64_t groups, int64_t* out) {
  return guard([&] {
    check(rows >= 0 && groups >= 0, "rows is {} and groups {}; neither may be negative", rows, groups);
    capi::check_elements("the scales are", {rows, groups});
    required(out, "out") = format::scale_elements(capi::layout_of(layout), rows, groups);
  });
}

sluice_status sluice_quantize(sluice_context* context, const sluice_quantize_args* given) {
  return guard([&] {
    const auto args = read_struct(given, "args", offsetof(sluice_quantize_args, encodes));
    const auto shared = required(context, "context").shared;
    shared->use([&](Context& ctx) { capi::quantize(ctx, args); });
  });
}

sluice_status sluice_dequantize(sluice_context* context, const sluice_dequantize_args* given) {
  return guard([&] {
    const auto args = read_struct(given, "args", sizeof(sluice_dequantize_args));
    const auto shared = required(context, "context").shared;
    shared->use([&](Context& ctx) { capi::dequantize(ctx, args); });
  });
}

sluice_status sluice_quantize_weights(sluice_context* context, const char* format, int64_t matrices, int64_t rows,
                                      int64_t cols, const void* values, sluice_dtype dtype, void* codes, void* scales,
                                      float* global_scales) {
  return guard([&] {
    const capi::Matrices m = capi::read_matrices(format, matrices, rows, cols);
    const DType type = capi::dtype_of(dtype, "dtype");
    if (m.count == 0 || m.elements() == 0) return;
    const format::FormatInfo f = format::info(m.format);
    capi::check_given("scales", scales, f.scale != format::ScaleType::none, m);
    capi::check_given("global_scales", global_scales, f.global_scale, m);
    const void* const from = &required(static_cast<const char*>(values), "values");
    void* const to = &required(static_cast<char*>(codes), "codes");
    const auto shared = required(context, "context").shared;
    shared->use([&](Context& ctx) { capi::quantize_weights(ctx, m, from, type, to, scales, global_scales); });
  });
}

sluice_status sluice_dequantize_weights(sluice_context* context, const char* format, int64_t matrices, int64_t rows,
                                        int64_t cols, const sluice_matrices* from, float* values) {
  return guard([&] {
    const capi::Matrices m = capi::read_matrices(format, matrices, rows, cols);
    if (m.count == 0 || m.elements() == 0) return;
    const weights::QuantTensor w = capi::view_matrices(m.format, m.count, "from", required(from, "from"), rows, cols);
    required(values, "values");
    const auto shared = required(context, "context").shared;
    shared->use([&](Context& ctx) {
      ctx.pool.parallel_for(m.count, [&](int64_t i, int) {
        const void* scales = w.scales.empty() ? nullptr : w.scales.slice(i).data();
        format::dequantize_weight(m.format, w.codes.slice(i).data(), scales,
                                  w.global.empty() ? 1.0f : w.global.as<float>()[i], rows, cols,
                                  values + i * m.elements());
      });
    });
  });
}
}
