// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/route/choose.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kRouteThreads = 128, kRouteWarps = kRouteThreads / 32;

struct ChooseArgs {
  RouteArgs route[2];  // [1]: the warm-up, on one token of zeros; stores nothing
  bool warms_up;
};

// One warp chooses the experts of a token. It first runs on zeros while the kernel before it runs, so that it then
// finds its instructions in the cache.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const __grid_constant__ ChooseArgs args) {
  extern __shared__ float scores[];  // [warps][experts]
  const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
  ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
#pragma unroll 1
  for (int warm_up = args.warms_up ? 1 : 0; warm_up >= 0; --warm_up) {
    if (warm_up == 0) ptx::griddepcontrol_wait();
    const RouteArgs& a = args.route[warm_up];
    const int top_k = a.params.top_k;
    const int64_t tokens = real_tokens(a), first = warm_up != 0 ? 0 : int64_t{blockIdx.x} * kRouteWarps + warp;
    for (int64_t t = first; t < tokens; t += int64_t{gridDim.x} * kRouteWarps) {
      const Chosen chosen = choose(a, t, scores + warp * a.params.experts, lane);
#pragma unroll
      for (int i = 0; i < kChosenEach; ++i)
        if (lane + 32 * i < top_k && warm_up == 0) {
          a.tables.ids[t * top_k + lane + 32 * i] = chosen.id[i];
          a.tables.weights[t * top_k + lane + 32 * i] = chosen.weight[i];
        }
    }
  }
}

// Numbers the pairs of this warp within their experts, in the order of pairs, so that the numbers are the same on every
// run. counts [locals]: of this warp, cleared.
__device__ inline void number_pairs(const RouteArgs& a, int64_t begin, int64_t end, int* counts) {
  constexpr int kBatch = 4;  // reads in flight
  const int lane = threadIdx.x & 31;
  const int bits = expert_bits(a.locals);
  const TopkPairs pairs = pairs_of(a);
  for (int64_t first = begin; first < end; first += 32 * kBatch) {
    int expert[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t pair = first + 32 * i + lane;
      const int32_t id = pair < end ? pairs.id(pair) : -1;
      const int e = id >= 0 && id < a.params.experts ? id - a.local_offset : -1;
      expert[i] = e >= 0 && e < a.locals ? e : -1;
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int64_t pair = first + 32 * i + lane;
      if (first + 32 * i >= end) break;
      const int e = expert[i];
      const uint32_t same = same_value(e >= 0 ? e : a.locals, bits);
      const int before = __popc(same & ((1u << lane) - 1u)), seen = e >= 0 ? counts[e] : 0;
      __syncwarp();
      if (e >= 0 && before == 0) counts[e] = seen + __popc(same);
      __syncwarp();
      if (pair < end) a.tables.rank[pair] = e >= 0 ? seen + before : -1;
    }
  }
}

constexpr int kTableThreads = 1024;

// One cluster. It numbers pairs and finds where the pairs of each share begin within an expert. Its first block makes
// the tiles and clears the counters.
__global__ void __launch_bounds__(kTableThreads) tables_kernel(const __grid_constant__ RouteArgs a) {
  extern __shared__ int counts[];  // [warps][locals], then of each block [locals]
  __shared__ int warp_sums[32];
  ptx::griddepcontrol_launch_dependents();
  const RouteTables& t = a.tables;
  const int warps = share_warps(a.locals), warp = static_cast<int>(threadIdx.x) >> 5;
  const int rank = static_cast<int>(ptx::cluster_ctarank());
  int* totals = counts + warps * a.locals;
  for (int i = threadIdx.x; i < warps * a.locals; i += kTableThreads) counts[i] = 0;
  ptx::cluster_sync();  // all blocks run, so that their memory may be written
  ptx::griddepcontrol_wait();
  if (warp < warps) {
    const int64_t tokens = real_tokens(a), each = tokens_per_share(a.tokens, a.locals), top_k = a.params.top_k;
    const int64_t share = rank * warps + warp;
    number_pairs(a, min(share * each, tokens) * top_k, min((share + 1) * each, tokens) * top_k,
                 counts + warp * a.locals);
  }
  __syncthreads();
  for (int e = threadIdx.x; e < a.locals; e += kTableThreads) {
    int count = 0;
#pragma unroll 8
    for (int i = 0; i < warps; ++i) {
      const int here = counts[i * a.locals + e];
      counts[i * a.locals + e] = count;
      count += here;
    }
    for (uint32_t block = 0; block < kShareBlocks; ++block) ptx::st_cluster(totals + rank * a.locals + e, block, count);
  }
  ptx::cluster_sync();
  for (int e = threadIdx.x; e < a.locals; e += kTableThreads) {
    int before = 0;
    for (int block = 0; block < rank; ++block) before += totals[block * a.locals + e];
    for (int i = 0; i < warps; ++i) t.counts[(rank * warps + i) * a.locals + e] = before + counts[i * a.locals + e];
  }
  if (rank != 0) return;
  int tiles_before = 0, rows_before = 0;
  for (int base = 0; base < a.locals; base += kTableThreads) {
    const int e = base + static_cast<int>(threadIdx.x);
    int count = 0;
    if (e < a.locals)
      for (int block = 0; block < kShareBlocks; ++block) count += totals[block * a.locals + e];
    const ExpertTiles p = expert_tiles(count, a.max_n, a.step_n);
    int tiles_total, rows_total;
    const int tile0 = tiles_before + block_exclusive_sum<kTableThreads>(p.tiles, warp_sums, &tiles_total);
    const int row0 = rows_before + block_exclusive_sum<kTableThreads>(p.rows, warp_sums, &rows_total);
    if (e < a.locals) {
      t.expert_tile[e] = tile0;
      t.expert_tile_rows[e] = p.rows_per_tile;
      for (int i = 0; i < p.tiles; ++i) {
        const int n = i + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
        t.tiles[tile0 + i] = {e, row0 + i * p.rows_per_tile, n, stepped(n, a.step_n)};
      }
    }
    tiles_before += tiles_total;
    rows_before += rows_total;
  }
  if (threadIdx.x == 0) *t.header = {tiles_before, rows_before, {0, 0}};
  for (int i = threadIdx.x; i < tiles_before; i += kTableThreads) t.ready[i] = 0;
  for (int g = 0; g < 2; ++g)
    if (t.arrivals[g] != nullptr)
      for (int i = threadIdx.x; i < tiles_before * a.m_groups[g]; i += kTableThreads) t.arrivals[g][i] = 0;
}

constexpr int scores_bytes(int experts) { return kRouteWarps * 4 * experts; }
constexpr int counts_bytes(int locals) { return 4 * (share_warps(locals) + kShareBlocks) * locals; }

}  // namespace

void allow_route(int experts, int locals) {
  if (scores_bytes(experts) > kFreeSharedMemory) allow_shared_memory(route_kernel, scores_bytes(kMaxExperts));
  // For up to 1024 experts every warp of a block counts, for more half as many.
  constexpr int most = std::max(counts_bytes(1024), counts_bytes(kMaxExperts));
  if (counts_bytes(locals) > kFreeSharedMemory) allow_shared_memory(tables_kernel, most);
}

RouteArgs warm_up_route(const RouteArgs& args, const void* warm_up) {
  const uint8_t* zeros = static_cast<const uint8_t*>(warm_up) + sizeof(InputScale);
  auto* written = const_cast<uint8_t*>(zeros) + warm_up_zeros(args.params.experts);
  const auto ints = reinterpret_cast<int32_t*>(written);
  RouteArgs r = args;
  r.tokens = 1;
  r.num_tokens = nullptr;
  r.params.top_k = 1;
  r.local_offset = 0;
  if (r.logits != nullptr) r.logits = zeros;
  if (r.bias != nullptr) r.bias = zeros;
  r.given_ids = reinterpret_cast<const int32_t*>(zeros);
  if (r.given_weights != nullptr) r.given_weights = zeros;
  r.m_groups[0] = r.m_groups[1] = 1;
  r.tables = {const_cast<int32_t*>(r.given_ids),  // read as chosen ids, not written
              reinterpret_cast<float*>(ints),     ints, ints, ints,         ints, reinterpret_cast<RowTile*>(written),
              reinterpret_cast<Header*>(written), ints, ints, {ints, ints}, ints};
  if (r.chosen_ids != nullptr) r.chosen_ids = ints;
  if (r.chosen_weights != nullptr) r.chosen_weights = reinterpret_cast<float*>(ints);
  return r;
}

void launch_choose(const RouteArgs& args, const WarmUp& warm_up, Stream stream, bool pdl) {
  // From 32,768 tokens on a warp takes several, one after another. 62 blocks for each of 132 multiprocessors keep the
  // last round a small part of the time; no measurement of other numbers is kept.
  constexpr int64_t kMostBlocks = 8192;
  const int64_t blocks = std::min(ceil_div<int64_t>(args.tokens, kRouteWarps), kMostBlocks);
  launch(route_kernel, static_cast<unsigned>(blocks), kRouteThreads, scores_bytes(args.params.experts), stream, pdl,
         ChooseArgs{{args, warm_up_route(args, warm_up.memory)}, pdl && warm_up.of_first});
}

void launch_tables(const RouteArgs& args, Stream stream, bool pdl) {
  launch_clusters(tables_kernel, kShareBlocks, kShareBlocks, kTableThreads, counts_bytes(args.locals), stream, pdl,
                  args);
}

}  // namespace sluice::sm90
