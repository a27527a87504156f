// SPDX-License-Identifier: Apache-2.0
#include "weights/blackwell_layout.h"

#include <cstring>
#include <numeric>

#include "base/math.h"
#include "format/scale_layout.h"

namespace sluice::weights {

using format::Format;
using format::ScaleLayout;

RowOrder gated_act_order(int64_t rows) {
  check(rows % 2 == 0, "a merged gate and up matrix has {} rows; the number must be even", rows);
  RowOrder order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows / 2; ++i) {
    order[2 * i] = i;
    order[2 * i + 1] = rows / 2 + i;
  }
  return order;
}

RowOrder shuffle_order(int64_t rows, int64_t tile_m) {
  const int64_t block = tile_m % 128 == 0 ? 32 : 16;
  check(rows % block == 0, "{} rows cannot be shuffled in blocks of {}; pad them to a multiple", rows, block);
  RowOrder order(static_cast<size_t>(rows));
  for (int64_t i = 0; i < rows; ++i) {
    // Published as tables 0,8,1,9,... (16) and 0,8,16,24,1,9,... (32): old row i of a block goes to table[i].
    const int64_t lanes = block / 8, in = i % block, to = in % lanes * 8 + in / lanes;
    order[i / block * block + to] = i;
  }
  return order;
}

RowOrder compose(const RowOrder& first, const RowOrder& second) {
  check(first.size() == second.size(), "row orders of {} and {} rows", first.size(), second.size());
  RowOrder both(first.size());
  for (size_t i = 0; i < both.size(); ++i) both[i] = first[second[i]];
  return both;
}

RowOrder inverse(const RowOrder& order) {
  RowOrder back(order.size());
  for (size_t i = 0; i < order.size(); ++i) back[order[i]] = static_cast<int64_t>(i);
  return back;
}

Tensor permute_rows(const Tensor& t, const RowOrder& order) {
  check(t.rank() >= 2 && t.dim(1) == static_cast<int64_t>(order.size()),
        "{} rows were permuted in a tensor of shape {}", order.size(), to_string(t.shape()));
  Tensor out(t.dtype(), t.shape());
  const int64_t rows = t.dim(1), row_bytes = t.elements() == 0 ? 0 : t.bytes() / (t.dim(0) * rows);
  const auto* from = static_cast<const std::byte*>(t.data());
  auto* to = static_cast<std::byte*>(out.data());
  for (int64_t e = 0; e < t.dim(0); ++e)
    for (int64_t r = 0; r < rows; ++r)
      std::memcpy(to + (e * rows + r) * row_bytes, from + (e * rows + order[r]) * row_bytes,
                  static_cast<size_t>(row_bytes));
  return out;
}

Tensor reorder_rows_for_gated_act_gemm(const Tensor& t) { return permute_rows(t, gated_act_order(t.dim(1))); }

Tensor shuffle_matrix_a(const Tensor& t, int64_t tile_m) { return permute_rows(t, shuffle_order(t.dim(1), tile_m)); }

Tensor shuffle_matrix_sf_a(const Tensor& scales, int64_t tile_m) {
  check(scales.dim(1) % 128 == 0, "scales of {} rows cannot be interleaved; pad the rows to a multiple of 128",
        scales.dim(1));
  return block_scale_interleave(shuffle_matrix_a(scales, tile_m));
}

Tensor block_scale_interleave(const Tensor& scales) {
  check(scales.rank() == 3 && bytes_of(scales.dtype()) == 1,
        "scales to interleave are {} of shape {}; one-byte scales [E, M, K] are accepted", to_string(scales.dtype()),
        to_string(scales.shape()));
  const int64_t rows = scales.dim(1), cols = scales.dim(2);
  Tensor out(scales.dtype(), {scales.dim(0), round_up<int64_t>(rows, 128), round_up<int64_t>(cols, 4)});
  for (int64_t e = 0; e < scales.dim(0); ++e)
    format::scales_from_linear(ScaleLayout::swizzled_128x4, scales.slice(e).as<uint8_t>(), rows, cols,
                               out.slice(e).as<uint8_t>());
  return out;
}

Tensor block_scale_deinterleave(const Tensor& interleaved, int64_t rows, int64_t cols) {
  const int64_t size = format::scale_elements(ScaleLayout::swizzled_128x4, rows, cols);
  check(bytes_of(interleaved.dtype()) == 1 && interleaved.rank() >= 1 && interleaved.elements() % size == 0,
        "interleaved scales are {} of shape {}; {} bytes an expert are expected for {} x {} scales",
        to_string(interleaved.dtype()), to_string(interleaved.shape()), size, rows, cols);
  const int64_t experts = interleaved.elements() / size;
  Tensor out(interleaved.dtype(), {experts, rows, cols});
  for (int64_t e = 0; e < experts; ++e)
    format::scales_to_linear(ScaleLayout::swizzled_128x4, interleaved.as<uint8_t>() + e * size, rows, cols,
                             out.slice(e).as<uint8_t>());
  return out;
}

Tensor convert_to_block_layout(const Tensor& t, int64_t block) {
  check(t.rank() == 3, "a stack to lay out in blocks has shape {}; [E, M, K] is accepted", to_string(t.shape()));
  const int64_t experts = t.dim(0), rows = t.dim(1), row_bytes = t.dim(2) * bytes_of(t.dtype());
  check(row_bytes % block == 0, "rows of {} bytes cannot be cut into blocks of {}; pad the columns", row_bytes, block);
  const int64_t blocks = row_bytes / block;
  Tensor out(DType::u8, {experts, blocks, rows, block});
  const auto* from = static_cast<const uint8_t*>(t.data());
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(out.as<uint8_t>() + ((e * blocks + b) * rows + r) * block,
                    from + (e * rows + r) * row_bytes + b * block, static_cast<size_t>(block));
  return out;
}

Tensor convert_from_block_layout(const Tensor& t) {
  check(t.rank() == 4, "a stack in blocks has shape {}; [E, K / block, M, block] is accepted", to_string(t.shape()));
  const int64_t experts = t.dim(0), blocks = t.dim(1), rows = t.dim(2), block = t.dim(3) * bytes_of(t.dtype());
  Tensor out(DType::u8, {experts, rows, blocks * block});
  const auto* from = static_cast<const uint8_t*>(t.data());
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t b = 0; b < blocks; ++b)
      for (int64_t r = 0; r < rows; ++r)
        std::memcpy(out.as<uint8_t>() + (e * rows + r) * blocks * block + b * block,
                    from + ((e * blocks + b) * rows + r) * block, static_cast<size_t>(block));
  return out;
}

BlackwellLayout blackwell_layout(Format format) {
  switch (format) {
    case Format::bf16:
      return {true, 128, false, true};
    case Format::fp8_tensor:
      return {true, 128, false, false};
    case Format::fp8_block:
      return {false, 0, false, false};  // "unshuffled"; kernels also take tile_m 64 with blocks, by the primitives
    case Format::mxfp8:
    case Format::nvfp4:
    case Format::mxfp4:
      return {true, 128, true, false};
    case Format::fp8_channel:
      break;
  }
  fail(ErrorCode::unsupported, "the Blackwell kernels take no {} weights", info(format).name);
}

namespace {

RowOrder order_of(const BlackwellLayout& layout, int64_t rows, bool gated) {
  RowOrder order(static_cast<size_t>(rows));
  std::iota(order.begin(), order.end(), int64_t{0});
  if (layout.reorder && gated) order = gated_act_order(rows);
  if (layout.tile_m > 0) order = compose(order, shuffle_order(rows, layout.tile_m));
  return order;
}

}  // namespace

BlackwellTensors to_blackwell(const QuantTensor& w, bool gated) {
  const BlackwellLayout layout = blackwell_layout(w.format);
  const RowOrder order = order_of(layout, w.rows, gated);
  BlackwellTensors out{permute_rows(w.codes, order), w.scales};
  if (layout.block_major) out.codes = convert_to_block_layout(out.codes);
  if (layout.swizzle) {
    check(w.rows % 128 == 0, "scales of {} rows cannot be interleaved; pad the rows to a multiple of 128", w.rows);
    out.scales = block_scale_interleave(permute_rows(w.scales, order));
  }
  return out;
}

void from_blackwell(const BlackwellTensors& prepared, bool gated, QuantTensor& w) {
  const BlackwellLayout layout = blackwell_layout(w.format);
  const RowOrder back = inverse(order_of(layout, w.rows, gated));
  const QuantTensor shapes = make_quant_tensor(w.format, w.experts, w.rows, w.cols);
  const Tensor codes = layout.block_major ? convert_from_block_layout(prepared.codes) : prepared.codes;
  check(codes.bytes() == shapes.codes.bytes(), "prepared codes have {} bytes; {} are expected for {} x {} x {}",
        codes.bytes(), shapes.codes.bytes(), w.experts, w.rows, w.cols);
  const auto as = [](const Tensor& t, const Tensor& like) {
    return Tensor(like.dtype(), like.shape(), t.data(), std::make_shared<Tensor>(t));
  };
  w.codes = permute_rows(as(codes, shapes.codes), back);
  if (layout.swizzle)
    w.scales =
        permute_rows(as(block_scale_deinterleave(prepared.scales, w.rows, shapes.scales.dim(2)), shapes.scales), back);
  else
    w.scales = prepared.scales;
}

}  // namespace sluice::weights
