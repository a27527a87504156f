// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/mla/expanded.h"

#include "base/bf16.h"
#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/attention/prefill.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/mla/key_values.h"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 256;

struct WorkArgs {
  const int32_t *row_begin, *contexts;
  int sequences, min_rows;
  int64_t other_rows;
  ExpandedWork work;
};

// The sum over the lanes up to this one.
__device__ __forceinline__ int lanes_up_to(int v) {
#pragma unroll
  for (int i = 1; i < 32; i *= 2) {
    const int below = __shfl_up_sync(0xffffffffu, v, i);
    if (static_cast<int>(threadIdx.x & 31) >= i) v += below;
  }
  return v;
}

__global__ void __launch_bounds__(kThreads) expanded_work_kernel(const __grid_constant__ WorkArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const ExpandedWork& w = a.work;
  if (threadIdx.x < 32) {
    int positions = 0, others = 0;
    for (int base = 0; base < a.sequences; base += 32) {
      const int s = base + static_cast<int>(threadIdx.x);
      const int rows = s < a.sequences ? a.row_begin[s + 1] - a.row_begin[s] : 0;
      const bool prompt = rows >= a.min_rows;
      const int length = prompt ? a.contexts[s] + rows : 0, own = round_up(length, kExpandedTile);
      const int end = positions + lanes_up_to(own), others_end = others + lanes_up_to(prompt ? 0 : rows);
      if (s < a.sequences) {
        w.first[s] = end - own;
        w.lengths[s] = length;
        w.other_begin[s] = others_end - (prompt ? 0 : rows);
      }
      positions = __shfl_sync(0xffffffffu, end, 31);
      others = __shfl_sync(0xffffffffu, others_end, 31);
    }
    if (threadIdx.x == 0) {
      w.first[a.sequences] = positions;
      w.other_begin[a.sequences] = others;
    }
  }
  __syncthreads();
  for (int s = static_cast<int>(threadIdx.x); s < a.sequences; s += kThreads)
    for (int i = w.other_begin[s]; i < w.other_begin[s + 1] && i < a.other_rows; ++i)
      w.other_rows[i] = a.row_begin[s] + i - w.other_begin[s];
}

}  // namespace

int64_t expanded_work_ints(int64_t sequences, int64_t other_rows) { return 3 * (sequences + 1) + other_rows; }
ExpandedWork expanded_work(int32_t* ints, int64_t sequences) {
  const int64_t n = sequences + 1;
  return {ints, ints + n, ints + 3 * n, ints + 2 * n};
}

bool expanded_fits(const MlaWeights& m, const AttentionArgs& a) {
  return has_flashinfer() && m.latent == kLatent && m.rope == kLatentRope && m.nope + m.rope == kExpandedKey &&
         m.value == kExpandedValue && !a.pages_f32 && mla_on_tensor_cores(m, a.q, a.out);
}

PrefillPlan plan_expanded_tiles(const ExpandedPlan& plan, const PromptBounds& b, int64_t longest_rows,
                                int multiprocessors) {
  return plan_prefill({plan.heads, plan.heads, kExpandedKey, kExpandedValue}, b.rows, b.prompts, longest_rows,
                      multiprocessors, kPrefillLists);
}

void launch_expanded_work(const ExpandedCall& call, Stream stream, bool pdl) {
  const AttentionArgs& a = *call.attention;
  launch(expanded_work_kernel, 1, kThreads, 0, stream, pdl,
         WorkArgs{a.row_begin, a.contexts, a.sequences, call.min_rows, call.other_rows, call.work});
}

void launch_expanded_attention(const ExpandedCall& call, Stream stream, bool pdl) {
  const AttentionArgs& a = *call.attention;
  const MlaWeights& m = call.weights;
  AttentionArgs prompts = a;
  prompts.shape = {call.plan.heads, call.plan.heads, kExpandedKey, kExpandedValue};
  prompts.block_begin = call.work.first;
  PrefillArgs tiles{};
  tiles.attention = &prompts;
  tiles.rows = a.rows;
  tiles.min_rows = call.min_rows;
  tiles.plan = call.tiles;
  tiles.work = prefill_work(call.tiles, call.tile_work);
  launch_prefill_work(tiles, stream, pdl);

  KeyValueArgs k{};
  k.pages = a.keys;
  k.blocks = a.blocks;
  k.block_begin = a.block_begin;
  k.sequences = a.sequences;
  k.block_size = a.block_size;
  k.first = call.work.first;
  k.lengths = call.work.lengths;
  k.heads = call.plan.heads;
  k.out = call.expanded;
  k.rows = call.plan.positions;
  ExpandedArgs e{};
  e.q_stride = a.q.stride;
  e.out_stride = a.out.stride;
  e.keys = call.expanded;
  e.values = static_cast<const bf16_t*>(call.expanded) + kExpandedKey;
  e.stride = kExpandedRow;
  e.head_stride = call.plan.positions * kExpandedRow;
  e.rows = static_cast<int>(a.rows);
  e.positions = static_cast<int>(call.plan.positions);
  e.heads = call.plan.heads;
  e.scale = a.scale;
  e.work = tiles.work;
  e.grid = call.tiles.blocks;
  for (int head = 0; head < m.heads; head += call.plan.heads) {
    k.weight = static_cast<const bf16_t*>(m.kv_b) + static_cast<int64_t>(head) * (m.nope + m.value) * m.latent;
    launch_key_values(k, call.multiprocessors, stream, pdl);
    e.q = static_cast<const bf16_t*>(a.q.data) + static_cast<int64_t>(head) * kExpandedKey;
    e.out = static_cast<bf16_t*>(a.out.data) + static_cast<int64_t>(head) * kExpandedValue;
    launch_expanded(e, stream);
  }
}

}  // namespace sluice::sm90
