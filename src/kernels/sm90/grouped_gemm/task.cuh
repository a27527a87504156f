// SPDX-License-Identifier: Apache-2.0
// What a block of the grouped GEMM works on next, and its shared memory.
#pragma once

#include "kernels/ptx/mbarrier.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/grouped_gemm/config.h"

namespace sluice::sm90 {

struct Task {
  int which;              // GEMM 0 or 1
  int tile;               // tile of rows
  int m_group;            // group of T::m_tiles M-tiles; in a cluster's second block it may lie beyond the last
  int split, begin, end;  // part of K; its first k-block and the one after its last
};

// Groups of T::m_tiles M-tiles that the weights' rows are.
template <class T>
__device__ inline int m_groups_of(const GemmArgs& g) {
  return (g.m_tiles + T::m_tiles - 1) / T::m_tiles;
}
// M-tile groups in units of a cluster: a task belongs to a cluster, whose blocks take neighbouring groups of one tile.
template <class T>
__device__ inline int m_group_clusters(const GemmArgs& g) {
  return (m_groups_of<T>(g) + T::cluster - 1) / T::cluster;
}

// Tasks are dealt in this order: GEMM, tiles in turn, groups of M-tiles, tile, part of K. An expert of several tiles
// has them side by side. They start one after the other and so read the same weights at almost the same time, once from
// memory.
template <class T>
__device__ inline Task task_of(const GroupedGemmArgs& args, int index, int num_tiles) {
  const int first = num_tiles * m_group_clusters<T>(args.gemm[0]) * args.gemm[0].splits;
  Task t;
  t.which = index < first ? 0 : 1;
  const GemmArgs& g = args.gemm[t.which];
  index -= t.which == 0 ? 0 : first;
  t.split = 0;
  if (g.splits > 1) t.split = index % g.splits, index /= g.splits;
  const int groups = m_group_clusters<T>(g);
  if constexpr (takes_turns(T::max_n)) {
    const int before = index / (groups * g.tiles_in_turn) * g.tiles_in_turn, at = index - before * groups;
    const int tiles = min(g.tiles_in_turn, num_tiles - before);
    t.tile = before + at % tiles;
    t.m_group = at / tiles * T::cluster;
  } else {
    t.m_group = index % groups * T::cluster;
    t.tile = index / groups;
  }
  if constexpr (T::cluster > 1) t.m_group += ptx::cluster_ctarank();
  t.begin = 0, t.end = g.k_blocks;
  if (g.splits > 1) {  // K is cut between block scales only
    const int runs = scale_runs(T::op, g.k_blocks);
    t.begin = runs * t.split / g.splits * k_blocks_per_scale(T::op);
    t.end = min(runs * (t.split + 1) / g.splits * k_blocks_per_scale(T::op), g.k_blocks);
  }
  return t;
}

template <class T>
__device__ inline int total_tasks(const GroupedGemmArgs& args, int num_tiles) {
  int total = num_tiles * m_group_clusters<T>(args.gemm[0]) * args.gemm[0].splits;
  if (args.gemms == 2) total += num_tiles * m_group_clusters<T>(args.gemm[1]) * args.gemm[1].splits;
  return total;
}

// How many parts make up the rows of a tile: one per warpgroup of every GEMM1 task. wait_for_rows counts one more if a
// warp rounds the rows after that.
template <class T>
__device__ inline int stored_parts(const GroupedGemmArgs& args) {
  return 2 * m_groups_of<T>(args.gemm[0]);
}
template <class T>
__device__ inline void wait_for_rows(const GroupedGemmArgs& args, int tile) {
  int parts = stored_parts<T>(args);
  if constexpr (T::completes_token_rows) parts += args.token_scale != nullptr;
  while (ptx::ld_acquire(args.ready + tile) < parts) __nanosleep(20);
}

// What the epilogue of a task must know (epilogue_params.cuh).
template <class T>
struct alignas(16) EpilogueParams {
  float row_factor[T::max_n];  // decode factors of the tile's rows, the static one included
  int row_pair[T::max_n];
  float row_scale[T::m_tiles * kMTileRows];  // of the weight rows; ones where the format has none
  InputScale out_scale;
  RowTile tile;
  Task task;
  int more;      // 0: there is no task
  int parts[2];  // of each warpgroup: 1 where it has finished its part of the tile's rows
};

template <class T>
struct Shared {
  uint8_t* stages;
  uint8_t* staging;  // [2 warpgroups][group_staging]
  EpilogueParams<T>* epilogue_params;
  uint64_t *full, *empty, *task_full, *task_empty, *params_full, *stored, *params_empty;
  int* tasks;
  int* flag;  // [2 warpgroups]

  __device__ explicit Shared(uint8_t* raw) {
    stages = raw;
    staging = stages + T::stages * T::stage_bytes;
    epilogue_params = reinterpret_cast<EpilogueParams<T>*>(staging + T::staging_bytes);
    static_assert(sizeof(EpilogueParams<T>) <= T::params_bytes && T::params_bytes % 16 == 0 &&
                  T::staging_bytes % 16 == 0);
    full = reinterpret_cast<uint64_t*>(staging + T::staging_bytes + T::params_slots * T::params_bytes);
    empty = full + T::stages;
    task_full = empty + T::stages;
    task_empty = task_full + T::queue;
    params_full = task_empty + T::queue;
    stored = params_full + T::params_slots;
    params_empty = stored + T::params_slots;
    tasks = reinterpret_cast<int*>(params_empty + T::params_slots);
    flag = tasks + T::queue;
    static_assert(8 * (2 * T::stages + 2 * T::queue + 3 * T::params_slots) + 4 * (T::queue + 2) <= 512);
  }
  __device__ uint8_t* w(int stage) const { return stages + stage * T::stage_bytes; }
  __device__ uint8_t* x(int stage) const { return w(stage) + T::w_aligned; }
  __device__ float* x_scale(int stage) const { return reinterpret_cast<float*>(x(stage) + T::x_bytes); }
  __device__ float* w_scale(int stage) const { return x_scale(stage) + T::max_n; }

  // Called by one thread, before any other waits on them.
  __device__ void init_barriers() const {
    for (int i = 0; i < T::stages; ++i) {
      ptx::mbarrier_init(full + i, 2);  // the two streaming warps
      // The multiplying warps, and those of every other block that shares the rows.
      ptx::mbarrier_init(empty + i, 8 * (T::lanes_read ? 32 : 1) + 8 * (T::cluster - 1) * (T::block_scaled ? 32 : 1));
    }
    for (int i = 0; i < T::queue; ++i) {
      ptx::mbarrier_init(task_full + i, 1);
      ptx::mbarrier_init(task_empty + i,
                         3 * T::cluster - 1);  // warps 8 to 10, but the one that draws tickets does not read
    }
    for (int i = 0; i < T::params_slots; ++i) {
      ptx::mbarrier_init(params_full + i, 1);
      ptx::mbarrier_init(stored + i, 2);  // the two warpgroups
      ptx::mbarrier_init(params_empty + i, 1);
    }
    ptx::fence_mbarrier_init();
  }

  // Of the i-th task (i modulo twice the queue).
  __device__ static int params_slot(int i) { return i % T::params_slots; }
  __device__ static uint32_t params_phase(int i) { return i / T::params_slots & 1; }

  // The i-th task of this block (i modulo twice the queue), -1 after the last. Every reading warp then releases it
  // once.
  __device__ int next_task(int i) const {
    const int slot = i % T::queue;
    const uint32_t phase = (i / T::queue) & 1;
    if constexpr (T::cluster > 1)
      ptx::mbarrier_wait_cluster(task_full + slot, phase);
    else
      ptx::mbarrier_wait(task_full + slot, phase);
    return tasks[slot];
  }
  __device__ void release_task(int i) const {
    if constexpr (T::cluster > 1)
      ptx::mbarrier_arrive_cluster(task_empty + i % T::queue, 0);
    else
      ptx::mbarrier_arrive(task_empty + i % T::queue);
  }
};

// The position of a role in the ring of stages and in the queue of tasks, in one register, because epilogues have none
// to spare. Bit 0 is the phase of the stage, which is where a wait reads it. Bits 1 to 3 are the task modulo twice the
// queue, the bits from 4 on the stage.
template <class T>
class Ring {
 public:
  __device__ int stage() const { return static_cast<int>(at_ >> 4); }
  __device__ uint32_t phase() const { return at_ & 1u; }
  __device__ int task() const { return static_cast<int>(at_ >> 1 & 7u); }
  __device__ void next() {
    at_ += 16;
    if (at_ >= 16u * T::stages) at_ = (at_ & 15u) ^ 1u;
  }
  // The value is the same in every lane of a warp. After this the compiler knows it, and may use uniform registers.
  __device__ void unify() { at_ = __shfl_sync(0xffffffffu, at_, 0); }
  __device__ void next_task() { at_ = (at_ & ~0xeu) | ((at_ + 2u) & 0xeu); }

 private:
  uint32_t at_ = 0;
  static_assert(T::queue == 4);
};

}  // namespace sluice::sm90
