// SPDX-License-Identifier: Apache-2.0
// Threads, registers, shared memory and the shares of warps. Blocks of both kernels are on a multiprocessor at the same
// time, so that the second streams weights while the first runs.
#pragma once

#include <algorithm>

#include "kernels/sm90/one_token/one_token.h"

namespace sluice::sm90 {

// Parts of a k-block that hold 16 weight rows: where they begin, and their bytes.
template <WeightOperand op>
struct RowGroup {
  static constexpr bool plain = op == WeightOperand::bf16 || is_fp8(op);
  static constexpr int pieces = plain ? 1 : decodes_e4m3(op) ? 3 : 2;
  static constexpr int scale_bytes = plain ? 0 : (k_block_bytes(op) - k_block_code_bytes(op)) / 8;
  static constexpr int bytes = plain ? 2048 : k_block_code_bytes(op) / 8 + scale_bytes;
  // Of a piece in what `bytes` bytes of shared memory hold.
  HD static constexpr int offset(int piece) { return 512 * piece; }
  HD static constexpr int bytes_of(int piece) { return plain ? 2048 : piece + 1 < pieces ? 512 : scale_bytes; }
  // Of a piece of row group `group` in a k-block of 128 rows.
  HD static constexpr int from(int group, int piece) {
    if (plain) return 2048 * group;
    if (piece + 1 == pieces) return k_block_code_bytes(op) + group * scale_bytes;
    return decodes_e4m3(op) ? (group >> 2) * 4096 + (group & 3) * 512 + piece * 2048 : 512 * group;
  }
};

// Words of the token's columns of a k-block, two columns each, bfloat16 (FP8: half).
template <WeightOperand op>
inline constexpr int kTokenWords = is_fp8(op) ? 64 : 32;

// Scales of the token's 128 columns.
template <WeightOperand op>
HD constexpr int token_scale_words(int k_blocks) {
  return block_scaled(op) ? k_blocks : 0;
}

HD inline int groups_of(int64_t columns, bool gated) {
  return static_cast<int>(ceil_div<int64_t>(columns, gated ? 8 : 16));
}

// A block has some segments, each 16 weight rows by all of K. K is cut into parts, and warps in groups of `parts` share
// a segment: group i takes segments i, i + warps / parts, ...
inline int choose_parts(int runs, int segments, int warps) {
  int best = 1, best_cost = 0;
  for (int parts = 1; parts <= warps; parts *= 2) {
    const int cost = ceil_div(runs, parts) * ceil_div(segments * parts, warps);
    if (parts == 1 || cost < best_cost) best = parts, best_cost = cost;
  }
  return best;
}

template <WeightOperand op>
struct FirstTile {
  static constexpr int per_scale = k_blocks_per_scale(op);  // k-blocks of a run, which has one block scale
  static constexpr int warps = 16, threads = 32 * warps, registers = 80;
  // K-blocks on the way, in registers.
  static constexpr int ahead = RowGroup<op>::plain ? 2 : block_scaled(op) ? 3 : 4;
  static int smem_bytes(int k_blocks, int segments, int parts) {
    return 4 * (k_blocks * kTokenWords<op> + token_scale_words<op>(k_blocks) + segments * parts * 16);
  }
};

template <WeightOperand op>
struct SecondTile {
  static constexpr int per_scale = k_blocks_per_scale(op), columns = k_block_columns(op);
  static constexpr int warps = 8, threads = 32 * warps, registers = 96;
  static constexpr int chunk = 256 / columns;  // k-blocks that a warp rounds at once, eight columns per lane
  static constexpr int stage_k_blocks = RowGroup<op>::bytes >= 1024 ? 2 : 4;
  static constexpr int k_block_stage = (RowGroup<op>::bytes + 15) / 16 * 16;
  static constexpr int stage_bytes = stage_k_blocks * k_block_stage;
};

// Shared memory of a block of each; both together fit on a multiprocessor.
inline constexpr int kOneTokenFirstMemory = 40 * 1024, kOneTokenSecondMemory = 186 * 1024;

struct OneTokenPlan {
  int first_parts, first_bytes;  // parts of K, shared memory
  int second_parts, second_bytes;
  int warp_k_blocks;  // of the second: the most that a warp has
  int stages;         // of the ring of a warp
  int cluster;        // blocks that share the experts of 16 columns
};
template <WeightOperand op>
OneTokenPlan plan_one_token(const OneTokenShape& s, int multiprocessors) {
  using First = FirstTile<op>;
  using Second = SecondTile<op>;
  OneTokenPlan p{};
  const int segments = ceil_div(s.top_k * groups_of(s.columns[0], s.gated), multiprocessors);
  p.first_parts = choose_parts(ceil_div(s.k_blocks[0], First::per_scale), segments, First::warps);
  p.first_bytes = First::smem_bytes(s.k_blocks[0], segments, p.first_parts);
  const int groups = groups_of(s.columns[1], false);
  p.cluster = 1;
  while (p.cluster < 4 && groups * p.cluster * 2 <= multiprocessors && p.cluster * 2 <= s.top_k) p.cluster *= 2;
  const int rows = ceil_div(s.top_k, p.cluster), runs = ceil_div(s.k_blocks[1], Second::per_scale);
  p.second_parts = choose_parts(runs, rows, Second::warps);
  const int of_segment = ceil_div(runs, p.second_parts) * Second::per_scale;
  p.warp_k_blocks = of_segment * ceil_div(rows * p.second_parts, Second::warps);
  // Rounded columns, block scales; sums; results, weights.
  const int fixed =
      4 * (Second::warps * p.warp_k_blocks * (kTokenWords<op> + 1) + rows * p.second_parts * 16 + s.top_k * 17);
  // Blocks that a multiprocessor has at the same time when the first product has left.
  const int resident = std::clamp(ceil_div(groups * p.cluster, multiprocessors), 1, 4);
  const int stage = Second::warps * (Second::stage_bytes + 8);
  const int most = ceil_div(of_segment, Second::stage_k_blocks) * ceil_div(rows * p.second_parts, Second::warps);
  p.stages = std::clamp((kOneTokenSecondMemory / resident - 1024 - fixed) / stage, 2, std::max(most, 2));
  p.second_bytes = fixed + p.stages * stage;
  return p;
}

}  // namespace sluice::sm90
