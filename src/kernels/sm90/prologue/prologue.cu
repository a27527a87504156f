// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/prologue/prologue.h"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/route/choose.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256, kWarps = kThreads / 32;
constexpr int kMaxPairs = 512;        // 1024: 128 tokens of eight experts 1 to 5 % slower
constexpr int kMaxRoutedTokens = 16;  // routed in every block: two tokens a warp

struct PrologueArgs {
  RouteArgs route[2];  // 1: a rehearsal on one token of zeros, which writes nothing
  RowsArgs rows[2];
  bool rehearses;
  bool early;  // the next kernel reads the given ids without waiting for this one
};

// Shared memory, in words: per pair local expert, place, weight; per expert count and first row; then
// [groups of 32 pairs][locals] counts, whose memory also holds the scores of routing.
HD int shared_words(int pairs, int experts, int locals, bool logits) {
  const int groups = ceil_div(pairs, 32);
  const int counts = groups * locals, scores = logits ? kWarps * experts : 0;
  return 3 * pairs + 2 * locals + (counts > scores ? counts : scores);
}

__device__ __forceinline__ void prologue(const RouteArgs& r, const RowsArgs& a, bool rehearsal) {
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
  const bool writer = !rehearsal && blockIdx.x == 0 && blockIdx.y == 0;
  // The row and its scale are read last, and wait for nothing: to the first cache now.
  {
    const int64_t column = (blockIdx.y * kThreads + threadIdx.x) * 8, bytes = a.tokens_f32 ? 4 : 2;
    if (column < a.columns)
      ptx::prefetch_l1(static_cast<const uint8_t*>(a.tokens) + (blockIdx.x * int64_t{a.columns} + column) * bytes);
    if (threadIdx.x == 0) ptx::prefetch_l1(a.static_scale);
  }
  const int tokens = static_cast<int>(real_tokens(r)), pairs = tokens * top_k;

  if (r.logits != nullptr) {
    float* scores = reinterpret_cast<float*>(counts) + warp * r.params.experts;
    for (int t = warp; t < tokens; t += kWarps)
      routing::Methods::visit(
          r.method, [&]<class M> { choose<M>(r, t, scores, lane, expert_of + t * top_k, weight_of + t * top_k); });
  } else {
    const Pairs given = pairs_of(r);
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
    const Passes p = passes_of(count, r.max_n, r.step_n);
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
          const int n = i + 1 < p.tiles ? p.per : p.last;
          r.tables.tiles[tile0 + i] = {e, row0 + i * p.per, n, stepped(n, r.step_n)};
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
      const int row = e < 0 ? -1 : row_of[e] + place;  // passes follow each other without gaps but for the last
      r.tables.pair_row[i] = row;
      if (row >= 0) r.tables.row_pair[row] = i;
    }
  }
  if (writer) {
    const RouteTables& t = r.tables;
    if (threadIdx.x == 0) *t.header = {tiles_before, rows_before, {0, 0}, 0};
    for (int i = threadIdx.x; i < tiles_before; i += kThreads) t.ready[i] = 0;
    for (int g = 0; g < 2; ++g)
      if (t.arrivals[g] != nullptr)
        for (int i = threadIdx.x; i < tiles_before * r.row_units[g]; i += kThreads) t.arrivals[g][i] = 0;
  }
  __syncthreads();

  for (int token = rehearsal ? 0 : blockIdx.x; token < tokens; token += gridDim.x) {
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
      const Passes p = passes_of(count_of[e], r.max_n, r.step_n);
      const int pass = p.tiles == 1 ? 0 : mine / p.per, n = mine - pass * p.per;
      const int row_base = row_of[e] + pass * p.per;
      const int count = pass + 1 < p.tiles ? p.per : p.last;
      const Tile tile{e, row_base, count, stepped(count, r.step_n)};
      const int at = __popc(ballot & ((1u << lane) - 1u)) + (warp == 1 ? __popc(shared[0]) : 0);
      targets[at] = target_of(a, tile, n);
    }
    __syncthreads();
    if (blockIdx.y == 0) {
      if (a.zero_absent != nullptr)
        for (int k = 0; k < top_k; ++k)
          if (expert_of[token * top_k + k] < 0) clear_row<kThreads>(a, static_cast<int64_t>(token) * top_k + k);
    }
    if (found != 0)
      write_token<kThreads>(a, token, targets, rehearsal ? 0 : found, static_cast<int>(blockIdx.y),
                            static_cast<int>(gridDim.y), shared);
  }
}

__global__ void __launch_bounds__(kThreads) prologue_kernel(const __grid_constant__ PrologueArgs args) {
  if (!args.early) ptx::griddepcontrol_launch_dependents();
  touch_parameters(args);
  // For one token most of the time went to fetching instructions. They are fetched while the kernel before this runs.
#pragma unroll 1
  for (int rehearsal = args.rehearses ? 1 : 0; rehearsal >= 0; --rehearsal) {
    if (rehearsal == 0) {
      ptx::griddepcontrol_wait();
      if (args.early) ptx::griddepcontrol_launch_dependents();  // what came before this kernel is complete
    }
    prologue(args.route[rehearsal], args.rows[rehearsal], rehearsal != 0);
    __syncthreads();
  }
}

}  // namespace

bool prologue_fits(const RouteArgs& r) {
  const int64_t pairs = r.tokens * r.params.top_k;
  return pairs <= kMaxPairs && (r.logits == nullptr || r.tokens <= kMaxRoutedTokens) && r.locals <= 1024 &&
         shared_words(static_cast<int>(pairs), r.params.experts, r.locals, r.logits != nullptr) * 4 <= 160 * 1024;
}

void launch_prologue(const RouteArgs& route, const RowsArgs& rows, bool early, const void* rehearsal, Stream stream,
                     bool pdl) {
  const int pairs = static_cast<int>(route.tokens) * route.params.top_k;
  const int smem = 4 * shared_words(pairs, route.params.experts, route.locals, route.logits != nullptr);
  // Few tokens: several blocks share a row, so that its loads and stores are one step deep.
  const int columns = rows.out_slabs * (rows.e4m3 ? 128 : 64);
  const int parts = route.tokens <= 32 ? ceil_div(columns, 8 * kThreads) : 1;
  PrologueArgs args{{route, route}, {rows, rows}, pdl, early};
  RouteArgs& r = args.route[1];
  const void* zeros = static_cast<const uint8_t*>(rehearsal) + sizeof(InputScale);
  r.tokens = 1;
  r.num_tokens = nullptr;
  r.local_offset = 0;
  if (r.logits != nullptr) r.logits = zeros;
  if (r.bias != nullptr) r.bias = zeros;
  r.given_ids = static_cast<const int32_t*>(zeros);
  if (r.given_weights != nullptr) r.given_weights = zeros;
  args.rows[1].columns = 0;
  args.rows[1].static_scale = static_cast<const InputScale*>(rehearsal);
  args.rows[1].zero_absent = nullptr;
  launch(prologue_kernel, dim3(static_cast<unsigned>(route.tokens), static_cast<unsigned>(parts)), kThreads, smem,
         stream, pdl, args);
}

}  // namespace sluice::sm90
