// SPDX-License-Identifier: Apache-2.0
// The weight layout that the CPU kernels read: packed once when weights are loaded, read front to back by every
// product.
//
// A panel is 16 outputs n, that is 16 rows of W, one per vector lane. A broadcast input value then multiplies 16
// weights, and no sum crosses lanes. An N-tile is two panels whose 64-byte blocks alternate, so that a task reads one
// contiguous stream. The last N-tile of a matrix has one panel if the number of panels is odd. N-tile t holds the
// outputs [32t, 32t+16) and [32t+16, 32t+32) of a matrix. For the first GEMM of a gated layer it holds the outputs
// [16t, 16t+16) of gate and the same of up, so that both inputs of an activation are finished together.
//
//   codes of an N-tile:   [K' / block_k][panels][64 bytes]   block_k: 2 (bf16), 4 (8-bit codes), 8 (4-bit codes)
//   its block scales:     [K' / group][panels][16]           1 byte each, as published
//     of fp8_block:       [K' / 128][panels] f32
//   its row scales:       [panels][16] f32                   factors of the finished sums
//
// K' is K rounded up to 32. The padding of K is zero codes, and the padding of N is rows of zeros. Nothing is quantised
// again: 4-bit weights stay 4-bit codes and scales.
//
// A 64-byte block holds block_k codes of the 16 rows of a panel, in the order that takes the fewest instructions to
// decode. For row r of the panel, with k counted from the first of the block:
//
//   bf16          dword r is (k0, k1). These are the pairs that vdpbf16ps and AMX take; for float32, a shift and a mask
//                 give the two weights.
//   4-bit codes   dword r has the nibbles k0 k2 k4 k6 in its low word and k1 k3 k5 k7 in its high word. Shifted right
//                 by 4j, the words start with k 2j and 2j+1: then one vpermw decodes 16 pairs, and one vpermps decodes
//                 16 floats.
//   8-bit codes   Fp8Order says which of two orders.
#pragma once

#include <algorithm>

#include "device/context.h"
#include "kernels/cpu/bump_allocator.h"
#include "kernels/cpu/micro/packed_layout.h"
#include "weights/quant_tensor.h"

namespace sluice::kernels::cpu {

inline constexpr int64_t kPackedKAlign = 32;

// The order of 8-bit codes in a block, named after what decoding makes of them.
enum class Fp8Order : uint8_t {
  // Word r is (k0, k2), word 16 + r is (k1, k3). A shift makes 16 float16 values of one k.
  f16,
  // Each 16 bytes hold four rows: (k0, k1) of each, then (k2, k3) of each. Look-ups give the low and the high bytes of
  // the bf16 values, and interleaving them gives pairs.
  bf16_pairs
};

// The bits of an e4m3 value (sign, 4 exponent bits, 3 mantissa bits), shifted and read as float16, are 1/256 of the
// value, also for subnormal values. Kernels read 8-bit codes in Fp8Order::f16 and the block scales of NVFP4 that way,
// so the row scales of such weights contain this factor.
inline constexpr float kE4m3F16Factor = 256.0f;

// Where one N-tile lies. scales is null if the format has no block scales.
struct NTileView {
  const uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;
  const float* row_scale = nullptr;
  int panels = 0;  // 1 or 2
};

// The packed weights of E experts: one matrix [N, K] each, or two (gate and up) with interleaved panels.
class PackedWeights {
 public:
  PackedWeights() = default;
  // w: canonical [E, N, K] in any format. up: null, or as w, which is then gate. A row with a NaN code or a NaN block
  // scale gets a NaN row scale, so that its sums are NaN for every input and kernels need not test. Throws
  // invalid_argument if a size is not positive or if gate and up differ in format or shape, and out_of_memory.
  // memory: where the weights live, which the caller keeps alive; null: in memory of their own.
  PackedWeights(Context& ctx, const weights::QuantTensor& w, const weights::QuantTensor* up, Fp8Order order,
                BumpAllocator* memory = nullptr);
  // What the constructor takes of `memory`, in either order.
  static int64_t packed_bytes(format::Format format, int64_t experts, int64_t n, int64_t k, bool gated);
  // Packs other weights into the same memory. Throws invalid_argument unless format and shape are as before.
  void refit(Context& ctx, const weights::QuantTensor& w, const weights::QuantTensor* up);

  format::Format format() const { return format_; }
  Fp8Order fp8_order() const { return order_; }
  int64_t experts() const { return experts_; }  // E
  int64_t n() const { return n_; }              // of one matrix
  int64_t k() const { return k_; }
  int64_t padded_k() const { return padded_k_; }                           // K'
  int64_t n_tiles() const { return (panels_ + 1) / kNTilePanels; }         // of one expert
  int64_t n_tile_bytes() const { return n_tile_codes_ + n_tile_scales_; }  // of one with two panels
  int64_t bytes() const { return codes_.bytes() + (scales_.empty() ? 0 : scales_.bytes()) + row_scales_.bytes(); }
  // N-tile 0 of the expert after the last is allowed: its pointers are the ends of the arrays.
  NTileView n_tile(int64_t expert, int64_t index) const;

 private:
  void lay_out(format::Format format, int64_t experts, int64_t n, int64_t k, bool gated);
  // take(type, shape) gives a tensor.
  template <class Take>
  void take_arrays(Take&& take);
  void pack_n_tiles(const weights::QuantTensor& w, const weights::QuantTensor* up, int64_t expert, int64_t first,
                    int64_t end);
  void pack_n_tile(const weights::QuantTensor& w, const weights::QuantTensor* up, int64_t expert, int64_t index);

  format::Format format_ = format::Format::bf16;
  Fp8Order order_ = Fp8Order::f16;
  bool gated_ = false;
  int64_t experts_ = 0, n_ = 0, k_ = 0, padded_k_ = 0;
  int64_t panels_ = 0;                            // per expert, those of gate and up together
  int64_t n_tile_codes_ = 0, n_tile_scales_ = 0;  // bytes per N-tile with two panels
  int64_t expert_codes_ = 0, expert_scales_ = 0;  // bytes per expert
  Tensor codes_, scales_, row_scales_;
};

// Inline: out of line, the caller reads the view back from memory in pairs of members, and such a load waits until both
// members are stored, which is after all earlier stores (1.6 % of the layer's time at 6 rows per expert).
inline NTileView PackedWeights::n_tile(int64_t expert, int64_t index) const {
  NTileView v;
  v.codes = codes_.as<uint8_t>() + expert * expert_codes_ + index * n_tile_codes_;
  if (!scales_.empty()) v.scales = scales_.as<uint8_t>() + expert * expert_scales_ + index * n_tile_scales_;
  v.row_scale = row_scales_.as<float>() + expert * panels_ * kPanelN + index * kNTile;
  v.panels = static_cast<int>(std::min<int64_t>(kNTilePanels, panels_ - index * kNTilePanels));
  return v;
}

}  // namespace sluice::kernels::cpu
