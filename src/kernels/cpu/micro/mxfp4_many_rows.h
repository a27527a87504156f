// SPDX-License-Identifier: Apache-2.0
// The MXFP4 integer kernel (mxfp4_dot.h) for many input rows: a chunk of weights is decoded to L1 once, for all rows.
#pragma once

#include "kernels/cpu/micro/mxfp4_fixed_point.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kFixedTileM = 6;  // input rows of a register tile. By 4 panels, it has 10 loads for 24 dots.

// Where the decoded weights of a chunk lie in scratch memory. A load waits for every earlier store of the same low 12
// address bits that has not left the core, and about 56 stores are in flight. Stores from front to back would cover
// most of a page, and decoding took a third longer. So the decoded weights of an N-tile advance through a page as fast
// as its codes, 512 bytes per 32 k, and start kStoreDistance bytes before the codes, so that stores stay behind loads.
// An N-tile takes three pages: the bytes [k / 4][panels][64] lie in two, at the same offsets; the bias corrections
// [panels][16] and the scales [panels][16] lie in the third.
template <int kPanels>
struct DecodedChunk {
  static constexpr int kPanelsPerNTile = kPanels < 2 ? kPanels : 2, kNTiles = kPanels / kPanelsPerNTile;
  static constexpr int64_t kBlockBytes = 256 * kPanelsPerNTile;  // per 32 k, in each page, and of codes
  static constexpr int64_t kNTileBytes = 3 * kPage, kStoreDistance = 768;
  uint8_t* n_tiles[kNTiles];
  // `codes`: those of the first chunk. With two panels, the following chunks' codes are whole pages away.
  DecodedChunk(uint8_t* scratch, const uint8_t* codes, int64_t codes_stride) {
    for (int t = 0; t < kNTiles; ++t) {
      const auto at = reinterpret_cast<uintptr_t>(codes + t * codes_stride) - kStoreDistance;
      n_tiles[t] = scratch + t * (kNTileBytes + kPage) + ((at - reinterpret_cast<uintptr_t>(scratch)) & (kPage - 64));
    }
  }
  // Block b (32 k) of panel p. The offsets of its parts follow.
  uint8_t* block(int p, int64_t b) const { return n_tiles[p / 2] + b * kBlockBytes + p % 2 * 64; }
  static constexpr int64_t scratch_bytes() { return kNTiles * (kNTileBytes + kPage); }
};
constexpr int64_t quad_offset(int panels, int q) { return q / 4 * kPage + q % 4 * 64 * (panels < 2 ? panels : 2); }
constexpr int64_t kCorrectionsOffset = 2 * kPage;
constexpr int64_t scales_offset(int panels) { return 2 * kPage + 64 * (panels < 2 ? panels : 2); }

// The weights of the thread's next call, which the tiles of this call prefetch to L2, interleaved over four pages as
// interleaved_ahead() does.
struct NextWeights {
  const uint8_t *codes, *scales;
  int64_t at, end;       // bytes of codes
  int groups_per_block;  // groups of four lines that a tile prefetches during one block of 32 k
};
SLUICE_INLINE bool has_group(const NextWeights& next, int i) { return i < next.groups_per_block && next.at < next.end; }
// The first of the next four lines; the others follow at a distance of one page each.
SLUICE_INLINE const uint8_t* take_group(NextWeights& next) {
  const int64_t line = next.at & (4 * kPage - 1);
  const uint8_t* p = next.codes + next.at - line + (line >> 2);
  if (next.at % 1024 == 0) Avx512::prefetch_far(next.scales + next.at / 16);
  next.at += 256;
  return p;
}

// The register tile: kM input rows by kPanels panels over one chunk of k. first_chunk: the sums start at zero.
template <int kPlanes, int kM, int kPanels>
static void run_fixed_point_tile(const DecodedChunk<kPanels>& weights, int64_t k, const PlanePointers* x, float* out,
                                 bool first_chunk, NextWeights& next) {
  constexpr bool kInRegisters = kM * kPanels <= 12;
  __m512 acc[kM][kPanels];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      float* to = out + m * kNTile + out_of(p);
      if (kInRegisters) acc[m][p] = first_chunk ? _mm512_setzero_ps() : _mm512_loadu_ps(to);
      if (!kInRegisters && first_chunk) _mm512_storeu_ps(to, _mm512_setzero_ps());
    }
  const DecodedChunk<kPanels> from = weights;  // a copy, because any store might change `weights`
  PlanePointers row[kM];
#pragma GCC unroll 8
  for (int m = 0; m < kM; ++m) row[m] = x[m];
  for (int64_t b = 0; b < k / kFixedBlockK; ++b) {
    __m512i sum[kM][kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) {
      const __m512i start = _mm512_load_si512(from.block(p, b) + kCorrectionsOffset);
#pragma GCC unroll 8
      for (int m = 0; m < kM; ++m) sum[m][p] = start;
    }
#pragma GCC unroll 3
    for (int plane = 0; plane < kPlanes; ++plane) {
      if (plane > 0) {
#pragma GCC unroll 8
        for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) sum[m][p] = _mm512_slli_epi32(sum[m][p], 8);
      }
#pragma GCC unroll 1
      for (int half = 0; half < 2; ++half) {
        const uint8_t* group = has_group(next, 2 * plane + half) ? take_group(next) : nullptr;
#pragma GCC unroll 4
        for (int i = 0; i < kQuadsPerBlock / 2; ++i) {
          const int q = kQuadsPerBlock / 2 * half + i;
          __m512i w[kPanels];
#pragma GCC unroll 4
          for (int p = 0; p < kPanels; ++p) w[p] = keep(_mm512_load_si512(from.block(p, b) + quad_offset(kPanels, q)));
          if (group != nullptr) Avx512::prefetch_far(group + i * kPage);
#pragma GCC unroll 8
          for (int m = 0; m < kM; ++m) {
            const __m512i v =
                broadcast_i32((plane < 2 ? row[m].upper + 64 * b + 32 * plane : row[m].low + 32 * b) + 4 * q);
#pragma GCC unroll 4
            for (int p = 0; p < kPanels; ++p) sum[m][p] = dot_bytes(sum[m][p], v, w[p]);
          }
        }
      }
    }
    __m512i ws[kPanels];
#pragma GCC unroll 4
    for (int p = 0; p < kPanels; ++p) ws[p] = keep(_mm512_load_si512(from.block(p, b) + scales_offset(kPanels)));
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m) {
      const __m512 xs = _mm512_set1_ps(row[m].scales[2 * b + kPlanes - 2]);
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) {
        const __m512 part = _mm512_mul_ps(_mm512_cvtepi32_ps(sum[m][p]), xs);
        if constexpr (kInRegisters) {
          acc[m][p] = _mm512_fmadd_ps(part, _mm512_castsi512_ps(ws[p]), acc[m][p]);
        } else {
          float* to = out + m * kNTile + out_of(p);
          _mm512_storeu_ps(to, _mm512_fmadd_ps(part, _mm512_castsi512_ps(ws[p]), _mm512_loadu_ps(to)));
        }
      }
    }
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 8
    for (int m = 0; m < kM; ++m)
#pragma GCC unroll 4
      for (int p = 0; p < kPanels; ++p) _mm512_storeu_ps(out + m * kNTile + out_of(p), acc[m][p]);
  }
}

// Runs the tile with kM = rows.
template <int kPlanes, int kPanels>
static void dispatch_fixed_m(const DecodedChunk<kPanels>& weights, int64_t k, const PlanePointers* x, int rows,
                             float* out, bool first_chunk, NextWeights& next) {
  using Run = void (*)(const DecodedChunk<kPanels>&, int64_t, const PlanePointers*, float*, bool, NextWeights&);
  static constexpr Run kRun[kFixedTileM] = {
      run_fixed_point_tile<kPlanes, 1, kPanels>, run_fixed_point_tile<kPlanes, 2, kPanels>,
      run_fixed_point_tile<kPlanes, 3, kPanels>, run_fixed_point_tile<kPlanes, 4, kPanels>,
      run_fixed_point_tile<kPlanes, 5, kPanels>, run_fixed_point_tile<kPlanes, 6, kPanels>};
  kRun[rows - 1](weights, k, x, out, first_chunk, next);
}

// Decodes the codes [k0, k0 + k) of kPanels panels: of one N-tile, or of two that follow each other.
template <int kPanels>
static void decode_fixed_point_chunk(const GemmArgs& a, int64_t k0, int64_t k, const DecodedChunk<kPanels>& out) {
  constexpr int kPanelsPerNTile = DecodedChunk<kPanels>::kPanelsPerNTile;
#pragma GCC unroll 2
  for (int t = 0; t < DecodedChunk<kPanels>::kNTiles; ++t) {
    const uint8_t* codes = a.w.codes + t * a.w.codes_stride + k0 / 8 * 64 * kPanelsPerNTile;
    const uint8_t* scales = a.w.scales + t * a.w.scales_stride + k0 / kFixedBlockK * 16 * kPanelsPerNTile;
    uint8_t* const n_tile = out.block(2 * t, 0);
    for (int64_t b = 0; b < k / kFixedBlockK; ++b)
#pragma GCC unroll 2
      for (int i = 0; i < kPanelsPerNTile; ++i) {
        uint8_t* to = n_tile + b * DecodedChunk<kPanels>::kBlockBytes + 64 * i;
        __m512i weight_sum = _mm512_setzero_si512();
#pragma GCC unroll 4
        for (int j = 0; j < 4; ++j) {
          const WeightQuads q =
              decode_quads(keep(_mm512_loadu_si512(codes + 64 * ((4 * b + j) * kPanelsPerNTile + i))));
          weight_sum = _mm512_add_epi8(weight_sum, _mm512_add_epi8(q.w[0], q.w[1]));  // at most 96 per byte
          _mm512_store_si512(to + quad_offset(kPanels, 2 * j), q.w[0]);
          _mm512_store_si512(to + quad_offset(kPanels, 2 * j + 1), q.w[1]);
        }
        _mm512_store_si512(to + kCorrectionsOffset,
                           bias_correction(dot_bytes(_mm512_setzero_si512(), _mm512_set1_epi8(1), weight_sum)));
        _mm512_store_ps(to + scales_offset(kPanels), Avx512::scale_e8m0(scales + 16 * (b * kPanelsPerNTile + i)));
      }
  }
}

// kPanels panels: one N-tile, or two. x: [a.x.m] packed rows.
template <int kPanels>
static void run_many_rows(const GemmArgs& a, const uint8_t* const* x) {
  static_assert(DecodedChunk<kPanels>::scratch_bytes() <= kScratchBytes);
  const FixedPointRow at(a.w.k);
  const DecodedChunk<kPanels> weights(a.scratch, a.w.codes, a.w.codes_stride);
  const int tiles = (a.x.m + kFixedTileM - 1) / kFixedTileM;
  const int64_t bytes = a.w.k / 8 * 64 * kPanels;
  NextWeights next{a.task.next_codes, a.task.next_scales, 0, bytes, (kPanels + tiles - 1) / tiles};
  for (int64_t k0 = 0; k0 < a.w.k; k0 += kFixedChunkK) {
    const int64_t k = a.w.k - k0 < kFixedChunkK ? a.w.k - k0 : kFixedChunkK;
    decode_fixed_point_chunk<kPanels>(a, k0, k, weights);
    for (int i = 0; i < tiles; ++i) {
      const int begin = static_cast<int>(int64_t{a.x.m} * i / tiles),
                end = static_cast<int>(int64_t{a.x.m} * (i + 1) / tiles);
      PlanePointers rows[kFixedTileM];
      int planes = 2;
      for (int r = begin; r < end; ++r) {
        rows[r - begin] = planes_at(at, x[r], k0);
        planes = num_planes(at, x[r]) > planes ? 3 : planes;
      }
      float* out = a.out + static_cast<int64_t>(begin) * kNTile;
      if (planes == 2)
        dispatch_fixed_m<2, kPanels>(weights, k, rows, end - begin, out, k0 == 0, next);
      else
        dispatch_fixed_m<3, kPanels>(weights, k, rows, end - begin, out, k0 == 0, next);
      for (int r = begin; r < end; ++r) {
        add_outliers<kPanels>(
            OutlierRange(at, x[r], k0), a.out + static_cast<int64_t>(r) * kNTile,
            [&](uint32_t j, int p) __attribute__((always_inline)) {
              const int quad = static_cast<int>(j % kFixedBlockK / 8 * 2 + quad_of(j % 8));
              const __m512i w = _mm512_load_si512(weights.block(p, j / kFixedBlockK) + quad_offset(kPanels, quad));
              return dot_bytes(_mm512_setzero_si512(), select_byte(j % 8), w);
            },
            [&](uint32_t block, int p) __attribute__((always_inline)) {
              return _mm512_load_ps(weights.block(p, block) + scales_offset(kPanels));
            });
      }
    }
  }
}

}  // namespace
}  // namespace sluice::kernels::cpu
