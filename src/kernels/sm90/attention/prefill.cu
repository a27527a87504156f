// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/attention/prefill.h"

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

struct WorkArgs {
  const int32_t *row_begin, *block_begin, *contexts, *blocks;
  int sequences, min_rows, max_tiles, heads, key_heads, block_size;
  PrefillPlan plan;
  FlashWork work;
  uint16_t* values;  // null: nothing is cleared
};

// Zeros to the values that are copied with a sequence's last ones and are not its own: what a page held before may be
// NaN. By the blocks of the key heads.
__device__ void clear_past_end(const WorkArgs& a) {
  const int head = static_cast<int>(blockIdx.x);
  if (a.values == nullptr || head >= a.key_heads) return;
  constexpr int kLanes = kFlashWidth / 8, kRowsAtOnce = kThreads / kLanes;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  for (int s = 0; s < a.sequences; ++s) {
    const int rows = a.row_begin[s + 1] - a.row_begin[s], end = a.contexts[s] + rows;
    if (rows < a.min_rows) continue;
    for (int p = end + static_cast<int>(threadIdx.x) / kLanes; p < round_up(end, kFlashPage); p += kRowsAtOnce) {
      const int64_t block = a.blocks[a.block_begin[s] + p / a.block_size];
      const int64_t row = (block * a.key_heads + head) * a.block_size + p % a.block_size;
      *reinterpret_cast<uint4*>(a.values + row * kFlashWidth + 8 * lane) = uint4{};
    }
  }
}

// Tiles of all long sequences in shared memory: how many tiles of positions each reads, and which one it is.
struct Tiles {
  int *cost, *sequence, *tile;
};

// By one warp. Returns their number.
__device__ int find_tiles(const WorkArgs& a, const Tiles& tiles) {
  const int lane = threadIdx.x & 31;
  int total = 0;
  for (int base = 0; base < a.sequences; base += 32) {
    const int s = base + lane;
    const int rows = s < a.sequences ? a.row_begin[s + 1] - a.row_begin[s] : 0;
    const int own = rows >= a.min_rows ? ceil_div(rows, kFlashRows) : 0;
    int end = own;
#pragma unroll
    for (int i = 1; i < 32; i *= 2) {
      const int below = __shfl_up_sync(0xffffffffu, end, i);
      if (lane >= i) end += below;
    }
    const int context = own > 0 ? a.contexts[s] : 0;
    for (int t = 0; t < own; ++t) {
      const int at = total + end - own + t;
      if (at >= a.max_tiles) break;  // a batch beyond its own bounds
      tiles.cost[at] = ceil_div(context + min(rows, (t + 1) * kFlashRows), kFlashPositions);
      tiles.sequence[at] = s;
      tiles.tile[at] = t;
    }
    total += __shfl_sync(0xffffffffu, end, 31);
  }
  return min(total, a.max_tiles);
}

// A block for each query head.
__global__ void __launch_bounds__(kThreads) prefill_work_kernel(const __grid_constant__ WorkArgs a) {
  extern __shared__ int prefill_smem[];
  __shared__ int found;
  ptx::griddepcontrol_launch_dependents();
  const Tiles tiles{prefill_smem, prefill_smem + a.max_tiles, prefill_smem + 2 * a.max_tiles};
  if (threadIdx.x < 32) {  // the batch's integers are no kernel's results; the arrays may still be in use
    const int n = find_tiles(a, tiles);
    if (threadIdx.x == 0) found = n;
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  clear_past_end(a);
  const int count = found, head = static_cast<int>(blockIdx.x);
  const PrefillSlots slots{a.plan.blocks, int64_t{count} * a.heads, a.plan.lists};
  for (int i = threadIdx.x; i < count; i += kThreads) {
    const int cost = tiles.cost[i];
    int rank = 0;
    for (int j = 0; j < count; ++j) rank += tiles.cost[j] > cost || (tiles.cost[j] == cost && j < i);
    const int64_t at = slots.of(int64_t{rank} * a.heads + head);
    const int s = tiles.sequence[i], first = a.row_begin[s], rows = a.row_begin[s + 1] - first;
    a.work.tile[at] = tiles.tile[i];
    a.work.head[at] = head;
    a.work.first_row[at] = first;
    a.work.first_block[at] = a.block_begin[s];
    a.work.rows[at] = rows;
    a.work.positions[at] = a.contexts[s] + rows;
  }
  const int all = static_cast<int>(gridDim.x) * kThreads;
  for (int b = head * kThreads + static_cast<int>(threadIdx.x); b <= a.plan.blocks; b += all)
    a.work.begin[b] = static_cast<int>(slots.begin(b));
}

}  // namespace

bool prefill_fits(const AttentionArgs& a) {
  return has_flashinfer() && !a.pages_e4m3 &&
         attention_on_tensor_cores(a.shape, a.q.f32, a.pages_f32, a.values == nullptr) &&
         a.shape.key_width == kFlashWidth && !a.out.f32 && rows_aligned(a.q) && rows_aligned(a.out);
}

FlashWork prefill_work(const PrefillPlan& plan, int32_t* ints) {
  int32_t* next = ints + round_up(plan.blocks + 1, 4);
  const auto take = [&] { return std::exchange(next, next + plan.items); };
  FlashWork w{.begin = ints};
  for (int32_t** list : {&w.tile, &w.head, &w.first_row, &w.first_block, &w.rows, &w.positions}) *list = take();
  return w;
}

void launch_prefill_work(const PrefillArgs& p, Stream stream, bool pdl) {
  const AttentionArgs& a = *p.attention;
  WorkArgs args{};
  args.row_begin = a.row_begin;
  args.block_begin = a.block_begin;
  args.contexts = a.contexts;
  args.blocks = a.blocks;
  args.sequences = a.sequences;
  args.min_rows = p.min_rows;
  args.max_tiles = static_cast<int>(p.plan.tiles);
  args.heads = a.shape.heads;
  args.key_heads = a.shape.key_heads;
  args.block_size = a.block_size;
  args.plan = p.plan;
  args.work = p.work;
  if (copies_flash_pages(a.block_size)) args.values = static_cast<uint16_t*>(const_cast<void*>(a.values));
  static_assert(3 * kMaxPrefillTiles * sizeof(int) <= kFreeSharedMemory);
  launch(prefill_work_kernel, static_cast<unsigned>(a.shape.heads), kThreads,
         static_cast<int>(3 * p.plan.tiles * static_cast<int64_t>(sizeof(int))), stream, pdl, args);
}

void launch_prefill_kernel(const PrefillArgs& p, Stream stream) {
  const AttentionArgs& a = *p.attention;
  FlashArgs f{};
  f.q = a.q.data;
  f.q_stride = a.q.stride;
  f.out = a.out.data;
  f.out_stride = a.out.stride;
  f.keys = a.keys;
  f.values = a.values;
  f.blocks = a.blocks;
  f.rows = static_cast<int>(p.rows);
  f.heads = a.shape.heads;
  f.key_heads = a.shape.key_heads;
  f.block_size = a.block_size;
  f.scale = a.scale;
  f.work = p.work;
  f.grid = p.plan.blocks;
  launch_flash(f, stream);
}

void launch_prefill(const PrefillArgs& p, Stream stream, bool pdl) {
  if (p.plan.tiles == 0) return;
  launch_prefill_work(p, stream, pdl);
  launch_prefill_kernel(p, stream);
}

}  // namespace sluice::sm90
