// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/route_permute/route_permute.h"

#include <algorithm>

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/route/choose.cuh"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

struct RoutePermuteArgs {
  RouteArgs route[2];  // [1]: the warm-up, on one token of zeros
  RowsArgs rows[2];
  bool warms_up;
  bool early;  // the next kernel reads the given ids without waiting for this one
};

__device__ __forceinline__ int local_of(const RouteArgs& r, int32_t id) {
  const int e = id >= 0 && id < r.params.experts ? id - r.local_offset : -1;
  return e >= 0 && e < r.locals ? e : -1;
}

// Of a pair of this block's token.
__device__ __forceinline__ void store_pair(const RouteArgs& r, int64_t pair, int32_t id, float weight, int row) {
  r.tables.weights[pair] = weight;
  if (r.chosen_ids != nullptr) r.chosen_ids[pair] = id >= 0 && id < r.params.experts ? id : -1;
  if (r.chosen_weights != nullptr) r.chosen_weights[pair] = weight;
  r.tables.pair_row[pair] = row;
  if (row >= 0) r.tables.row_pair[row] = static_cast<int32_t>(pair);
}

__device__ __forceinline__ void store_tiles(const RouteArgs& r, const ExpertTiles& p, int e, int tile0, int row0) {
  for (int i = 0; i < p.tiles; ++i) {
    const int n = i + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
    r.tables.tiles[tile0 + i] = {e, row0 + i * p.rows_per_tile, n, stepped(n, r.step_n)};
  }
}

__device__ __forceinline__ Target target_at(const RouteArgs& r, const RowsArgs& a, const ExpertTiles& p, int e,
                                            int row0, int place) {
  const int index = p.tiles == 1 ? 0 : place / p.rows_per_tile;
  const int count = index + 1 < p.tiles ? p.rows_per_tile : p.last_rows, begin = index * p.rows_per_tile;
  return target_of(a, {e, row0 + begin, count, stepped(count, r.step_n)}, place - begin);
}

__device__ __forceinline__ void clear_counters(const RouteArgs& r, int tiles, int thread, int threads) {
  for (int i = thread; i < tiles; i += threads) r.tables.ready[i] = 0;
  for (int g = 0; g < 2; ++g)
    if (r.tables.arrivals[g] != nullptr)
      for (int i = thread; i < tiles * r.m_groups[g]; i += threads) r.tables.arrivals[g][i] = 0;
}

// The row and its scale are read last and depend on nothing here, so they are fetched to L1 at once.
template <int kThreads>
__device__ __forceinline__ void prefetch_row(const RowsArgs& a, int64_t token, int part) {
  const int64_t column = (part * kThreads + threadIdx.x) * 8, bytes = a.source.tokens_f32 ? 4 : 2;
  if (column < a.source.columns)
    ptx::prefetch_l1(static_cast<const uint8_t*>(a.source.tokens) +
                     (token * int64_t{a.source.columns} + column) * bytes);
  if (threadIdx.x == 0) ptx::prefetch_l1(a.out.static_scale);
}

// Waits for the kernels before this one. A block's first launch of the next kernel counts.
__device__ __forceinline__ void begin_run(const RoutePermuteArgs& args, int threads) {
  ptx::griddepcontrol_wait();
  const bool first = blockIdx.x == 0 && blockIdx.y == 0, clears = static_cast<int>(threadIdx.x) == threads - 32;
  if (first && clears) {
    Header& header = *args.route[0].tables.header;
    header.ticket[0] = header.ticket[1] = 0;
    // An early GEMM draws tickets as soon as it starts, which it cannot before this block has launched it.
    if (args.early) __threadfence();
  }
  if (args.early && (!first || clears)) ptx::griddepcontrol_launch_dependents();
}

// ---- several tokens: a block per token, or per part of its columns ----

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxRoutedTokens = kWarps;  // chosen for by every block, a warp for each token

// Per local expert a count and its first row; where logits are read also the scores of each warp's token.
HD constexpr int shared_bytes(int experts, int locals, bool routes) {
  return 4 * (2 * locals + (routes ? kWarps * experts : 0));
}

// What a block knows of its own token, and what its threads exchange.
struct OwnToken {
  int32_t id[kMaxTopK];
  float weight[kMaxTopK];
  Target targets[kMaxTopK];
  int num_targets;
  int warp_sums[2][32];
  uint32_t row_max[kWarps];
};

// One word per expert: all its pairs in the lower half, those of the tokens before this block's in the upper.
__device__ __forceinline__ void count_pair(int* counts, int e, bool before) {
  if (e >= 0) atomicAdd(counts + e, before ? 0x10001 : 1);
}

// From logits, for all tokens, a warp for each.
__device__ __forceinline__ void count_chosen(const RouteArgs& r, int token, int tokens, int* counts, float* scores,
                                             OwnToken& own) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  for (int t = warp; t < tokens; t += kWarps) {
    const Chosen chosen = choose(r, t, scores + warp * r.params.experts, lane);
#pragma unroll
    for (int i = 0; i < kChosenEach; ++i) {
      const int k = lane + 32 * i;
      if (k >= r.params.top_k) continue;
      count_pair(counts, local_of(r, chosen.id[i]), t < token);
      if (t == token) own.id[k] = chosen.id[i], own.weight[k] = chosen.weight[i];
    }
  }
}

// Experts that are given, or have been chosen. weighs: this block stores the weights of its token.
__device__ __forceinline__ void count_given(const RouteArgs& r, int token, int tokens, bool weighs, int* counts,
                                            OwnToken& own) {
  const TopkPairs given = pairs_of(r);
  const int top_k = r.params.top_k, first_own = token * top_k, pairs = tokens * top_k;
  if (token < tokens && static_cast<int>(threadIdx.x) < top_k) {
    own.id[threadIdx.x] = given.id(first_own + threadIdx.x);
    if (weighs) own.weight[threadIdx.x] = given.weight(first_own + threadIdx.x);
  }
  constexpr int kBatch = 4;  // reads under way together
  for (int first = threadIdx.x; first < pairs; first += kBatch * kThreads) {
    int e[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int pair = first + i * kThreads;
      e[i] = pair < pairs ? local_of(r, given.id(pair)) : -1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) count_pair(counts, e[i], first + i * kThreads < first_own);
  }
}

struct TileTotals {
  int tiles, rows;
};
// The first row of each expert. writer: this block also stores the tiles.
__device__ __forceinline__ TileTotals place_experts(const RouteArgs& r, bool writer, const int* counts, int* row_of,
                                                    int (&warp_sums)[2][32]) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  TileTotals before{0, 0};
  for (int base = 0, pass = 0; base < r.locals; base += kThreads, pass ^= 1) {
    const int e = base + static_cast<int>(threadIdx.x);
    const ExpertTiles p = expert_tiles(e < r.locals ? counts[e] & 0xffff : 0, r.max_n, r.step_n);
    // Tiles and rows in one word: so few pairs have at most as many tiles, of at most 64 rows more than they need.
    static_assert(tuning::kPermutePairs < 1 << 12);
    const uint32_t value = static_cast<uint32_t>(p.rows) << 13 | static_cast<uint32_t>(p.tiles);
    uint32_t sum = value;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(0xffffffffu, sum, step);
      if (lane >= step) sum += other;
    }
    if (lane == 31) warp_sums[pass][warp] = static_cast<int>(sum);
    __syncthreads();
    const auto of_warp = static_cast<uint32_t>(lane < kWarps ? warp_sums[pass][lane] : 0);
    const uint32_t lower = __reduce_add_sync(0xffffffffu, lane < warp ? of_warp : 0) + sum - value;
    const uint32_t total = __reduce_add_sync(0xffffffffu, of_warp);
    const int row0 = before.rows + static_cast<int>(lower >> 13);
    if (e < r.locals) {
      row_of[e] = row0;
      if (writer) store_tiles(r, p, e, before.tiles + static_cast<int>(lower & 0x1fff), row0);
    }
    before.tiles += static_cast<int>(total & 0x1fff);
    before.rows += static_cast<int>(total >> 13);
  }
  return before;
}

// Where the rows of this block's token go, by two warps: top_k is at most 64.
template <bool kRoutes>
__device__ __forceinline__ void place_own(const RouteArgs& r, const RowsArgs& a, int token, bool stores,
                                          const int* counts, const int* row_of, OwnToken& own) {
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  const int top_k = r.params.top_k, k = static_cast<int>(threadIdx.x);
  const int e = k < top_k ? local_of(r, own.id[k]) : -1;
  const uint32_t here = __ballot_sync(0xffffffffu, e >= 0);
  int at = 0;
  if (warp == 1) at = __popc(__ballot_sync(0xffffffffu, lane < top_k && local_of(r, own.id[lane]) >= 0));
  if (lane == 0 && warp == (top_k > 32 ? 1 : 0)) own.num_targets = at + __popc(here);
  at += __popc(here & ((1u << lane) - 1u));
  int row = -1;
  if (e >= 0) {
    int place = counts[e] >> 16;
    if constexpr (!kRoutes)  // given ids may repeat
      for (int j = 0; j < k; ++j) place += local_of(r, own.id[j]) == e ? 1 : 0;
    row = row_of[e] + place;  // only the last tile of an expert has padding
    own.targets[at] = target_at(r, a, expert_tiles(counts[e] & 0xffff, r.max_n, r.step_n), e, row_of[e], place);
  }
  if (stores && k < top_k) store_pair(r, int64_t{token} * top_k + k, own.id[k], own.weight[k], row);
}

// kRoutes: chooses from logits, for all tokens; else the experts are given, or have been chosen.
template <bool kRoutes>
__device__ __forceinline__ void route_permute(const RouteArgs& r, const RowsArgs& a, int token) {
  extern __shared__ int words[];
  __shared__ OwnToken own;
  const int tokens = static_cast<int>(real_tokens(r)), part = static_cast<int>(blockIdx.y);
  const bool writer = blockIdx.x == 0 && part == 0, mine = token < tokens;
  if (!mine && !writer) return;
  int *counts = words, *row_of = counts + r.locals;
  prefetch_row<kThreads>(a, token, part);
  if constexpr (kRoutes) {
    count_chosen(r, token, tokens, counts, reinterpret_cast<float*>(row_of + r.locals), own);
  } else {
    count_given(r, token, tokens, part == 0, counts, own);
  }
  __syncthreads();
  const TileTotals totals = place_experts(r, writer, counts, row_of, own.warp_sums);
  __syncthreads();
  if (writer) {
    // Not the tickets: blocks of an early GEMM draw them already.
    if (threadIdx.x == 64) r.tables.header->num_tiles = totals.tiles, r.tables.header->total_rows = totals.rows;
    clear_counters(r, totals.tiles, static_cast<int>(threadIdx.x), kThreads);
  }
  if (!mine) return;
  if (threadIdx.x < 64) place_own<kRoutes>(r, a, token, part == 0, counts, row_of, own);
  __syncthreads();
  if (part == 0 && a.gather.zero_absent != nullptr)
    for (int k = 0; k < r.params.top_k; ++k)
      if (local_of(r, own.id[k]) < 0) clear_row<kThreads>(a, int64_t{token} * r.params.top_k + k);
  if (own.num_targets != 0)
    write_token<kThreads>(a, token, own.targets, own.num_targets, part, static_cast<int>(gridDim.y), own.row_max);
}

template <bool kRoutes>
__global__ void __launch_bounds__(kThreads) route_permute_kernel(const __grid_constant__ RoutePermuteArgs args) {
  extern __shared__ int words[];
  if (!args.early) ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
  // With one token most of the time went to fetching instructions. So the kernel first runs on zeros while the kernel
  // before it still runs: after that its instructions are in the instruction cache.
#pragma unroll 1
  for (int warm_up = args.warms_up ? 1 : 0; warm_up >= 0; --warm_up) {
    for (int i = threadIdx.x; i < args.route[0].locals; i += kThreads) words[i] = 0;
    __syncthreads();
    if (warm_up == 0) begin_run(args, kThreads);
    route_permute<kRoutes>(args.route[warm_up], args.rows[warm_up], warm_up != 0 ? 0 : static_cast<int>(blockIdx.x));
    __syncthreads();
  }
}

// ---- one token ----

constexpr int kOneThreads = 128;

struct Placed {
  ExpertTiles tiles;  // of the pair's expert
  int tile0, row0;    // where these begin
  int place;          // of the pair among those of its expert
  int num_tiles, num_rows;
};
// Of one token's pairs, one for each lane of a warp. e: its local expert, or -1.
__device__ __forceinline__ Placed place_pairs(const RouteArgs& r, int e, int lane) {
  int count = 0, place = 0;
  for (int j = 0; j < r.params.top_k; ++j) {
    const bool same = __shfl_sync(0xffffffffu, e, j) == e;
    count += same ? 1 : 0;
    place += same && j < lane ? 1 : 0;
  }
  Placed p{expert_tiles(e >= 0 ? count : 0, r.max_n, r.step_n), 0, 0, place, 0, 0};
  const int value = e >= 0 && place == 0 ? p.tiles.rows << 8 | p.tiles.tiles : 0;
  int lower = 0, all = 0;
  for (int j = 0; j < r.params.top_k; ++j) {
    const int other = __shfl_sync(0xffffffffu, value, j), expert = __shfl_sync(0xffffffffu, e, j);
    lower += expert < e ? other : 0;
    all += other;
  }
  p.tile0 = lower & 0xff, p.row0 = lower >> 8, p.num_tiles = all & 0xff, p.num_rows = all >> 8;
  return p;
}

// Block 0 makes the tables by one warp, the others round the row. Experts that logits choose are distinct: each has a
// tile of one row, and where rows go does not depend on the choice.
__device__ __forceinline__ void one_token(const RouteArgs& r, const RowsArgs& a, int block) {
  extern __shared__ int words[];
  __shared__ Target targets[kOneTokenPairs];
  __shared__ int num_targets;
  __shared__ uint32_t shared[kOneThreads / 32];
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  const int top_k = r.params.top_k, tokens = static_cast<int>(real_tokens(r));
  const bool chooses = r.logits != nullptr, slot = lane < top_k && tokens > 0;
  const int most_tiles = min(top_k, r.locals);
  if (block != 0) {
    const int part = block - 1, parts = static_cast<int>(gridDim.x) - 1;
    if (tokens == 0) return;
    if (warp == 0) {
      if (chooses) {
        if (lane < most_tiles) targets[lane] = target_of(a, {0, lane * r.step_n, 1, r.step_n}, 0);
        if (lane == 0) num_targets = most_tiles;
      } else {
        const int e = slot ? local_of(r, pairs_of(r).id(lane)) : -1;
        const Placed p = place_pairs(r, e, lane);
        const uint32_t here = __ballot_sync(0xffffffffu, e >= 0);
        if (e >= 0) targets[__popc(here & ((1u << lane) - 1u))] = target_at(r, a, p.tiles, e, p.row0, p.place);
        if (lane == 0) num_targets = __popc(here);
      }
    } else {
      prefetch_row<kOneThreads>(a, 0, part);
    }
    __syncthreads();
    if (num_targets != 0) write_token<kOneThreads>(a, 0, targets, num_targets, part, parts, shared);
    return;
  }
  if (warp != 0) {
    // Given ids may repeat, and more than max_n rows of an expert take several tiles.
    clear_counters(r, most_tiles + (top_k - most_tiles) / r.max_n, static_cast<int>(threadIdx.x) - 32,
                   kOneThreads - 32);
  } else {
    int32_t id = -1;
    float weight = 0.0f;
    Placed p{{1, r.step_n, r.step_n, 1}, 0, 0, 0, 0, 0};
    int e;
    if (chooses) {
      if (tokens > 0) {
        const Chosen chosen = choose(r, 0, reinterpret_cast<float*>(words), lane);
        id = chosen.id[0], weight = chosen.weight[0];
      }
      e = slot ? local_of(r, id) : -1;
      const uint32_t here = __ballot_sync(0xffffffffu, e >= 0);
      p.tile0 = __popc(here & ((1u << lane) - 1u)), p.num_tiles = __popc(here);
      p.row0 = p.tile0 * r.step_n, p.num_rows = p.num_tiles * r.step_n;
    } else {
      if (slot) id = pairs_of(r).id(lane), weight = pairs_of(r).weight(lane);
      e = slot ? local_of(r, id) : -1;
      p = place_pairs(r, e, lane);
    }
    if (slot) store_pair(r, lane, id, weight, e >= 0 ? p.row0 + p.place : -1);
    if (e >= 0 && p.place == 0) store_tiles(r, p.tiles, e, p.tile0, p.row0);
    if (lane == 0) r.tables.header->num_tiles = p.num_tiles, r.tables.header->total_rows = p.num_rows;
    words[lane] = e;
  }
  if (a.gather.zero_absent == nullptr) return;
  __syncthreads();
  for (int k = 0; k < top_k && tokens > 0; ++k)
    if (words[k] < 0) clear_row<kOneThreads>(a, k);
}

__global__ void __launch_bounds__(kOneThreads) one_token_kernel(const __grid_constant__ RoutePermuteArgs args) {
  if (!args.early) ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
#pragma unroll 1
  for (int warm_up = args.warms_up ? 1 : 0; warm_up >= 0; --warm_up) {
    if (warm_up == 0) begin_run(args, kOneThreads);
    one_token(args.route[warm_up], args.rows[warm_up], static_cast<int>(blockIdx.x));
    __syncthreads();
  }
}

RoutePermuteArgs with_warm_up(const RouteArgs& route, const RowsArgs& rows, bool early, const void* warm_up,
                              bool warms_up) {
  RoutePermuteArgs args{{route, warm_up_route(route, warm_up)}, {rows, rows}, warms_up, early};
  RowsArgs& a = args.rows[1];
  auto* written = reinterpret_cast<uint8_t*>(args.route[1].tables.header);
  a.source.columns = 0;
  a.out.static_scale = static_cast<const InputScale*>(warm_up);
  a.out.data = written;
  a.out.k_blocks = a.out.scale_runs = 1;
  if (a.out.row_scale != nullptr) a.out.row_scale = reinterpret_cast<float*>(written);
  if (a.out.block_scale != nullptr) a.out.block_scale = reinterpret_cast<float*>(written);
  a.gather.zero_absent = nullptr;
  return args;
}

// Blocks that each take 8 columns of a thread.
int row_parts(const RowsArgs& rows, int threads) {
  return ceil_div(rows.out.k_blocks * (rows.out.e4m3 ? 128 : 64), 8 * threads);
}

template <bool kRoutes>
void launch_several(const RoutePermuteArgs& args, Stream stream, bool pdl) {
  const RouteArgs& r = args.route[0];
  const int64_t room = std::max<int64_t>(tuning::kPermuteBlocks / r.tokens, 1);
  const auto parts = static_cast<unsigned>(std::min<int64_t>(row_parts(args.rows[0], kThreads), room));
  launch(route_permute_kernel<kRoutes>, dim3(static_cast<unsigned>(r.tokens), parts), kThreads,
         shared_bytes(r.params.experts, r.locals, kRoutes), stream, pdl, args);
}

}  // namespace

void allow_route_permute(int experts, int locals, bool early) {
  // The GEMM must begin beside this kernel, also where the kernel ahead left the small split of shared memory
  // (docs/kernels/sm90_route_permute.md).
  if (early) prefer_shared_memory(route_permute_kernel<false>);
  if (shared_bytes(experts, locals, true) > kFreeSharedMemory)
    allow_shared_memory(route_permute_kernel<true>, shared_bytes(kMaxExperts, kMaxPermuteLocals, true));
}

bool route_permute_fits(const RouteArgs& r) {
  return r.tokens * r.params.top_k <= tuning::kPermutePairs && r.locals <= kMaxPermuteLocals;
}

void launch_route_permute(const RouteArgs& route, const RowsArgs& rows, bool early, const WarmUp& warm_up,
                          Stream stream, bool pdl) {
  const bool chooses = route.logits != nullptr, chosen_before = chooses && route.tokens > kMaxRoutedTokens;
  const bool warms_up = pdl && (warm_up.of_first || chosen_before);
  const RoutePermuteArgs args = with_warm_up(route, rows, early, warm_up.memory, warms_up);
  if (route.tokens == 1 && route.params.top_k <= kOneTokenPairs) {
    const int smem = 4 * std::max(chooses ? route.params.experts : 0, kOneTokenPairs);
    launch(one_token_kernel, dim3(static_cast<unsigned>(1 + row_parts(rows, kOneThreads))), kOneThreads, smem, stream,
           pdl, args);
    return;
  }
  if (chooses && !chosen_before) return launch_several<true>(args, stream, pdl);
  if (chosen_before) launch_choose(route, warm_up, stream, pdl);
  launch_several<false>(args, stream, pdl);
}

}  // namespace sluice::sm90
