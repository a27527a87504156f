// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/route/choose.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kRouteThreads = 256, kRouteWarps = kRouteThreads / 32;

// Chooses experts, then numbers the block's pairs within their experts, in the order of pairs: the same on every run.
__global__ void __launch_bounds__(kRouteThreads) route_kernel(const __grid_constant__ RouteArgs a) {
  extern __shared__ float scores[];              // [warps][experts]
  __shared__ int32_t local[kPairsPerBlock];      // local expert of each pair
  int* counts = reinterpret_cast<int*>(scores);  // afterwards: [8][locals]
  const int warp = threadIdx.x >> 5, lane = threadIdx.x & 31;
  const int top_k = a.params.top_k, per_block = tokens_per_block(top_k);
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t tokens = real_tokens(a), first = static_cast<int64_t>(blockIdx.x) * per_block;
  const int here = static_cast<int>(max(int64_t{0}, min(static_cast<int64_t>(per_block), tokens - first)));

  if (a.logits != nullptr) {
    for (int t = warp; t < here; t += kRouteWarps) {
      const int64_t token = first + t;
      routing::Methods::visit(a.method, [&]<class M> {
        choose<M>(a, token, scores + warp * a.params.experts, lane, a.tables.ids + token * top_k,
                  a.tables.weights + token * top_k);
      });
    }
    __syncthreads();
  } else {
    for (int i = threadIdx.x; i < here * top_k; i += kRouteThreads) {
      const int64_t pair = first * top_k + i;
      routing::Values w{a.given_weights, a.given_bf16};
      const int32_t given = a.given_ids[pair];
      a.tables.ids[pair] = w ? given : routing::packed_id(given);
      a.tables.weights[pair] = w ? w[pair] : routing::packed_weight(given);
    }
  }
  __syncthreads();

  const int pairs = here * top_k;
  for (int i = threadIdx.x; i < kPairsPerBlock; i += kRouteThreads) {
    int32_t e = -1;
    if (i < pairs) {
      const int64_t pair = first * top_k + i;
      const int32_t id = a.tables.ids[pair];
      if (a.chosen_ids != nullptr) a.chosen_ids[pair] = id;
      if (a.chosen_weights != nullptr) a.chosen_weights[pair] = a.tables.weights[pair];
      e = id >= 0 && id < a.params.experts ? id - a.local_offset : -1;
      if (e < 0 || e >= a.locals) e = -1;
    }
    local[i] = e;
  }
  for (int i = threadIdx.x; i < kRouteWarps * a.locals; i += kRouteThreads) counts[i] = 0;
  __syncthreads();
  // One warp numbers 32 pairs at once; the 8 groups are then put in order.
  const int e = local[warp * 32 + lane];
  const uint32_t same = __match_any_sync(0xffffffffu, e);
  const int before = __popc(same & ((1u << lane) - 1u));
  if (e >= 0 && before == 0) counts[warp * a.locals + e] = __popc(same);
  __syncthreads();
  for (int i = threadIdx.x; i < a.locals; i += kRouteThreads) {
    int sum = 0;
    for (int w = 0; w < kRouteWarps; ++w) {
      const int c = counts[w * a.locals + i];
      counts[w * a.locals + i] = sum;
      sum += c;
    }
    a.tables.counts[static_cast<int64_t>(blockIdx.x) * a.locals + i] = sum;
  }
  __syncthreads();
  if (warp * 32 + lane < pairs)
    a.tables.rank[first * top_k + warp * 32 + lane] = e < 0 ? -1 : before + counts[warp * a.locals + e];
}

constexpr int kTableThreads = 1024;

// Where each block's pairs of each expert begin; tiles; cleared counters. Few experts leave threads over: they share
// an expert's blocks (one thread an expert took 27 us at 256 blocks of 128 experts).
__global__ void __launch_bounds__(kTableThreads) tables_kernel(const __grid_constant__ RouteArgs a, int blocks) {
  __shared__ int warp_sums[32];
  __shared__ int shares[kTableThreads];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const RouteTables& t = a.tables;
  int tiles_before = 0, rows_before = 0;
  const int width = a.locals < kTableThreads ? round_up(a.locals, 32) : kTableThreads, parts = kTableThreads / width;
  const int part = static_cast<int>(threadIdx.x) / width, lane = static_cast<int>(threadIdx.x) % width;
  const int begin = blocks * part / parts, end = blocks * (part + 1) / parts;
  for (int base = 0; base < a.locals; base += width) {
    // Sixteen loads in flight. The first walk counts, the second writes where each block begins.
    constexpr int kBatch = 16;
    const bool mine = part < parts && base + lane < a.locals;
    int32_t* counts = t.counts + base + lane;
    const auto walk = [&](int count, bool write) {
      for (int first = begin; first < end; first += kBatch) {
        int here[kBatch];
#pragma unroll
        for (int i = 0; i < kBatch; ++i)
          here[i] = first + i < end ? counts[static_cast<int64_t>(first + i) * a.locals] : 0;
#pragma unroll
        for (int i = 0; i < kBatch; ++i) {
          if (write && first + i < end) counts[static_cast<int64_t>(first + i) * a.locals] = count;
          count += here[i];
        }
      }
      return count;
    };
    __syncthreads();
    shares[threadIdx.x] = mine ? walk(0, false) : 0;
    __syncthreads();
    int before = 0, count = 0;
    for (int i = 0; i < parts; ++i) {
      if (i == part) before = count;
      count += shares[i * width + lane];
    }
    if (mine) walk(before, true);
    const int e = base + static_cast<int>(threadIdx.x);
    if (part != 0) count = 0;  // one thread an expert from here
    const Passes p = passes_of(count, a.max_n, a.step_n);
    int tiles_total, rows_total;
    const int tile0 = tiles_before + block_exclusive_sum<kTableThreads>(p.tiles, warp_sums, &tiles_total);
    const int row0 = rows_before + block_exclusive_sum<kTableThreads>(p.rows, warp_sums, &rows_total);
    if (part == 0 && e < a.locals) {
      t.expert_tile[e] = tile0;
      t.expert_per[e] = p.per;
      for (int i = 0; i < p.tiles; ++i) {
        const int n = i + 1 < p.tiles ? p.per : p.last;
        t.tiles[tile0 + i] = {e, row0 + i * p.per, n, stepped(n, a.step_n)};
      }
    }
    tiles_before += tiles_total;
    rows_before += rows_total;
  }
  if (threadIdx.x == 0) *t.header = {tiles_before, rows_before, {0, 0}, 0};
  for (int i = threadIdx.x; i < tiles_before; i += kTableThreads) t.ready[i] = 0;
  for (int g = 0; g < 2; ++g)
    if (t.arrivals[g] != nullptr)
      for (int i = threadIdx.x; i < tiles_before * a.row_units[g]; i += kTableThreads) t.arrivals[g][i] = 0;
}

}  // namespace

void launch_route(const RouteArgs& args, Stream stream, bool pdl) {
  const int64_t blocks = route_blocks(args.tokens, args.params.top_k);
  const int smem = kRouteWarps * 4 * (args.params.experts > args.locals ? args.params.experts : args.locals);
  launch(route_kernel, static_cast<int>(blocks), kRouteThreads, smem, stream, pdl, args);
  launch(tables_kernel, 1, kTableThreads, 0, stream, pdl, args, static_cast<int>(blocks));
}

}  // namespace sluice::sm90
