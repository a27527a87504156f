// SPDX-License-Identifier: Apache-2.0
// Grouped GEMM, weights as the M side: tasks of (tile of one expert's rows, 128 * m_tiles weight rows, part of K).
// Warps 0-7 multiply (two warpgroups, 64 rows of every 128 each), warp 8 streams weights, warp 9 streams rows.
// Tasks come from a counter, so a block that waits for another block's rows knows that the other is running.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/ptx/wgmma.cuh"
#include "kernels/ptx/wgmma_sync.cuh"
#include "kernels/sm90/grouped_gemm/args.h"
#include "kernels/sm90/grouped_gemm/config.h"
#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/grouped_gemm/operand.cuh"

namespace sluice::sm90 {

struct Task {
  int which;              // GEMM 0 or 1
  int tile, unit;         // unit: group of m_tiles row tiles
  int split, begin, end;  // slabs
};

template <class T>
__device__ inline int units_of(const Gemm& g) {
  return (g.row_tiles + T::m_tiles - 1) / T::m_tiles;
}

template <class T>
__device__ inline Task task_of(const GroupedGemmArgs& args, int index, int num_tiles) {
  const int first = num_tiles * units_of<T>(args.gemm[0]) * args.gemm[0].splits;
  Task t;
  t.which = index < first ? 0 : 1;
  const Gemm& g = args.gemm[t.which];
  index -= t.which == 0 ? 0 : first;
  t.split = index % g.splits;
  index /= g.splits;
  const int units = units_of<T>(g);
  t.unit = index % units;
  t.tile = index / units;
  t.begin = g.slabs * t.split / g.splits;
  t.end = g.slabs * (t.split + 1) / g.splits;
  return t;
}

template <class T>
__device__ inline int total_tasks(const GroupedGemmArgs& args, int num_tiles) {
  int total = num_tiles * units_of<T>(args.gemm[0]) * args.gemm[0].splits;
  if (args.gemms == 2) total += num_tiles * units_of<T>(args.gemm[1]) * args.gemm[1].splits;
  return total;
}

template <class T>
struct Shared {
  uint8_t* stages;
  float* staging;
  RowInfo* rows;
  uint64_t *full, *empty, *task_full, *task_empty;
  int* tasks;
  int* flag;

  __device__ explicit Shared(uint8_t* raw) {
    const uint32_t misaligned = ptx::smem_address(raw) & 1023u;
    stages = raw + (misaligned != 0 ? 1024u - misaligned : 0u);
    uint8_t* fixed = stages + T::stages * T::stage_bytes;
    staging = reinterpret_cast<float*>(fixed);
    rows = reinterpret_cast<RowInfo*>(fixed + T::staging_bytes);
    full = reinterpret_cast<uint64_t*>(fixed + T::staging_bytes + T::row_info_bytes);
    empty = full + T::stages;
    task_full = empty + T::stages;
    task_empty = task_full + T::queue;
    tasks = reinterpret_cast<int*>(task_empty + T::queue);
    flag = tasks + T::queue;
  }
  __device__ uint8_t* w(int stage) const { return stages + stage * T::stage_bytes; }
  __device__ uint8_t* x(int stage) const { return w(stage) + T::w_aligned; }
  __device__ float* x_scale(int stage) const { return reinterpret_cast<float*>(x(stage) + T::x_bytes); }
  __device__ float* w_scale(int stage) const { return x_scale(stage) + T::max_n; }
};

// A position in the ring.
template <class T>
struct Ring {
  int stage = 0;
  uint32_t phase = 0;
  __device__ void next() {
    if (++stage == T::stages) stage = 0, phase ^= 1u;
  }
};

template <class T>
__device__ void stream_weights(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int num_tiles = args.header->num_tiles;
  const int total = total_tasks<T>(args, num_tiles);
  const uint64_t policy = ptx::createpolicy_evict_first();
  int* counter = &args.header->ticket[args.ticket];
  int ticket = atomicAdd(counter, 1);
  Ring<T> ring;
  for (int i = 0;; ++i) {
    const int slot = i % T::queue;
    ptx::mbarrier_wait(smem.task_empty + slot, ((i / T::queue) & 1) ^ 1);
    smem.tasks[slot] = ticket < total ? ticket : -1;
    ptx::mbarrier_arrive(smem.task_full + slot);
    if (ticket >= total) return;
    const int next = atomicAdd(counter, 1);  // its latency hides behind this task
    const Task t = task_of<T>(args, ticket, num_tiles);
    const Gemm& g = args.gemm[t.which];
    const Tile tile = args.tiles[t.tile];
    const int64_t slab_stride = slab_bytes(T::op);
    for (int slab = t.begin; slab < t.end; slab += T::slabs) {
      const int count = min(T::slabs, t.end - slab);
      ptx::mbarrier_wait(smem.empty + ring.stage, ring.phase ^ 1u);
      uint64_t* full = smem.full + ring.stage;
      ptx::mbarrier_arrive_expect_tx(full,
                                     T::m_tiles * (count * slab_bytes(T::op) + (T::block_scaled ? 16 * count : 0)));
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m) {
        // A missing last row tile is read again from its neighbour; its results are not stored.
        const int row_tile = min(t.unit * T::m_tiles + m, g.row_tiles - 1);
        const int64_t at = (static_cast<int64_t>(tile.expert) * g.row_tiles + row_tile) * g.slabs + slab;
        ptx::cp_async_bulk(smem.w(ring.stage) + m * T::slabs * slab_bytes(T::op), g.weights + at * slab_stride,
                           count * slab_bytes(T::op), full, policy);
        if constexpr (T::block_scaled)
          ptx::cp_async_bulk(smem.w_scale(ring.stage) + m * 4, g.block_scale + at * 4, 16, full, policy);
      }
      ring.next();
    }
    ticket = next;
  }
}

template <class T>
__device__ void stream_rows(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int num_tiles = args.header->num_tiles;
  const uint64_t policy = ptx::createpolicy_evict_last();
  Ring<T> ring;
  for (int i = 0;; ++i) {
    const int slot = i % T::queue;
    ptx::mbarrier_wait(smem.task_full + slot, (i / T::queue) & 1);
    const int ticket = smem.tasks[slot];
    ptx::mbarrier_arrive(smem.task_empty + slot);
    if (ticket < 0) return;
    const Task t = task_of<T>(args, ticket, num_tiles);
    const Gemm& g = args.gemm[t.which];
    const Tile tile = args.tiles[t.tile];
    if (t.which == 1) {
      const int units = units_of<T>(args.gemm[0]);
      while (ptx::ld_acquire(args.ready + t.tile) < units) __nanosleep(20);
      ptx::fence_proxy_async();
    }
    const uint8_t* x = g.x + static_cast<int64_t>(tile.row_base) * g.slabs * 128;
    const float* scales = T::block_scaled ? g.x_block_scale + static_cast<int64_t>(tile.row_base) * g.slabs : nullptr;
    for (int slab = t.begin; slab < t.end; slab += T::slabs) {
      const int count = min(T::slabs, t.end - slab);
      ptx::mbarrier_wait(smem.empty + ring.stage, ring.phase ^ 1u);
      uint64_t* full = smem.full + ring.stage;
      const uint32_t bytes = count * tile.padded * 128;
      ptx::mbarrier_arrive_expect_tx(full, bytes + (T::block_scaled ? tile.padded * 4 : 0));
      ptx::cp_async_bulk(smem.x(ring.stage), x + static_cast<int64_t>(slab) * tile.padded * 128, bytes, full, policy);
      if constexpr (T::block_scaled)
        ptx::cp_async_bulk(smem.x_scale(ring.stage), scales + static_cast<int64_t>(slab) * tile.padded, tile.padded * 4,
                           full, policy);
      ring.next();
    }
  }
}

// Where a slab lies inside the ring: stages hold T::slabs slabs, the last stage of a task perhaps fewer.
template <class T>
struct Cursor {
  Ring<T>& ring;
  int slab;  // within the stage
  int left;  // slabs of the task that remain, this one included
  __device__ void wait(const Shared<T>& smem) const {
    if (slab == 0) ptx::mbarrier_wait(smem.full + ring.stage, ring.phase);
  }
  // True when this was the last slab of its stage.
  __device__ bool next() {
    --left;
    if (++slab < T::slabs && left > 0) return false;
    slab = 0;
    ring.next();
    return true;
  }
};

// The products of one task for a pass of N tokens. Accumulators start at zero and every product adds, so that no
// register is defined outside the tensor cores while products are in flight.
template <class T, int N>
__device__ __forceinline__ void multiply(float (&acc)[T::m_tiles][T::max_n / 2], const Shared<T>& smem, Ring<T>& ring,
                                         int slabs, bool gated) {
  const int wg = threadIdx.x >> 7, thread = threadIdx.x & 127;
  const bool release = (threadIdx.x & 31) == 0;
  Cursor<T> at{ring, 0, slabs};
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) acc[m][i] = 0.0f;

  if constexpr (T::op == Operand::bf16) {
    int previous = -1;
#pragma unroll 1
    while (at.left > 0) {
      at.wait(smem);
      const int stage = ring.stage;
      const uint64_t w = ptx::swizzled_desc(ptx::smem_address(smem.w(stage)) + wg * 8192 + at.slab * 16384);
      const uint64_t x = ptx::swizzled_desc(ptx::smem_address(smem.x(stage)) + at.slab * (N * 128));
      ptx::wgmma_fence();
#pragma unroll
      for (int k = 0; k < 4; ++k)
#pragma unroll
        for (int m = 0; m < T::m_tiles; ++m)
          ptx::Wgmma<N>::bf16_ss(acc[m], w + (m * T::slabs * 16384 >> 4) + 2 * k, x + 2 * k, 1);
      ptx::wgmma_commit();
      ptx::wgmma_wait<1>();
      if (previous >= 0 && release) ptx::mbarrier_arrive(smem.empty + previous);
      previous = at.next() ? stage : -1;
    }
    ptx::wgmma_wait<0>();
    if (previous >= 0 && release) ptx::mbarrier_arrive(smem.empty + previous);
  } else if constexpr (is_fp8(T::op)) {
    // Partial sums of 128 of K, in one or two parts of N: both sums of 256 tokens at once would not fit in registers.
    constexpr int kParts = N > 128 ? 2 : 1, kPartN = N / kParts;
    float part[kPartN / 2];
#pragma unroll 1
    while (at.left > 0) {
      at.wait(smem);
      const int stage = ring.stage;
      const uint64_t w = ptx::swizzled_desc(ptx::smem_address(smem.w(stage)) + wg * 8192 + at.slab * 16384);
      const uint64_t x = ptx::swizzled_desc(ptx::smem_address(smem.x(stage)) + at.slab * (N * 128));
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m) {
#pragma unroll
        for (int p = 0; p < kParts; ++p) {
          float* sums = acc[m] + p * (kPartN / 2);
          ptx::wgmma_fence();
#pragma unroll
          for (int k = 0; k < 4; ++k)
            ptx::Wgmma<kPartN>::e4m3_ss(part, w + (m * T::slabs * 16384 >> 4) + 2 * k,
                                        x + (p * kPartN * 128 >> 4) + 2 * k, k != 0);
          ptx::wgmma_commit();
          ptx::wgmma_wait<0>();
#pragma unroll
          for (int i = 0; i < kPartN / 2; ++i) ptx::pin(part[i]);
          if constexpr (T::block_scaled) {
            const float* ws = smem.w_scale(stage) + m * 4;
            const float w0 = ws[0], w1 = gated ? ws[1] : ws[0];
            const float* xs = smem.x_scale(stage) + p * kPartN + 2 * (thread & 3);
#pragma unroll
            for (int j = 0; j < kPartN / 8; ++j) {
              const float2 f = *reinterpret_cast<const float2*>(xs + 8 * j);
              sums[4 * j + 0] = fmaf(part[4 * j + 0], f.x * w0, sums[4 * j + 0]);
              sums[4 * j + 1] = fmaf(part[4 * j + 1], f.y * w0, sums[4 * j + 1]);
              sums[4 * j + 2] = fmaf(part[4 * j + 2], f.x * w1, sums[4 * j + 2]);
              sums[4 * j + 3] = fmaf(part[4 * j + 3], f.y * w1, sums[4 * j + 3]);
            }
          } else {
#pragma unroll
            for (int i = 0; i < kPartN / 2; ++i) sums[i] += part[i];
          }
        }
      }
      if (at.next() && release) ptx::mbarrier_arrive(smem.empty + stage);
    }
  } else {
    // Packed codes of the next slab are fetched from shared memory while the tensor cores run on this one. (Two
    // buffers of decoded words, so that decoding overlaps too, make ptxas serialise the products.)
    typename Decode<T::op>::Packed packed[T::m_tiles];
    const auto fetch = [&]() {
      at.wait(smem);
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m)
        packed[m] = Decode<T::op>::fetch(smem.w(ring.stage) + (at.slab + m * T::slabs) * slab_bytes(T::op), wg, thread);
    };
    if (slabs > 0) fetch();
#pragma unroll 1
    while (at.left > 0) {
      const int stage = ring.stage;
      const uint64_t x = ptx::swizzled_desc(ptx::smem_address(smem.x(stage)) + at.slab * (N * 128));
      uint32_t a[T::m_tiles][16];
#pragma unroll
      for (int m = 0; m < T::m_tiles; ++m) {
        Decode<T::op>::expand(packed[m], a[m]);
        ptx::wgmma_fence();
#pragma unroll
        for (int k = 0; k < 4; ++k) ptx::Wgmma<N>::bf16_rs(acc[m], a[m] + 4 * k, x + 2 * k, 1);
        ptx::wgmma_commit();
      }
      const bool last = at.next();
      if (at.left > 0) fetch();
      ptx::wgmma_wait<0>();
      if (last && release) ptx::mbarrier_arrive(smem.empty + stage);
    }
  }
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < N / 2; ++i) ptx::pin(acc[m][i]);
}

// The run-time number of tokens to the instruction: N = I * step, I = 1, 2, ....
template <class T, int I>
__device__ __forceinline__ void multiply_padded(float (&acc)[T::m_tiles][T::max_n / 2], const Shared<T>& smem,
                                                Ring<T>& ring, int slabs, bool gated, int padded) {
  if (padded == I * T::step_n)
    multiply<T, I * T::step_n>(acc, smem, ring, slabs, gated);
  else if constexpr ((I + 1) * T::step_n <= T::max_n)
    multiply_padded<T, I + 1>(acc, smem, ring, slabs, gated, padded);
}

// Leaves this split's sums in memory; the block that comes last adds all of them in order. False: not the last.
template <class T>
__device__ bool join_splits(const GroupedGemmArgs& args, const Task& t, const Tile& tile,
                            float (&acc)[T::m_tiles][T::max_n / 2], const Shared<T>& smem) {
  const Gemm& g = args.gemm[t.which];
  const int units = units_of<T>(g);
  const int thread = threadIdx.x;
  const int64_t unit = static_cast<int64_t>(t.tile) * units + t.unit;
  const int64_t per_split = static_cast<int64_t>(T::m_tiles) * kTileRows * tile.padded;
  // Passes differ in width, so their partial sums start at the tile's first row.
  float* base = g.partial + (static_cast<int64_t>(tile.row_base) * units + static_cast<int64_t>(t.unit) * tile.padded) *
                                T::m_tiles * kTileRows * g.splits;
  const int values = tile.padded / 2;
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < T::max_n / 2; ++i)
      if (i < values) base[t.split * per_split + (m * values + i) * T::consumers + thread] = acc[m][i];
  __threadfence();
  ptx::bar_sync(1, T::consumers);
  if (thread == 0) *smem.flag = ptx::atom_add_acq_rel(args.arrivals[t.which] + unit, 1);
  ptx::bar_sync(1, T::consumers);
  if (*smem.flag != g.splits - 1) return false;
  __threadfence();
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < T::max_n / 2; ++i)
      if (i < values) {
        float sum = 0.0f;
        for (int s = 0; s < g.splits; ++s)
          sum += __ldcg(base + s * per_split + (m * values + i) * T::consumers + thread);
        acc[m][i] = sum;
      }
  return true;
}

template <class T>
__device__ void consume(const GroupedGemmArgs& args, const Shared<T>& smem) {
  const int num_tiles = args.header->num_tiles;
  const int thread = threadIdx.x, lane = thread & 31, warp = thread >> 5;
  Ring<T> ring;
  float acc[T::m_tiles][T::max_n / 2];
  for (int i = 0;; ++i) {
    const int slot = i % T::queue;
    ptx::mbarrier_wait(smem.task_full + slot, (i / T::queue) & 1);
    const int ticket = smem.tasks[slot];
    __syncwarp();
    if (lane == 0) ptx::mbarrier_arrive(smem.task_empty + slot);
    if (ticket < 0) return;
    const Task t = task_of<T>(args, ticket, num_tiles);
    const Gemm& g = args.gemm[t.which];
    const Tile tile = args.tiles[t.tile];
    RowInfo* rows = smem.rows + (i & 1) * T::max_n;
    if (thread < tile.count) {
      const int64_t at = static_cast<int64_t>(tile.row_base) + thread;
      rows[thread] = {args.row_pair[at], g.x_scale->factor * (g.x_row_scale != nullptr ? g.x_row_scale[at] : 1.0f)};
    }
    multiply_padded<T, 1>(acc, smem, ring, t.end - t.begin, g.gated, tile.padded);
    if (g.splits > 1 && !join_splits<T>(args, t, tile, acc, smem)) continue;

    // Rows of weights become columns: thread (g, t) of a warp holds rows g and g + 8 of tokens 8j + 2t and 8j + 2t + 1.
    const int row = warp * 16 + (lane >> 2), token = 2 * (lane & 3);
    constexpr int kGroups = T::staging_tokens / 8;  // of 8 tokens
    constexpr int kChunks = (T::max_n + T::staging_tokens - 1) / T::staging_tokens;
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      const int row_tile = t.unit * T::m_tiles + m;
      if (row_tile < g.row_tiles) {
        for (int chunk = 0; chunk * T::staging_tokens < tile.padded; ++chunk) {
          ptx::bar_sync(1, T::consumers);
#pragma unroll
          for (int c = 0; c < kChunks; ++c) {
            if (c == chunk) {
#pragma unroll
              for (int j = 0; j < kGroups; ++j) {
                if ((kGroups * c + j) * 8 < T::max_n) {
                  float* to = smem.staging + (8 * j + token) * T::staging_pitch + row;
                  const float* from = acc[m] + (kGroups * c + j) * 4;
                  to[0] = from[0];
                  to[T::staging_pitch] = from[1];
                  to[8] = from[2];
                  to[T::staging_pitch + 8] = from[3];
                }
              }
            }
          }
          ptx::bar_sync(1, T::consumers);
#pragma unroll 1
          for (int part = 0; part < T::staging_tokens / 32; ++part) {
            const int at = chunk * T::staging_tokens + part * 32;
            if (at < tile.padded)
              finish_chunk(g, tile, rows, smem.staging + part * 32 * T::staging_pitch, T::staging_pitch, row_tile,
                           at / 32, thread);
          }
        }
      }
    }
    if (args.column_done != nullptr && g.store == Store::result) {
      __threadfence();
      ptx::bar_sync(1, T::consumers);
      if (thread == 0) *smem.flag = ptx::atom_add_acq_rel(args.column_done + t.unit, 1);
      ptx::bar_sync(1, T::consumers);
      if (*smem.flag == num_tiles - 1) {
        __threadfence();
        combine_columns(args, g, t.unit * T::m_tiles * kTileRows, T::m_tiles * kTileRows, thread);
      }
    }
    if (t.which == 0 && args.gemms == 2) {
      // These rows are read by the copy engine, perhaps of another block.
      ptx::fence_proxy_async();
      __threadfence();
      ptx::bar_sync(1, T::consumers);
      if (thread == 0) ptx::red_add_release(args.ready + t.tile, 1);
    }
  }
}

template <class T>
__global__ void __launch_bounds__(T::threads, T::blocks_per_sm)
    grouped_gemm(const __grid_constant__ GroupedGemmArgs args) {
  extern __shared__ uint8_t raw_smem[];
  const Shared<T> smem(raw_smem);
  const int warp = threadIdx.x >> 5;
  if (threadIdx.x == 0) {
    for (int i = 0; i < T::stages; ++i) {
      ptx::mbarrier_init(smem.full + i, 2);
      ptx::mbarrier_init(smem.empty + i, 8);
    }
    for (int i = 0; i < T::queue; ++i) {
      ptx::mbarrier_init(smem.task_full + i, 1);
      ptx::mbarrier_init(smem.task_empty + i, 9);
    }
    ptx::fence_mbarrier_init();
  }
  __syncthreads();
  ptx::griddepcontrol_wait();
  constexpr int kPool = T::blocks_per_sm == 1 ? 168 : T::blocks_per_sm == 2 ? 80 : 56;  // registers a thread at entry
  constexpr int kProducer = 40;
  constexpr int kConsumer = (kPool + (kPool - kProducer) / 2) / 8 * 8;
  if (warp >= 8) {
    ptx::setmaxnreg_dec<kProducer>();
    if (warp == 8 && (threadIdx.x & 31) == 0) stream_weights<T>(args, smem);
    if (warp == 9 && (threadIdx.x & 31) == 0) stream_rows<T>(args, smem);
  } else {
    ptx::setmaxnreg_inc<kConsumer>();
    consume<T>(args, smem);
  }
}

}  // namespace sluice::sm90
