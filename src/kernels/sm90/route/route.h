// SPDX-License-Identifier: Apache-2.0
// Routing and the tables that put tokens in the order of their experts, all on the device. No host reads: the number
// of tokens may come from device memory, and grids are those of the largest number.
#pragma once

#include <algorithm>

#include "kernels/sm90/device.h"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/layout.h"
#include "routing/methods.h"
#include "routing/route.h"

namespace sluice::sm90 {

inline constexpr int kMaxTopK = 64;
// Of one token, in the kernels that have a lane of a warp for each of its experts.
inline constexpr int kOneTokenPairs = 32;
inline constexpr int kMaxExperts = 2048;

// Where the tables lie. A pair is one of the top_k experts of one token; its number is token * top_k + slot. Rows are
// those of the rows layout (layout.h): the pairs in the order of their experts, with padding between tiles.
struct RouteTables {
  int32_t* ids;               // [pairs] global ids
  float* weights;             // [pairs]
  int32_t* rank;              // [pairs] place among the pairs of the same expert in its share; -1: not local
  int32_t* counts;            // [shares, locals]: places where the share's pairs begin
  int32_t* expert_tile;       // [locals] first tile
  int32_t* expert_tile_rows;  // [locals] rows of every tile of the expert but the last
  RowTile* tiles;
  Header* header;
  int32_t* pair_row;  // [pairs] row, -1: not local
  int32_t* row_pair;  // [rows]
  int32_t* arrivals[2];
  int32_t* ready;
};

// One call's routing. All pointers are device memory; T is `tokens`, E params.experts, K params.top_k.
struct RouteArgs {
  // How experts are chosen. Read only if logits is not null, but for params.experts and params.top_k.
  routing::Method method;
  routing::Params params;  // top_k at most kMaxTopK, experts at most kMaxExperts
  const void* logits;      // [T, E] in bfloat16 if logits_bf16, else float32; null: the routing is given below
  bool logits_bf16;
  const void* bias;  // [E] in bfloat16 if bias_bf16, else float32; null: 0. Read by methods with a bias only
  bool bias_bf16;

  // The routing that the caller gives. Read only if logits is null.
  const int32_t* given_ids;   // [T, K] global ids; those outside of 0 .. E - 1 contribute nothing
  const void* given_weights;  // [T, K] in bfloat16 if given_bf16, else float32; null: packed into the ids
                              // (routing::packed_id)
  bool given_bf16;
  float given_scale;  // multiplies them

  int64_t tokens;             // the captured maximum; at least 1
  const int32_t* num_tokens;  // [1] tokens that are routed, clamped to 0 .. T; null: T

  // This rank's experts and the tiles of the GEMMs that follow.
  int local_offset, locals;  // global ids local_offset .. local_offset + locals - 1
  int max_n, step_n;         // most rows of a tile, and what a tile's rows are rounded up to
  int m_groups[2];           // M-tile groups of each GEMM: how many arrival counters a tile has

  // What is written.
  RouteTables tables;
  int32_t* chosen_ids;    // [T, K] copy for the caller, -1 where an id is outside of 0 .. E - 1; null: none
  float* chosen_weights;  // [T, K] copy for the caller; null: none
};

// Experts and weights of pairs.
struct TopkPairs {
  const int32_t* ids;
  routing::Values weights;  // nothing: packed with the ids
  float scale;              // of the weights
  HD int32_t id_in(int32_t word) const { return weights ? word : routing::packed_id(word); }  // word: ids[pair]
  HD int32_t id(int64_t pair) const { return id_in(ids[pair]); }
  HD float weight(int64_t pair) const { return scale * (weights ? weights[pair] : routing::packed_weight(ids[pair])); }
};
// As the caller gave them, or as route_kernel chose them.
HD inline TopkPairs pairs_of(const RouteArgs& a) {
  if (a.logits != nullptr) return {a.tables.ids, {a.tables.weights, false}, 1.0f};
  return {a.given_ids, {a.given_weights, a.given_bf16}, a.given_scale};
}

// The warps of one cluster number the pairs, each those of its share of the tokens. A counter per expert and warp must
// fit into shared memory.
inline constexpr int kShareBlocks = 8;
HD constexpr int share_warps(int locals) { return locals <= 1024 ? 32 : 16; }
HD constexpr int shares_of(int locals) { return kShareBlocks * share_warps(locals); }
HD constexpr int64_t tokens_per_share(int64_t tokens, int locals) {
  return ceil_div<int64_t>(tokens, shares_of(locals));
}
// The most tiles and rows that any routing of `pairs` local pairs can need.
inline int64_t max_tiles(int64_t pairs, int64_t locals, int max_n) {
  const int64_t touched = pairs < locals ? pairs : locals;
  return touched + (pairs - touched) / max_n + 1;
}
inline int64_t max_rows(int64_t pairs, int64_t locals, int max_n, int step_n) {
  return round_up<int64_t>(pairs + max_tiles(pairs, locals, max_n) * (step_n - 1), step_n);
}

// On the current device, once before the launches of a layer: allows their shared memory.
void allow_route(int experts, int locals);

// The input and output of the runs that warm up the instruction cache: an InputScale of ones, zeros that no kernel
// writes, and memory that no kernel reads.
inline constexpr int kWarmUpOutput = 1024;
constexpr int64_t warm_up_zeros(int experts) { return round_up<int64_t>(4 * std::max(experts, kMaxTopK), 16); }
constexpr int64_t warm_up_bytes(int experts) {
  return static_cast<int64_t>(sizeof(InputScale)) + warm_up_zeros(experts) + kWarmUpOutput;
}
// The arguments of such a run: one token of zeros, for which the first expert is chosen.
RouteArgs warm_up_route(const RouteArgs& args, const void* warm_up);
// Whether kernels have such a run. Those that come after one of this layer always do, with `pdl`.
struct WarmUp {
  const void* memory;  // of warm_up_bytes()
  bool of_first;       // the first kernel of the layer has one too (moe::MoeArgs::follows_own)
};

// Experts and weights of all pairs, from logits, to the tables' ids and weights. The first kernel of a layer.
void launch_choose(const RouteArgs& args, const WarmUp& warm_up, Stream stream, bool pdl);
// Numbers pairs and makes the tables.
void launch_tables(const RouteArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
