// SPDX-License-Identifier: Apache-2.0
// The rotary embedding, and the fused step from projected rows to rotated queries and stored pages.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

inline constexpr int kMaxRopePairs = 256;

struct RopeAnglesArgs {
  float inv_freq[kMaxRopePairs];  // by value: the frequencies need no memory of their own
  float attention_factor;
  const int32_t* positions;  // [rows]
  int64_t rows;
  int pairs;
  bool round_bf16;
  float *cosine, *sine;  // [rows, pairs]
};
void launch_rope_angles(const RopeAnglesArgs& args, Stream stream, bool pdl);

// Heads of a row that are normed, rotated and stored in pages in the same way. Each of the three steps may be absent.
struct HeadGroup {
  RowsView x;         // D [rows, heads * dim], changed in place
  int heads, dim;     // dim <= kMaxHeadDim
  const float* norm;  // [norm_dim]: weight of a norm over the first norm_dim values of each head; null: none
  int norm_dim;
  float eps;
  int rotary_first, half;  // values [rotary_first, rotary_first + 2 half) are rotated; half 0: none
  bool interleaved;        // pairs are (2i, 2i + 1); else (i, i + half)
  void* pages;             // D or e4m3 [blocks, heads, block_size, dim]; null: the heads stay in the row
  bool e4m3;               // the pages hold D(x) / scale as e4m3
  float scale;
};
inline constexpr int kMaxHeadDim = 1024, kMaxHeadGroups = 3;

struct HeadsArgs {
  HeadGroup groups[kMaxHeadGroups];
  int num_groups;
  int64_t rows;
  const float *cosine, *sine;  // [rows, half]
  const int32_t* kv_slots;     // [rows]: block * block_size + offset
  int block_size;
};
void launch_heads(const HeadsArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
