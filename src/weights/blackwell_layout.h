// SPDX-License-Identifier: Apache-2.0
// The weight layouts that callers of the fused Blackwell kernels prepare (spec/fused-moe-contract.md 6.1, 6.2), and the
// way back: nothing here needs them, but tensors that were prepared for those kernels are accepted, and
// trained weights can be handed to them.
#pragma once

#include <vector>

#include "weights/gate_up.h"

namespace sluice::weights {

// Row permutations of one matrix: new row i is old row order[i].
using RowOrder = std::vector<int64_t>;
RowOrder gated_act_order(int64_t rows);                           // new[2i] = old[i], new[2i + 1] = old[rows / 2 + i]
RowOrder shuffle_order(int64_t rows, int64_t tile_m);             // within blocks of 32 (tile_m % 128 == 0) or 16 rows
RowOrder compose(const RowOrder& first, const RowOrder& second);  // `first`, then `second`
RowOrder inverse(const RowOrder& order);

// t [E, M, ...] of any type -> the same shape, rows of each matrix permuted.
Tensor permute_rows(const Tensor& t, const RowOrder& order);

// The published primitives on stacks [E, M, K].
Tensor reorder_rows_for_gated_act_gemm(const Tensor& t);
Tensor shuffle_matrix_a(const Tensor& t, int64_t tile_m);
Tensor shuffle_matrix_sf_a(const Tensor& scales, int64_t tile_m);  // M % 128 == 0; shuffled, then interleaved
// One-byte scales [E, M, K] -> [E, round_up(M, 128), round_up(K, 4)] in the 128x4 order, padding zero; and back.
Tensor block_scale_interleave(const Tensor& scales);
Tensor block_scale_deinterleave(const Tensor& interleaved, int64_t rows, int64_t cols);
// [E, M, K bytes] -> u8 [E, K bytes / block, M, block]; and back to u8 [E, M, K bytes].
Tensor convert_to_block_layout(const Tensor& t, int64_t block = 128);
Tensor convert_from_block_layout(const Tensor& t);

// How one format is prepared.
struct BlackwellLayout {
  bool reorder;      // gate and up rows interleaved
  int64_t tile_m;    // of shuffle_matrix_a; 0: rows stay
  bool swizzle;      // scales shuffled with the rows, then 128x4
  bool block_major;  // codes in blocks of 128 bytes along K
};
// Throws unsupported for fp8_channel, which those kernels do not take.
BlackwellLayout blackwell_layout(format::Format format);

struct BlackwellTensors {
  Tensor codes;   // [E, M, K bytes], or u8 [E, K bytes / 128, M, 128]
  Tensor scales;  // swizzled, or as they were
};
// One GEMM's stack, merged [up; gate] when it is gated (merge_gate_up with GateUpOrder::up_gate). M must be a multiple
// of 32, and of 128 for swizzled scales: pad first (pad.h).
BlackwellTensors to_blackwell(const QuantTensor& w, bool gated);
// The inverse; `w` says the format, shape and global scales, its codes and scales are written.
void from_blackwell(const BlackwellTensors& prepared, bool gated, QuantTensor& w);

}  // namespace sluice::weights
