// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_tensor.h"

#include <cstddef>
#include <cstring>

#include "format/quantize_weights.h"
#include "io/checkpoint.h"
#include "io/read_ahead.h"
#include "weights/scale_grid.h"

namespace sluice::weights {

using format::Format;
using format::FormatInfo;

void QuantTensor::begin_rows(int64_t expert, int64_t begin, int64_t end) const {
  if (file) io::read_ahead(code_row(expert, begin), (end - begin) * row_bytes());
}

void QuantTensor::end_rows(int64_t expert, int64_t begin, int64_t end) const {
  if (file) file->forget(code_row(expert, begin), (end - begin) * row_bytes());
}

QuantTensor make_quant_tensor(Format format, int64_t experts, int64_t rows, int64_t cols,
                              const MakeTensor& make_codes) {
  const FormatInfo f = info(format);
  check(experts >= 0 && rows >= 0 && cols >= 0, "a weight of {} experts, {} rows and {} columns has a negative size",
        experts, rows, cols);
  check(f.bits != 4 || cols % 2 == 0,
        "{} columns cannot be stored as {}: two 4-bit codes share a byte, so the number "
        "must be even",
        cols, f.name);
  const ScaleGrid grid = scale_grid(format, rows, cols);
  QuantTensor w{format, experts, rows, cols, {}, {}, {}};
  w.codes = make_codes(code_type(f), {experts, rows, f.bits == 4 ? cols / 2 : cols});
  Shape scales{experts};
  if (grid.rank >= 1) scales.push_back(grid.rows);
  if (grid.rank == 2) scales.push_back(grid.cols);
  if (f.scale != format::ScaleType::none) w.scales = Tensor(scale_type(f), std::move(scales));
  if (f.global_scale) w.global = Tensor(DType::f32, {experts});
  return w;
}

Tensor dequantize(const QuantTensor& w) {
  Tensor out(DType::f32, {w.experts, w.rows, w.cols});
  for (int64_t e = 0; e < w.experts; ++e) {
    const void* scales = w.scales.empty() ? nullptr : w.scales.rows(e, e + 1).data();
    const float global = w.global.empty() ? 1.0f : w.global.as<float>()[e];
    format::dequantize_weight(w.format, w.code_row(e, 0), scales, global, w.rows, w.cols,
                              out.as<float>() + e * w.rows * w.cols);
  }
  return out;
}

namespace {
bool same_bytes(const Tensor& a, const Tensor& b) {
  return a.dtype() == b.dtype() && a.shape() == b.shape() &&
         (a.empty() || std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0);
}

// Tensors [E, Ni, ...] along their second dimension.
Tensor stack_rows(std::span<const QuantTensor> parts, Tensor QuantTensor::*member, Queue& queue) {
  const Tensor& first = parts[0].*member;
  if (first.empty()) return {};
  Shape shape = first.shape();
  shape[1] = 0;
  for (const QuantTensor& p : parts) shape[1] += (p.*member).dim(1);
  const bool on_host = first.device().is_host();
  Tensor out = on_host ? Tensor(first.dtype(), shape) : Tensor(queue.device(), first.dtype(), shape);
  auto* to = static_cast<std::byte*>(out.address());
  for (int64_t e = 0; e < shape[0]; ++e)
    for (const QuantTensor& p : parts) {
      const Tensor& t = p.*member;
      const int64_t bytes = t.bytes() / shape[0];
      (on_host ? host_queue() : queue).copy(to, static_cast<const std::byte*>(t.address()) + e * bytes, bytes);
      to += bytes;
    }
  return out;
}
}  // namespace

std::optional<QuantTensor> concatenate_rows(std::span<const QuantTensor> parts, Queue& queue) {
  if (parts.empty()) return {};
  if (parts.size() == 1) return parts[0];
  constexpr int64_t kBlock = 128;  // rows and columns of a block of fp8_block
  QuantTensor out = parts[0];
  out.file = nullptr;
  out.rows = 0;
  for (const QuantTensor& p : parts) {
    if (p.format != out.format || p.experts != out.experts || p.cols != out.cols) return {};
    if (p.format == format::Format::fp8_block && &p != &parts.back() && p.rows % kBlock != 0) return {};
    if (!same_bytes(p.global, out.global)) return {};
    if (p.format == format::Format::fp8_tensor && !same_bytes(p.scales, out.scales)) return {};
    out.rows += p.rows;
  }
  for (const QuantTensor& p : parts)
    for (int64_t e = 0; e < p.experts; ++e) p.begin_rows(e, 0, p.rows);
  out.codes = stack_rows(parts, &QuantTensor::codes, queue);
  for (const QuantTensor& p : parts)
    for (int64_t e = 0; e < p.experts; ++e) p.end_rows(e, 0, p.rows);
  if (out.format != format::Format::fp8_tensor) out.scales = stack_rows(parts, &QuantTensor::scales, queue);
  return out;
}

}  // namespace sluice::weights
