// SPDX-License-Identifier: Apache-2.0
// From a task's accumulators to memory. The two warpgroups of a block work apart (each has 64 rows of every row tile),
// so that one's epilogue meets the other's products; warps of a group meet only where they share a scale.
//
// Accumulators hold weight rows across lanes; staging in shared memory turns them into columns of a token.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/stmatrix.cuh"
#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/grouped_gemm/multiply.cuh"

namespace sluice::sm90 {

struct Group {                    // a warpgroup
  int index, thread, lane, warp;  // thread of 128, warp of 4
  __device__ Group()
      : index(threadIdx.x >> 7), thread(threadIdx.x & 127), lane(threadIdx.x & 31), warp((threadIdx.x >> 5) & 3) {}
  __device__ void sync() const { ptx::bar_sync(1 + index, 128); }
  __device__ static void sync_both() { ptx::bar_sync(3, 256); }
};

// Leaves this split's sums in memory; the one that comes last adds all of them in order. False: not the last.
template <class T>
__device__ __forceinline__ bool join_splits(const GroupedGemmArgs& args, const Brief<T>& b, Accumulators<T>& acc,
                                            const Shared<T>& smem, const Group& group) {
  const Task t = b.task;
  const Tile tile = b.tile;
  const Gemm& g = args.gemm[t.which];
  const int units = units_of<T>(g);
  const int64_t unit = static_cast<int64_t>(t.tile) * units + t.unit;
  const int64_t per_split = static_cast<int64_t>(T::m_tiles) * kTileRows * tile.padded;
  // Passes differ in width, so their partial sums start at the tile's first row.
  float* base = g.partial +
                (static_cast<int64_t>(tile.row_base) * units + static_cast<int64_t>(t.unit) * tile.padded) *
                    T::m_tiles * kTileRows * g.splits +
                (T::tokens_first ? group.index * (T::m_tiles * kTileRows * 64) + group.thread : threadIdx.x);
  const int values = T::tokens_first ? T::max_n / 2 : tile.padded / 2;
  constexpr int kThreads = T::tokens_first ? 128 : 256;  // whose values lie side by side
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < T::max_n / 2; ++i)
      if (i < values) base[t.split * per_split + (m * values + i) * kThreads] = acc[m][i];
  __threadfence();
  if constexpr (T::block_scaled && !T::tokens_first) {
    // Scales of 128 columns need both warpgroups, so the same block must be last for both.
    Group::sync_both();
    if (threadIdx.x == 0) smem.flag[0] = smem.flag[1] = ptx::atom_add_acq_rel(args.arrivals[t.which] + unit, 1);
    Group::sync_both();
  } else {
    // Both warpgroups count in one word, 16 bits each.
    group.sync();
    if (group.thread == 0)
      smem.flag[group.index] =
          ptx::atom_add_acq_rel(args.arrivals[t.which] + unit, 1 << (16 * group.index)) >> (16 * group.index) & 0xffff;
    group.sync();
  }
  if (smem.flag[group.index] != g.splits - 1) return false;
  __threadfence();
  // In the order of splits; some reads are in flight together (more would not fit into the registers).
  constexpr int kReads = T::block_scaled ? 2 : 4;
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < T::max_n / 2; i += kReads) {
      if (i < values) {
        float sum[kReads] = {};
        for (int s = 0; s < g.splits; ++s)
#pragma unroll
          for (int j = 0; j < kReads; ++j) sum[j] += __ldcg(base + s * per_split + (m * values + i + j) * kThreads);
#pragma unroll
        for (int j = 0; j < kReads; ++j) acc[m][i + j] = sum[j];
      }
    }
  return true;
}

// Thread (lane / 4, lane % 4) of a warp holds rows lane / 4 and + 8 of tokens 8j + 2 * (lane % 4) and + 1.
template <class T>
__device__ __forceinline__ void stage_floats(const float (&acc)[T::max_n / 2], float* staging, int chunk,
                                             const Group& group) {
  constexpr int kPieces = T::float_tokens / 8;
  float* to = staging + 2 * (group.lane & 3) * T::float_pitch + group.warp * 16 + (group.lane >> 2);
#pragma unroll
  for (int c = 0; c < (T::max_n + T::float_tokens - 1) / T::float_tokens; ++c) {
    if (c == chunk) {
#pragma unroll
      for (int j = 0; j < kPieces; ++j) {
        if ((kPieces * c + j) * 8 < T::max_n) {
          const float* from = acc + (kPieces * c + j) * 4;
          float* at = to + 8 * j * T::float_pitch;
          at[0] = from[0];
          at[T::float_pitch] = from[1];
          at[8] = from[2];
          at[T::float_pitch + 8] = from[3];
        }
      }
    }
  }
}

// The epilogue in float32 staging: what store_results and store_rounded (rounded.cuh) do not do.
template <class T>
__device__ __forceinline__ void store_pieces(const Gemm& g, const Brief<T>& b, Accumulators<T>& acc,
                                             const Shared<T>& smem, const Group& group) {
  const Task t = b.task;
  const Tile tile = b.tile;
  if constexpr (T::block_scaled) Group::sync_both();  // the other group has read its maxima in this staging
  float* staging = reinterpret_cast<float*>(smem.staging + group.index * T::group_staging);
  const int token = group.thread >> 2, q = group.index * 4 + (group.thread & 3);
  const float* sums = staging + token * T::float_pitch + (group.thread & 3) * 16;
  const auto piece = [&](int m, int chunk) {
    const int n = chunk * T::float_tokens + token;
    const int known = n < tile.count ? n : 0;
    return Piece{g, tile, n, q, t.unit * T::m_tiles + m, b.row_pair[known], b.row_factor[known]};
  };
  for (int chunk = 0; chunk * T::float_tokens < tile.padded; ++chunk) {
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      if (t.unit * T::m_tiles + m < g.row_tiles) {
        group.sync();
        stage_floats<T>(acc[m], staging, chunk, group);
        group.sync();
        finish_piece(piece(m, chunk), sums);
      }
    }
  }
}

// Decode factors of two neighbouring rows. Formats without a scale of their own for rows share one: shared memory,
// which the products keep busy, is not read for it.
template <class T>
struct RowFactors {
  // The operands of the formats that scale whole rows: FP8 per token, NVFP4 per token.
  static constexpr bool can_own = T::op == Operand::fp8 || T::op == Operand::fp8_f32 || T::op == Operand::nvfp4;
  const float* at;
  float shared;
  bool own;
  __device__ RowFactors(const Gemm& g, const Brief<T>& b, const Group& group)
      : at(b.row_factor + 2 * (group.lane & 3)), shared(b.row_factor[0]), own(can_own && g.x_row_scale != nullptr) {}
  __device__ float2 operator()(int n) const {
    return own ? *reinterpret_cast<const float2*>(at + n) : float2{shared, shared};
  }
};

// A warp's corner of the staging, where values change from a token across lanes to a token in one lane.
template <class T>
__device__ inline uint8_t* warp_values(const Shared<T>& smem, const Group& group) {
  return smem.staging + group.index * T::group_staging + group.warp * 1024;
}
// 32 tokens x 16 values of 16 bits: the two halves of tokens 4 to 7 of 8 change places against bank conflicts.
__device__ inline int pair_of_halves(int token, int half) { return token * 32 + ((half ^ (token >> 2 & 1)) << 4); }

// bf16 results: scaled and rounded in registers, turned by stmatrix, 32 bytes of a token at once. Warps do not meet.
// columns % 8 == 0.
template <class T>
__device__ __forceinline__ void store_results(const Gemm& g, const Brief<T>& b, Accumulators<T>& acc,
                                              const Shared<T>& smem, const Group& group) {
  constexpr int kTokens = T::max_n < 32 ? T::max_n : 32, kPieces = kTokens / 8;
  uint8_t* staging = warp_values(smem, group);
  const RowFactors<T> factors(g, b, group);
  // Lane i addresses row i % 8 of matrix i / 8: matrices 0 and 1 are 16 weight rows of 8 tokens, 2 and 3 of the next 8.
  uint8_t* to = staging + pair_of_halves((group.lane & 7) + (group.lane >> 4) * 8, group.lane >> 3 & 1);
  const int half = group.lane & 1, warp_row = group.index * 64 + group.warp * 16;
  const int expert = b.tile.expert, count = b.tile.count, padded = b.tile.padded;
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m) {
    const int row_tile = b.task.unit * T::m_tiles + m;
    if (row_tile >= g.row_tiles) break;
    const int row = warp_row + (group.lane >> 2);
    float scale[2], bias[2] = {0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = b.row_scale[m * kTileRows + row + 8 * h];
      const int column = row_tile * kTileRows + row + 8 * h;
      if (g.bias != nullptr && column < g.columns) bias[h] = g.bias[static_cast<int64_t>(expert) * g.columns + column];
    }
    const int column = row_tile * kTileRows + warp_row + half * 8;
    uint16_t* out = static_cast<uint16_t*>(g.out) + column;
#pragma unroll
    for (int c = 0; c * kTokens < T::max_n; ++c) {
      if (c * kTokens < padded) {
        float2 f[kPieces];
#pragma unroll
        for (int j = 0; j < kPieces; ++j) f[j] = factors(c * kTokens + j * 8);
        int pair[kTokens / 16];
#pragma unroll
        for (int i = 0; i < kTokens / 16; ++i) pair[i] = b.row_pair[c * kTokens + 16 * i + (group.lane >> 1)];
        __syncwarp();  // the last tokens have left the staging
#pragma unroll
        for (int j = 0; j < kPieces; j += 2) {
          uint32_t words[4];
#pragma unroll
          for (int i = 0; i < 2; ++i) {
            const float* v = acc[m] + (c * kPieces + j + i) * 4;
            const float2 factor = f[j + i];
            words[2 * i] =
                ptx::cvt_bf16x2_f32(v[1] * (scale[0] * factor.y) + bias[0], v[0] * (scale[0] * factor.x) + bias[0]);
            words[2 * i + 1] =
                ptx::cvt_bf16x2_f32(v[3] * (scale[1] * factor.y) + bias[1], v[2] * (scale[1] * factor.x) + bias[1]);
          }
          ptx::stmatrix_x4_trans(to + j * 8 * 32, words[0], words[1], words[2], words[3]);
        }
        __syncwarp();
#pragma unroll
        for (int i = 0; i < kTokens / 16; ++i) {
          const int token = 16 * i + (group.lane >> 1);
          const uint4 v = *reinterpret_cast<const uint4*>(staging + pair_of_halves(token, half));
          if (c * kTokens + token < count && column < g.columns)
            *reinterpret_cast<uint4*>(out + static_cast<int64_t>(pair[i]) * g.columns) = v;
        }
      }
    }
  }
}

}  // namespace sluice::sm90
