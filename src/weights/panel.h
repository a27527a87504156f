// SPDX-License-Identifier: Apache-2.0
// The CPU backend's weight layout: made once at preparation, streamed front to back at run time.
//
// A panel is 16 output rows: one row a vector lane, so a broadcast input value multiplies 16 weights and no sum ever
// crosses lanes. Panels come in units of two (the last one of a matrix may stand alone) whose 64-byte blocks alternate,
// so a task reads one contiguous stream: the rows [32u, 32u+16) and [32u+16, 32u+32) of one matrix, or, for a gated
// first GEMM, rows [16u, 16u+16) of gate and of up, so that both halves of an activation are finished together.
//
//   codes of a unit:  [K' / block_k][panels][64 bytes]     block_k = 2 (bf16), 4 (8 bit), 8 (4 bit)
//   scales of a unit: [K' / group][panels][16 rows]        1 byte each, as published; fp8_block: [K'/128][panels] f32
//   row scales:       [panels][16] f32                     what multiplies the finished sum of a row
//
// K' is K rounded up to 32; the padding is zero codes, and N is padded with zero rows. Nothing is re-quantised: 4-bit
// weights stay at 4 bits + scales. Inside a 64-byte block the codes stand where decoding needs the fewest instructions:
//
//   bf16   dword r = (k0, k1) of row r: bf16 pairs for vdpbf16ps and AMX; a shift and a mask give two f32 vectors.
//   4 bit  dword r: low word = nibbles k0 k2 k4 k6, high word = k1 k3 k5 k7, so that both words of a dword shifted by
//   4j
//          hold the pair (2j, 2j+1): one vpermw decodes 16 pairs; a dword shift and one vpermps decode 16 f32.
//   8 bit  Fp8Order::halves: word r = (k0, k2), word 16 + r = (k1, k3): a shift makes 16 half floats of one k
//          Fp8Order::pairs:  in each 16 bytes, rows 4L..4L+3: (k0, k1) x 4, then (k2, k3) x 4: byte look-ups of the two
//                            halves of a bf16, interleaved, give bf16 pairs.
#pragma once

#include <algorithm>

#include "base/context.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

inline constexpr int kPanelRows = 16;
inline constexpr int kUnitPanels = 2;
inline constexpr int kUnitRows = kPanelRows * kUnitPanels;
inline constexpr int64_t kPanelAlignK = 32;

enum class Fp8Order : uint8_t { halves, pairs };

// Half floats made from the bits of e4m3 (sign, 4 exponent, 3 mantissa bits) read as 2^-8 of its value, subnormals
// included. Row scales carry the factor back: for 8-bit codes in `halves` order and for NVFP4's block scales.
inline constexpr float kHalfFactor = 256.0f;

struct UnitView {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const float* row_scale = nullptr;
  int panels = 0;
};

// E matrices [N, K], or E pairs of them (gate and up), packed.
class PanelStack {
 public:
  PanelStack() = default;
  // `up` is null for a single matrix. A row that holds a NaN code or a NaN block scale gets a NaN row scale: its sum is
  // NaN for every input, so the kernels need not look.
  PanelStack(Context& ctx, const QuantTensor& w, const QuantTensor* up, Fp8Order order);
  // Packs other weights of the same shape and format into the same memory.
  void refit(Context& ctx, const QuantTensor& w, const QuantTensor* up);

  format::Format format() const { return format_; }
  int64_t experts() const { return experts_; }
  int64_t rows() const { return rows_; }  // N of one matrix
  int64_t cols() const { return cols_; }  // K
  int64_t padded_cols() const { return padded_cols_; }
  bool paired() const { return paired_; }
  int64_t units() const { return (panels_ + 1) / kUnitPanels; }
  int64_t unit_bytes() const { return unit_codes_ + unit_scales_; }  // of a full unit
  int64_t bytes() const { return codes_.bytes() + (scales_.empty() ? 0 : scales_.bytes()) + row_scales_.bytes(); }
  UnitView unit(int64_t expert, int64_t u) const;

 private:
  void pack_unit(const QuantTensor& w, const QuantTensor* up, int64_t e, int64_t u);

  format::Format format_ = format::Format::bf16;
  Fp8Order order_ = Fp8Order::halves;
  bool paired_ = false;
  int64_t experts_ = 0, rows_ = 0, cols_ = 0, padded_cols_ = 0;
  int64_t panels_ = 0;  // of one expert, both matrices of a pair together
  int64_t unit_codes_ = 0, unit_scales_ = 0, expert_codes_ = 0, expert_scales_ = 0;
  Tensor codes_, scales_, row_scales_;
};

// In the header: a caller that copies the view from memory in pairs waits until both halves are stored, which is
// behind all earlier stores (1.6 % of the layer at 6 rows an expert).
inline UnitView PanelStack::unit(int64_t expert, int64_t u) const {
  UnitView v;
  v.codes = codes_.as<uint8_t>() + expert * expert_codes_ + u * unit_codes_;
  if (!scales_.empty()) v.scales = scales_.as<uint8_t>() + expert * expert_scales_ + u * unit_scales_;
  v.row_scale = row_scales_.as<float>() + expert * panels_ * kPanelRows + u * kUnitRows;
  v.panels = static_cast<int>(std::min<int64_t>(kUnitPanels, panels_ - u * kUnitPanels));
  return v;
}

}  // namespace sluice::weights
