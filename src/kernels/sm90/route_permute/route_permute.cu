// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/route/choose.cuh"
#include "kernels/sm90/route_permute/route_permute.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxPairs = 512;  // 1024: 128 tokens of eight experts 1 to 5 % slower
constexpr int kMaxSharedMemory = 160 * 1024;
constexpr int kMaxRoutedTokens = 16;  // routed in every block: two tokens per warp

struct RoutePermuteArgs {
  RouteArgs route[2];  // [1]: the warm-up, on one token of zeros; writes nothing
  RowsArgs rows[2];
  bool warms_up;
  bool early;  // the next kernel reads the given ids without waiting for this one
};

// Shared memory, in words: per pair local expert, place, weight; per expert count and first row; then
// [groups of 32 pairs][locals] counts, whose memory also holds the scores of routing.
HD int shared_words(int pairs, int experts, int locals, bool logits) {
  const int groups = ceil_div(pairs, 32);
  const int counts = groups * locals, scores = logits ? kWarps * experts : 0;
  return 3 * pairs + 2 * locals + (counts > scores ? counts : scores);
}

__device__ __forceinline__ void route_permute(const RouteArgs& r, const RowsArgs& a, bool warm_up) {
  extern __shared__ int words[];
  __shared__ int warp_sums[32];
  __shared__ Target targets[kMaxTopK];
  __shared__ uint32_t shared[kWarps];
  const int top_k = r.params.top_k, locals = r.locals, max_pairs = static_cast<int>(r.tokens) * top_k;
  int* expert_of = words;
  int* place_of = expert_of + max_pairs;
  float* weight_of = reinterpret_cast<float*>(place_of + max_pairs);
  int* count_of = reinterpret_cast<int*>(weight_of + max_pairs);
  int* row_of = count_of + locals;
  int* counts = row_of + locals;
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const bool writer = !warm_up && blockIdx.x == 0 && blockIdx.y == 0;
  // The row and its scale are read last and depend on nothing here, so they are prefetched to L1 now.
  {
    const int64_t column = (blockIdx.y * kThreads + threadIdx.x) * 8, bytes = a.source.tokens_f32 ? 4 : 2;
    if (column < a.source.columns)
      ptx::prefetch_l1(static_cast<const uint8_t*>(a.source.tokens) +
                       (blockIdx.x * int64_t{a.source.columns} + column) * bytes);
    if (threadIdx.x == 0) ptx::prefetch_l1(a.out.static_scale);
  }
  const int tokens = static_cast<int>(real_tokens(r)), pairs = tokens * top_k;

  if (r.logits != nullptr) {
    float* scores = reinterpret_cast<float*>(counts) + warp * r.params.experts;
    for (int t = warp; t < tokens; t += kWarps)
      routing::Methods::visit(
          r.method, [&]<class M> { choose<M>(r, t, scores, lane, expert_of + t * top_k, weight_of + t * top_k); });
  } else {
    const TopkPairs given = pairs_of(r);
    for (int i = threadIdx.x; i < pairs; i += kThreads) {
      expert_of[i] = given.id(i);
      weight_of[i] = given.weight(i);
    }
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int32_t id = expert_of[i];
    const bool exists = id >= 0 && id < r.params.experts;
    const int e = exists ? id - r.local_offset : -1;
    expert_of[i] = e >= 0 && e < locals ? e : -1;
    if (writer) {
      r.tables.weights[i] = weight_of[i];
      if (r.chosen_ids != nullptr) r.chosen_ids[i] = exists ? id : -1;
      if (r.chosen_weights != nullptr) r.chosen_weights[i] = weight_of[i];
    }
  }
  const int groups = ceil_div(pairs, 32);
  for (int i = threadIdx.x; i < groups * locals; i += kThreads) counts[i] = 0;
  __syncthreads();
  for (int g = warp; g < groups; g += kWarps) {
    const int i = g * 32 + lane;
    const int e = i < pairs ? expert_of[i] : -1;
    const uint32_t same = same_value(e >= 0 ? e : locals, expert_bits(locals));
    const int before = __popc(same & ((1u << lane) - 1u));
    if (e >= 0 && before == 0) counts[g * locals + e] = __popc(same);
    if (i < pairs) place_of[i] = before;
  }
  __syncthreads();
  int tiles_before = 0, rows_before = 0;
  for (int base = 0; base < locals; base += kThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int count = 0;
    if (e < locals)
      for (int g = 0; g < groups; ++g) {
        const int here = counts[g * locals + e];
        counts[g * locals + e] = count;
        count += here;
      }
    const ExpertTiles p = expert_tiles(count, r.max_n, r.step_n);
    // Tiles and rows in one word: kMaxPairs pairs have at most 1024 tiles and 1024 * 16 rows.
    static_assert(kMaxPairs <= 1024);
    int total;
    const int before = block_exclusive_sum<kThreads>(p.rows << 11 | p.tiles, warp_sums, &total);
    const int tile0 = tiles_before + (before & 2047), row0 = rows_before + (before >> 11);
    if (e < locals) {
      count_of[e] = count;
      row_of[e] = row0;
      if (writer)
        for (int i = 0; i < p.tiles; ++i) {
          const int n = i + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
          r.tables.tiles[tile0 + i] = {e, row0 + i * p.rows_per_tile, n, stepped(n, r.step_n)};
        }
    }
    tiles_before += total & 2047;
    rows_before += total >> 11;
  }
  __syncthreads();
  for (int i = threadIdx.x; i < pairs; i += kThreads) {
    const int e = expert_of[i];
    const int place = e < 0 ? -1 : place_of[i] + counts[i / 32 * locals + e];
    place_of[i] = place;
    if (writer) {
      const int row = e < 0 ? -1 : row_of[e] + place;  // only the last tile of an expert has padding
      r.tables.pair_row[i] = row;
      if (row >= 0) r.tables.row_pair[row] = i;
    }
  }
  if (writer) {
    const RouteTables& t = r.tables;
    // Not the tickets: blocks of an early GEMM draw them already.
    if (threadIdx.x == 0) t.header->num_tiles = tiles_before, t.header->total_rows = rows_before;
    for (int i = threadIdx.x; i < tiles_before; i += kThreads) t.ready[i] = 0;
    for (int g = 0; g < 2; ++g)
      if (t.arrivals[g] != nullptr)
        for (int i = threadIdx.x; i < tiles_before * r.m_groups[g]; i += kThreads) t.arrivals[g][i] = 0;
  }
  __syncthreads();

  for (int token = warm_up ? 0 : blockIdx.x; token < tokens; token += gridDim.x) {
    __syncthreads();
    int mine = -1;
    if (static_cast<int>(threadIdx.x) < top_k) mine = place_of[token * top_k + threadIdx.x];
    // Targets in the order of slots; top_k is at most 64: two warps.
    const uint32_t ballot = __ballot_sync(0xffffffffu, mine >= 0);
    if (lane == 0 && warp < 2) shared[warp] = ballot;
    __syncthreads();
    const int found = __popc(shared[0]) + (top_k > 32 ? __popc(shared[1]) : 0);
    if (mine >= 0) {
      const int e = expert_of[token * top_k + threadIdx.x];
      const ExpertTiles p = expert_tiles(count_of[e], r.max_n, r.step_n);
      const int index = p.tiles == 1 ? 0 : mine / p.rows_per_tile, n = mine - index * p.rows_per_tile;
      const int row_base = row_of[e] + index * p.rows_per_tile;
      const int count = index + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
      const RowTile tile{e, row_base, count, stepped(count, r.step_n)};
      const int at = __popc(ballot & ((1u << lane) - 1u)) + (warp == 1 ? __popc(shared[0]) : 0);
      targets[at] = target_of(a, tile, n);
    }
    __syncthreads();
    if (blockIdx.y == 0) {
      if (a.gather.zero_absent != nullptr)
        for (int k = 0; k < top_k; ++k)
          if (expert_of[token * top_k + k] < 0) clear_row<kThreads>(a, static_cast<int64_t>(token) * top_k + k);
    }
    if (found != 0)
      write_token<kThreads>(a, token, targets, warm_up ? 0 : found, static_cast<int>(blockIdx.y),
                            static_cast<int>(gridDim.y), shared);
  }
}

__global__ void __launch_bounds__(kThreads) route_permute_kernel(const __grid_constant__ RoutePermuteArgs args) {
  if (!args.early) ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
  // With one token most of the time went to fetching instructions. So the kernel first runs on zeros while the kernel
  // before it still runs: after that its instructions are in the instruction cache.
#pragma unroll 1
  for (int warm_up = args.warms_up ? 1 : 0; warm_up >= 0; --warm_up) {
    if (warm_up == 0) {
      ptx::griddepcontrol_wait();
      const bool first = blockIdx.x == 0 && blockIdx.y == 0;
      // By a warp that has no ids to read.
      if (first && threadIdx.x == kThreads - 32) {
        Header& header = *args.route[0].tables.header;
        header.ticket[0] = header.ticket[1] = 0;
        // An early GEMM draws tickets as soon as it starts, which it cannot before this block has launched it.
        if (args.early) __threadfence();
      }
      // What came before this kernel is complete. A block's first launch counts.
      if (args.early && (!first || threadIdx.x == kThreads - 32)) ptx::griddepcontrol_launch_dependents();
    }
    route_permute(args.route[warm_up], args.rows[warm_up], warm_up != 0);
    __syncthreads();
  }
}

}  // namespace

void allow_route_permute(int experts, int locals) {
  if (4 * shared_words(kMaxPairs, experts, locals, true) > kFreeSharedMemory)
    allow_shared_memory(route_permute_kernel, kMaxSharedMemory);
}

bool route_permute_fits(const RouteArgs& r) {
  const int64_t pairs = r.tokens * r.params.top_k;
  return pairs <= kMaxPairs && (r.logits == nullptr || r.tokens <= kMaxRoutedTokens) && r.locals <= 1024 &&
         shared_words(static_cast<int>(pairs), r.params.experts, r.locals, r.logits != nullptr) * 4 <= kMaxSharedMemory;
}

void launch_route_permute(const RouteArgs& route, const RowsArgs& rows, bool early, const void* warm_up, Stream stream,
                          bool pdl) {
  const int pairs = static_cast<int>(route.tokens) * route.params.top_k;
  const int smem = 4 * shared_words(pairs, route.params.experts, route.locals, route.logits != nullptr);
  const int columns = rows.out.k_blocks * (rows.out.e4m3 ? 128 : 64);
  const int parts = route.tokens <= tuning::kSharedRowTokens ? ceil_div(columns, 8 * kThreads) : 1;
  RoutePermuteArgs args{{route, route}, {rows, rows}, pdl, early};
  RouteArgs& r = args.route[1];
  const void* zeros = static_cast<const uint8_t*>(warm_up) + sizeof(InputScale);
  r.tokens = 1;
  r.num_tokens = nullptr;
  r.local_offset = 0;
  if (r.logits != nullptr) r.logits = zeros;
  if (r.bias != nullptr) r.bias = zeros;
  r.given_ids = static_cast<const int32_t*>(zeros);
  if (r.given_weights != nullptr) r.given_weights = zeros;
  args.rows[1].source.columns = 0;
  args.rows[1].out.static_scale = static_cast<const InputScale*>(warm_up);
  args.rows[1].gather.zero_absent = nullptr;
  launch(route_permute_kernel, dim3(static_cast<unsigned>(route.tokens), static_cast<unsigned>(parts)), kThreads, smem,
         stream, pdl, args);
}

}  // namespace sluice::sm90
