// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/latent_attention.h"

#include <climits>
#include <utility>

#include "base/math.h"
#include "kernels/ptx/exp2.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/flashinfer/kernels.h"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kWorkThreads = 512, kMergeThreads = 256;

// Tiles of a batch whose rows are cut: what the second kernel merges.
struct CutTiles {
  int32_t *row, *rows;           // the first one, in the batch, and how many
  int32_t *first_item, *pieces;  // its items
};

struct WorkArgs {
  const int32_t *row_begin, *block_begin, *contexts;
  int sequences, heads;
  LatentPlan plan;
  LatentWork work;
  CutTiles tiles;
};

// The last of n indices whose value is at most `most`: 0 where none is. Values ascend.
template <class Value>
__device__ __forceinline__ int last_at_most(int n, int most, Value&& value) {
  int low = 0, high = n;
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value(middle) <= most ? low : high) = middle;
  }
  return low;
}

struct Tile {
  int row, rows, positions, first_head, first_block;  // positions that its last row sees
};

// Rows after the last sequence are padding of a recorded step and have no tiles. Where rows share tiles, those of
// sequence s begin at row_begin[s] / rows_of_tile + s, which leaves room for the rest of each and makes some empty.
__device__ __forceinline__ int tile_count(const WorkArgs& a) {
  const int rows = a.row_begin[a.sequences], of_tile = a.plan.rows_of_tile;
  const int count = of_tile > 1 ? rows / of_tile + a.sequences : rows * ceil_div(a.heads, kLatentRows);
  return min(count, static_cast<int>(a.plan.tiles));
}
__device__ __forceinline__ Tile find_tile(const WorkArgs& a, int tile) {
  const int of_tile = a.plan.rows_of_tile, of_row = ceil_div(a.heads, kLatentRows);
  // Sequences without rows begin where the next one does, so that the last one found is that of the row.
  const int s = of_tile > 1 ? last_at_most(a.sequences, tile, [&](int i) { return a.row_begin[i] / of_tile + i; })
                            : last_at_most(a.sequences, tile / of_row, [&](int i) { return a.row_begin[i]; });
  const int begin = a.row_begin[s], end = a.row_begin[s + 1];
  Tile t{};
  t.row = of_tile > 1 ? begin + (tile - begin / of_tile - s) * of_tile : tile / of_row;
  t.rows = max(0, min(of_tile, end - t.row));
  t.positions = t.rows > 0 ? a.contexts[s] + t.row - begin + t.rows : 0;
  t.first_head = of_tile > 1 ? 0 : tile % of_row * kLatentRows;
  t.first_block = a.block_begin[s];
  return t;
}

// Items are dealt to blocks in turn: item i is number i / blocks of block i % blocks.
__device__ __forceinline__ int slot_begin(int block, int items, int blocks) {
  return block * (items / blocks) + min(block, items % blocks);
}

__device__ void store_item(const WorkArgs& a, int item, int items, const Tile& t, int first, int last, bool partial) {
  const int at = slot_begin(item % a.plan.blocks, items, a.plan.blocks) + item / a.plan.blocks;
  const LatentWork& w = a.work;
  w.row[at] = t.row;
  w.rows[at] = t.rows;
  w.first_block[at] = t.first_block;
  w.partial[at] = partial ? item * kLatentRows : -1;
  w.positions[at] = t.positions;
  w.first_head[at] = t.first_head;
  w.first[at] = first;
  w.last[at] = last;
}

// The length of pieces, in tiles of positions, with the least cost; 0: nothing is cut.
__device__ int choose_piece(const WorkArgs& a, int tiles, int* shared) {
  int own[kLatentPieces] = {}, longest = 0;
  for (int t = static_cast<int>(threadIdx.x); t < tiles; t += kWorkThreads) {
    const int n = ceil_div(find_tile(a, t).positions, kLatentTile);
    longest = max(longest, n);
#pragma unroll
    for (int i = 0; i < kLatentPieces; ++i) own[i] += ceil_div(n, latent_piece(i));
  }
  if (threadIdx.x <= kLatentPieces) shared[threadIdx.x] = 0;
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kLatentPieces; ++i)
    if (own[i] != 0) atomicAdd(&shared[i], own[i]);
  atomicMax(&shared[kLatentPieces], longest);
  __syncthreads();
  longest = shared[kLatentPieces];
  int64_t least = latent_cost(tiles, longest, 1, a.plan.blocks);
  int piece = 0;
  for (int i = 0; i < kLatentPieces; ++i) {
    const int length = latent_piece(i);
    if (length >= longest || shared[i] > a.plan.items) continue;
    const int64_t cost = latent_cost(shared[i], length, ceil_div(longest, length), a.plan.blocks);
    if (cost < least) least = cost, piece = length;
  }
  __syncthreads();
  return piece;
}

// First items of the tiles, by one warp: there are few where rows are cut. piece: positions of one. Returns all items.
__device__ int cut_tiles(const WorkArgs& a, int tiles, int piece) {
  const int lane = static_cast<int>(threadIdx.x);
  int total = 0;
  for (int base = 0; base < tiles; base += 32) {
    const int at = base + lane;
    const Tile t = at < tiles ? find_tile(a, at) : Tile{};
    const int pieces = ceil_div(t.positions, piece);
    int end = pieces;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, end, i);
      if (lane >= i) end += below;
    }
    if (at < tiles) {
      a.tiles.row[at] = t.row;
      a.tiles.rows[at] = t.rows;
      a.tiles.first_item[at] = total + end - pieces;
      a.tiles.pieces[at] = pieces;
    }
    total += __shfl_sync(0xffffffffu, end, 31);
  }
  return total;
}

__global__ void __launch_bounds__(kWorkThreads) latent_work_kernel(const __grid_constant__ WorkArgs a) {
  __shared__ int shared[kLatentPieces + 1];
  ptx::griddepcontrol_launch_dependents();
  // The batch's integers are no kernel's results, and what expanded_work_kernel leaves of them is complete:
  // FlashInfer's kernel lies between, which waits for all before it (launch_expanded, without PDL). The arrays may
  // still be in use.
  const int tiles = tile_count(a), blocks = a.plan.blocks;
  const int chosen = a.plan.cut ? choose_piece(a, tiles, shared) : 0;
  ptx::griddepcontrol_wait();
  int items = tiles;
  if (a.plan.cut) {
    const int piece = chosen > 0 ? chosen * kLatentTile : INT_MAX / 2;
    if (threadIdx.x < 32) {
      const int n = cut_tiles(a, tiles, piece);
      if (threadIdx.x == 0) shared[0] = n;
    }
    __syncthreads();
    items = shared[0];
    for (int i = static_cast<int>(threadIdx.x); i < tiles; i += kWorkThreads) {
      const Tile t = find_tile(a, i);
      const int pieces = a.tiles.pieces[i];
      for (int k = 0; k < pieces; ++k)
        store_item(a, a.tiles.first_item[i] + k, items, t, k * piece, k + 1 < pieces ? (k + 1) * piece : t.positions,
                   pieces > 1);
    }
  } else {
    for (int i = static_cast<int>(threadIdx.x); i < tiles; i += kWorkThreads) {
      const Tile t = find_tile(a, i);
      store_item(a, i, items, t, 0, t.positions, false);
    }
  }
  for (int b = static_cast<int>(threadIdx.x); b <= blocks; b += kWorkThreads) {
    a.work.begin[b] = slot_begin(b, items, blocks);
    if (b < blocks) a.work.none[b] = 0;
  }
}

struct MergeArgs {
  WorkArgs work;
  const bf16_t* partial;
  const float* stats;
  bf16_t* out;
  int64_t out_stride;
};

// A block merges four heads of a tile, 64 threads each: eight columns per thread. Grid: tiles x kLatentRows / 4.
__global__ void __launch_bounds__(kMergeThreads) latent_merge_kernel(const __grid_constant__ MergeArgs a) {
  constexpr int kColumns = 8;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int tile = static_cast<int>(blockIdx.x), local = static_cast<int>(blockIdx.y * 4 + threadIdx.x / 64);
  if (tile >= tile_count(a.work)) return;
  const int pieces = a.work.tiles.pieces[tile], heads = a.work.heads, of_tile = a.work.plan.rows_of_tile;
  if (pieces <= 1) return;  // written by the item itself
  const int row = a.work.tiles.row[tile] + (of_tile > 1 ? local / heads : 0);
  const int head = of_tile > 1 ? local % heads : tile % ceil_div(heads, kLatentRows) * kLatentRows + local;
  if (row >= a.work.tiles.row[tile] + a.work.tiles.rows[tile] || head >= heads) return;
  const int64_t first = int64_t{a.work.tiles.first_item[tile]} * kLatentRows + local;
  float maximum = -INFINITY;
  for (int i = 0; i < pieces; ++i) maximum = fmaxf(maximum, a.stats[first + i * kLatentRows]);
  const int column = static_cast<int>(threadIdx.x % 64) * kColumns;
  float sum[kColumns] = {}, weights = 0.0f;
#pragma unroll 4
  for (int i = 0; i < pieces; ++i) {
    const float weight = ptx::ex2_approx(a.stats[first + i * kLatentRows] - maximum);
    float v[kColumns];
    load_elements<kColumns>(a.partial + (first + i * kLatentRows) * kLatent + column, v);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) sum[c] = fmaf(weight, v[c], sum[c]);
    weights += weight;
  }
  const float inverse = 1.0f / weights;
  uint32_t words[kColumns / 2];
#pragma unroll
  for (int c = 0; c < kColumns; c += 2) words[c / 2] = ptx::cvt_bf16x2_f32(sum[c + 1] * inverse, sum[c] * inverse);
  *reinterpret_cast<uint4*>(a.out + row * a.out_stride + int64_t{head} * kLatent + column) = {words[0], words[1],
                                                                                              words[2], words[3]};
}

}  // namespace

bool latent_fits(const AttentionArgs& a) {
  const AttentionShape& s = a.shape;
  return has_flashinfer() && a.values == nullptr && !a.q.f32 && !a.pages_f32 && !a.pages_e4m3 && !a.out.f32 &&
         s.key_heads == 1 && s.key_width == kLatentCached && s.value_width == kLatent && rows_aligned(a.q) &&
         rows_aligned(a.out);
}

void launch_latent_attention(const LatentCall& call, Stream stream, bool pdl) {
  const AttentionArgs& a = *call.attention;
  const LatentPlan& plan = call.plan;
  if (plan.tiles == 0 || a.sequences == 0) return;
  int32_t* next = call.work;
  const auto take = [&](int64_t n) { return std::exchange(next, next + n); };
  LatentWork w{};
  w.begin = take(round_up(plan.blocks + 1, 4));
  w.none = take(round_up(plan.blocks, 4));
  for (int32_t** list : {&w.row, &w.rows, &w.first_block, &w.partial, &w.positions, &w.first_head, &w.first, &w.last})
    *list = take(plan.items);
  CutTiles tiles{};
  if (plan.cut)
    for (int32_t** list : {&tiles.row, &tiles.rows, &tiles.first_item, &tiles.pieces}) *list = take(plan.tiles);
  const WorkArgs work{a.row_begin, a.block_begin, a.contexts, a.sequences, a.shape.heads, plan, w, tiles};
  launch(latent_work_kernel, 1, kWorkThreads, 0, stream, pdl, work);
  LatentArgs l{};
  l.q = a.q.data;
  l.q_stride = a.q.stride;
  l.out = a.out.data;
  l.out_stride = a.out.stride;
  l.pages = a.keys;
  l.blocks = a.blocks;
  l.heads = a.shape.heads;
  l.block_size = a.block_size;
  l.scale = a.scale;
  l.partial = call.partial;
  l.partial_stats = call.partial_stats;
  l.work = w;
  l.causal = plan.rows_of_tile > 1;
  l.grid = plan.blocks;
  launch_latent(l, stream);
  if (!plan.cut) return;
  launch(latent_merge_kernel, dim3(static_cast<unsigned>(plan.tiles), kLatentRows / 4), kMergeThreads, 0, stream, pdl,
         MergeArgs{work, static_cast<const bf16_t*>(call.partial), call.partial_stats, static_cast<bf16_t*>(a.out.data),
                   a.out.stride});
}

}  // namespace sluice::sm90
