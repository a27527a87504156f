// SPDX-License-Identifier: Apache-2.0
// From the accumulators of a task to memory. The two warpgroups of a block work independently (each has 64 rows of
// every M-tile), so that the epilogue of one overlaps with the products of the other. Warps of a warpgroup synchronise
// only if they share a scale.
//
// Accumulators hold weight rows across lanes; staging in shared memory turns them into columns of a token.
#pragma once

#include "kernels/ptx/copy.cuh"
#include "kernels/ptx/stmatrix.cuh"
#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/grouped_gemm/multiply.cuh"

namespace sluice::sm90 {

struct Warpgroup {                // a warpgroup
  int index, thread, lane, warp;  // thread of 128, warp of 4
  __device__ Warpgroup()
      : index(threadIdx.x >> 7), thread(threadIdx.x & 127), lane(threadIdx.x & 31), warp((threadIdx.x >> 5) & 3) {}
  __device__ void sync() const { ptx::bar_sync(1 + index, 128); }
  __device__ static void sync_both() { ptx::bar_sync(3, 256); }
};

// Writes the sums of this split to memory. The split that comes last adds all of them, in the order of splits. Returns
// false if this one is not the last.
template <class T>
__device__ __forceinline__ bool reduce_splits(const GroupedGemmArgs& args, const EpilogueParams<T>& params,
                                              Accumulators<T>& acc, const Shared<T>& smem, const Warpgroup& group) {
  const Task t = params.task;
  const RowTile tile = params.tile;
  const GemmArgs& g = args.gemm[t.which];
  const int m_groups = m_groups_of<T>(g);
  const int64_t output_tile = static_cast<int64_t>(t.tile) * m_groups + t.m_group;
  const int64_t per_split = static_cast<int64_t>(T::m_tiles) * kMTileRows * tile.padded;
  // Tiles differ in the number of rows, so the partial sums of a tile start at the place of its first row.
  float* base = g.partial +
                (static_cast<int64_t>(tile.row_base) * m_groups + static_cast<int64_t>(t.m_group) * tile.padded) *
                    T::m_tiles * kMTileRows * g.splits +
                (T::tokens_first ? group.index * (T::m_tiles * kMTileRows * 64) + group.thread : threadIdx.x);
  const int values = T::tokens_first ? T::max_n / 2 : tile.padded / 2;
  constexpr int kThreads = T::tokens_first ? 128 : 256;  // threads whose values lie side by side
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m)
#pragma unroll
    for (int i = 0; i < T::max_n / 2; ++i)
      if (i < values) base[t.split * per_split + (m * values + i) * kThreads] = acc[m][i];
  __threadfence();
  if constexpr (T::block_scaled && !T::tokens_first) {
    // Scales of 128 columns need both warpgroups, so the same block must be last for both.
    Warpgroup::sync_both();
    if (threadIdx.x == 0) smem.flag[0] = smem.flag[1] = ptx::atom_add_acq_rel(args.arrivals[t.which] + output_tile, 1);
    Warpgroup::sync_both();
  } else {
    // Both warpgroups count in one word, 16 bits each.
    group.sync();
    if (group.thread == 0)
      smem.flag[group.index] =
          ptx::atom_add_acq_rel(args.arrivals[t.which] + output_tile, 1 << (16 * group.index)) >> (16 * group.index) &
          0xffff;
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
                                             const Warpgroup& group) {
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

// The epilogue through float32 staging, for what store_results and store_rounded (rounded.cuh) cannot do.
template <class T>
__device__ __forceinline__ void store_segments(const GemmArgs& g, const EpilogueParams<T>& params, Accumulators<T>& acc,
                                               const Shared<T>& smem, const Warpgroup& group) {
  const Task t = params.task;
  const RowTile tile = params.tile;
  if constexpr (T::block_scaled) Warpgroup::sync_both();  // the other group has read its maxima in this staging
  float* staging = reinterpret_cast<float*>(smem.staging + group.index * T::group_staging);
  const int token = group.thread >> 2, q = group.index * 4 + (group.thread & 3);
  const float* sums = staging + token * T::float_pitch + (group.thread & 3) * 16;
  const auto segment = [&](int m, int chunk) {
    const int n = chunk * T::float_tokens + token;
    const int known = n < tile.count ? n : 0;
    return RowSegment{g, tile, n, q, t.m_group * T::m_tiles + m, params.row_pair[known], params.row_factor[known]};
  };
  for (int chunk = 0; chunk * T::float_tokens < tile.padded; ++chunk) {
#pragma unroll
    for (int m = 0; m < T::m_tiles; ++m) {
      if (t.m_group * T::m_tiles + m < g.m_tiles) {
        group.sync();
        stage_floats<T>(acc[m], staging, chunk, group);
        group.sync();
        store_segment(segment(m, chunk), sums);
      }
    }
  }
}

// Decode factors of two neighbouring rows. If the format has no scale per row, all rows share one factor: shared memory
// is busy with the products and is not read for it.
template <class T>
struct DecodeFactors {
  // The operands of the formats that scale whole rows: FP8 per token, NVFP4 per token.
  static constexpr bool can_own =
      T::op == WeightOperand::fp8 || T::op == WeightOperand::fp8_f32 || T::op == WeightOperand::nvfp4;
  const float* at;
  float shared;
  bool own;
  __device__ DecodeFactors(const GemmArgs& g, const EpilogueParams<T>& params, const Warpgroup& group)
      : at(params.row_factor + 2 * (group.lane & 3)),
        shared(params.row_factor[0]),
        own(can_own && g.x.row_scale != nullptr) {}
  __device__ float2 operator()(int n) const {
    return own ? *reinterpret_cast<const float2*>(at + n) : float2{shared, shared};
  }
};

// A warp's corner of the staging, where values change from a token across lanes to a token in one lane.
template <class T>
__device__ inline uint8_t* warp_values(const Shared<T>& smem, const Warpgroup& group) {
  return smem.staging + group.index * T::group_staging + group.warp * 1024;
}
// 32 tokens x 16 values of 16 bits: the two halves of tokens 4 to 7 of 8 change places against bank conflicts.
__device__ inline int pair_of_halves(int token, int half) { return token * 32 + ((half ^ (token >> 2 & 1)) << 4); }

// bf16 results: scaled and rounded in registers, transposed by stmatrix, stored 32 bytes of a token at a time. Warps do
// not synchronise. columns % 8 == 0.
template <class T>
__device__ __forceinline__ void store_results(const GemmArgs& g, const EpilogueParams<T>& params, Accumulators<T>& acc,
                                              const Shared<T>& smem, const Warpgroup& group) {
  constexpr int kTokens = T::max_n < 32 ? T::max_n : 32, kPieces = kTokens / 8;
  uint8_t* staging = warp_values(smem, group);
  const DecodeFactors<T> factors(g, params, group);
  // Lane i addresses row i % 8 of matrix i / 8: matrices 0 and 1 are 16 weight rows of 8 tokens, 2 and 3 of the next 8.
  uint8_t* to = staging + pair_of_halves((group.lane & 7) + (group.lane >> 4) * 8, group.lane >> 3 & 1);
  const int half = group.lane & 1, warp_row = group.index * 64 + group.warp * 16;
  const int expert = params.tile.expert, count = params.tile.count, padded = params.tile.padded;
#pragma unroll
  for (int m = 0; m < T::m_tiles; ++m) {
    const int m_tile = params.task.m_group * T::m_tiles + m;
    if (m_tile >= g.m_tiles) break;
    const int row = warp_row + (group.lane >> 2);
    float scale[2], bias[2] = {0.0f, 0.0f};
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      scale[h] = params.row_scale[m * kMTileRows + row + 8 * h];
      const int column = m_tile * kMTileRows + row + 8 * h;
      if (g.epilogue.activation.bias != nullptr && column < g.epilogue.columns)
        bias[h] = g.epilogue.activation.bias[static_cast<int64_t>(expert) * g.epilogue.columns + column];
    }
    const int column = m_tile * kMTileRows + warp_row + half * 8;
    uint16_t* out = static_cast<uint16_t*>(g.epilogue.out) + column;
#pragma unroll
    for (int c = 0; c * kTokens < T::max_n; ++c) {
      if (c * kTokens < padded) {
        float2 f[kPieces];
#pragma unroll
        for (int j = 0; j < kPieces; ++j) f[j] = factors(c * kTokens + j * 8);
        int pair[kTokens / 16];
#pragma unroll
        for (int i = 0; i < kTokens / 16; ++i) pair[i] = params.row_pair[c * kTokens + 16 * i + (group.lane >> 1)];
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
          if (c * kTokens + token < count && column < g.epilogue.columns)
            *reinterpret_cast<uint4*>(out + static_cast<int64_t>(pair[i]) * g.epilogue.columns) = v;
        }
      }
    }
  }
}

}  // namespace sluice::sm90
