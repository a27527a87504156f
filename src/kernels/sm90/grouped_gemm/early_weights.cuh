// SPDX-License-Identifier: Apache-2.0
// The first task of a block before the tables are there. With given ids one warp counts the rows of each expert for
// itself. So the block streams weights while routing, tables and rounding run (5 us at one token).
#pragma once

#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/grouped_gemm/task.cuh"
#include "kernels/sm90/route/expert_tiles.cuh"
#include "routing/route.h"

namespace sluice::sm90 {

struct FirstTask {
  int ticket = 0;
  int num_tiles = -1;  // -1: not known early
  int expert = 0;      // of the task
};

// Called by a whole warp. It finds the same tiles in the same order as the tables will have. It reads the ids and a
// captured number of tokens, past the L1 cache, and draws a ticket: all of these were complete, and the counter zero,
// before the kernel that makes the tables let this one start (route_permute.cu).
template <class T>
__device__ __forceinline__ FirstTask first_task(const GroupedGemmArgs& args, const Shared<T>& smem) {
  static_assert(T::staging_bytes >= 4 * kEarlyExperts);
  const GivenRouting& g = args.given;
  const int lane = threadIdx.x & 31;
  // Reading the ids hides the latency of the ticket. With two blocks per multiprocessor the blocks of the second half
  // draw after the ids: where tasks are few they then go to one block of every multiprocessor, not to both of some.
  const bool second = T::blocks_per_sm == 2 && blockIdx.x >= gridDim.x / 2;
  const auto draw = [&] { return lane == 0 ? atomicAdd(&args.header->ticket[args.ticket], 1) : 0; };
  int drawn = second ? 0 : draw();
  int* counts = reinterpret_cast<int*>(smem.staging);
  for (int e = lane; e < g.locals; e += 32) counts[e] = 0;
  __syncwarp();
  const int64_t tokens = g.num_tokens == nullptr ? g.tokens : tokens_within(ptx::ld_relaxed(g.num_tokens), g.tokens);
  const int pairs = static_cast<int>(tokens) * g.top_k;
  constexpr int kBatch = 4;
  for (int base = 0; base < pairs; base += 32 * kBatch) {
    int ids[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int at = base + 32 * i + lane;
      ids[i] = at >= pairs ? -1 : ptx::ld_relaxed(g.ids + at);
      if (g.packed && at < pairs) ids[i] = routing::packed_id(ids[i]);
    }
#pragma unroll
    for (int i = 0; i < kBatch; ++i) {
      const int e = ids[i] >= 0 && ids[i] < g.experts ? ids[i] - g.local_offset : -1;
      if (e >= 0 && e < g.locals) atomicAdd(counts + e, 1);
    }
  }
  __syncwarp();
  if (second) drawn = draw();
  const auto tiles_of = [&](int e) { return e < g.locals ? expert_tiles(counts[e], T::max_n, T::step_n).tiles : 0; };
  FirstTask first{__shfl_sync(0xffffffffu, drawn, 0), 0, 0};
  for (int e = lane; e < g.locals; e += 32) first.num_tiles += tiles_of(e);
#pragma unroll
  for (int step = 16; step > 0; step /= 2) first.num_tiles += __shfl_xor_sync(0xffffffffu, first.num_tiles, step);
  if (first.ticket >= total_tasks<T>(args, first.num_tiles)) return first;
  const int wanted = task_of<T>(args, first.ticket, first.num_tiles).tile;
  int before = 0;
  for (int base = 0; base < g.locals; base += 32) {
    const int tiles = tiles_of(base + lane);
    int end = tiles;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const int other = __shfl_up_sync(0xffffffffu, end, step);
      if (lane >= step) end += other;
    }
    const bool here = wanted >= before + end - tiles && wanted < before + end;
    const uint32_t found = __ballot_sync(0xffffffffu, here);
    if (found != 0) {
      first.expert = base + __ffs(static_cast<int>(found)) - 1;
      break;
    }
    before += __shfl_sync(0xffffffffu, end, 31);
  }
  return first;
}

}  // namespace sluice::sm90
