// SPDX-License-Identifier: Apache-2.0
// The GEMM of one unit (up to 32 weight rows), written once over
//   V  a vector policy (micro/<isa>.cc): 16 float lanes, one a weight row, and how 64 bytes of codes become weights;
//   C  a coding: which codes, how many k share a block scale.
//
// Every output is one chain of fused multiply-adds over k ascending (within a block-scale group; group sums are added
// in the same order), whatever the number of rows, the tile or the chunk. So a token's result does not depend on the
// batch it travels in, which speculative decoding needs to reproduce plain decoding byte for byte.
//
// Few rows: codes are decoded in registers, weights pass through the core once. Many rows: a chunk of kChunk k is
// decoded to L1 once, and register tiles run over all rows; or every tile decodes (reads_packed()). All do the same
// arithmetic in the same order.
#pragma once

#include "kernels/cpu/micro/micro.h"

#define SLUICE_INLINE static inline __attribute__((always_inline))

namespace sluice::kernels::cpu {
namespace {

inline constexpr int kChunk = 128;        // k; a multiple of every group
inline constexpr int kAheadBytes = 2048;  // how far AMX prefetches bf16 weights, which it loads as they lie

// What to prefetch while the 64 bytes at `p` of a stream of weights are read.
//
// Intel's cores (V::kPagesInTurn): as many lines, but of the next 16 KiB and page after page in turn, line 0 of four
// pages, then line 1 of the four. A core waits for memory, not for its width: it has about 12 misses under way, and
// only the prefetcher of its L2 has more, one stream a page. Four pages at once read 14.0 GB/s a core where one stream
// reads 11.7, whatever its distance (docs/kernels/cpu_grouped_gemm.md).
inline constexpr int64_t kPage = 4096;
SLUICE_INLINE const uint8_t* page_ahead(const uint8_t* p) {
  constexpr uintptr_t kWindow = 4 * kPage;
  const auto at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t line = at & (kWindow - 1);  // low 6 bits: zero, or the offset in the line
  return p - line + kWindow + ((line & 0xc0) << 6) + ((line & 0x3f00) >> 2);
}
// AMD's have more misses under way and prefetch across pages themselves: two threads of Zen 5 read 38 GB/s by pages in
// turn, 43 without any prefetch and 46 by the line 2 to 4 KiB ahead.
inline constexpr int64_t kInOrderAhead = 4096;
template <class V>
SLUICE_INLINE const uint8_t* line_ahead(const uint8_t* p) {
  return V::kPagesInTurn ? page_ahead(p) : p + kInOrderAhead;
}
template <class V>
constexpr int64_t next_line_ahead() {  // from the line to prefetch at p to the one at p + 64
  return V::kPagesInTurn ? kPage : 64;
}
SLUICE_INLINE const uint8_t* in_stream(const uint8_t* p, const Stream& s) { return p < s.end ? p : p + s.jump; }

enum class Scales { none, f32, e8m0, e4m3 };

template <int kBits_, int kGroup_, Scales kScales_>
struct Coding {
  static constexpr int kBits = kBits_;    // of a code
  static constexpr int kGroup = kGroup_;  // k that share a block scale; 0: none
  static constexpr Scales kScales = kScales_;
  static constexpr int kBlockK = 64 * 8 / (kBits * 16);  // k in 64 bytes of a panel
  static constexpr int kScaleBytes = kScales == Scales::none ? 0 : kScales == Scales::f32 ? 4 : 16;
};
using Bf16Coding = Coding<16, 0, Scales::none>;
using E4m3Coding = Coding<8, 0, Scales::none>;
using E4m3BlockCoding = Coding<8, 128, Scales::f32>;
using E4m3MxCoding = Coding<8, 32, Scales::e8m0>;
using E2m1NvCoding = Coding<4, 16, Scales::e4m3>;
using E2m1MxCoding = Coding<4, 32, Scales::e8m0>;

// Weights as packed. kPair: input values in a 32-bit broadcast (1 float, or 2 bf16).
template <class V, class C>
struct PackedSource {
  static constexpr int kBits = C::kBits;
  static constexpr int kGroup = C::kGroup;
  static constexpr int kLanes = C::kBlockK / V::kPair;
  static constexpr int kBlockK = C::kBlockK;
  static constexpr int kScaleBytes = C::kScaleBytes;
  static constexpr bool kDecoded = false;
  using Raw = typename V::template Raw<C::kBits>;
  SLUICE_INLINE Raw load(const uint8_t* p) { return V::template load_codes<C::kBits>(p); }
  template <int kLane>
  SLUICE_INLINE typename V::W lane(const Raw& raw) {
    return V::template decode<C::kBits, kLane>(raw);
  }
  SLUICE_INLINE typename V::F scale(const uint8_t* p) {
    if constexpr (C::kScales == Scales::f32)
      return V::broadcast_f32(p);
    else if constexpr (C::kScales == Scales::e8m0)
      return V::scale_e8m0(p);
    else
      return V::scale_e4m3(p);
  }
};

// Weights decoded to scratch: 64 bytes for each panel and 32-bit input step, scales as 16 floats.
template <class V, int kGroup_>
struct DecodedSource {
  static constexpr int kBits = 0;
  static constexpr int kGroup = kGroup_;
  static constexpr int kLanes = 1;
  static constexpr int kBlockK = V::kPair;
  static constexpr int kScaleBytes = 64;
  static constexpr bool kDecoded = true;
  using Raw = typename V::W;
  SLUICE_INLINE Raw load(const uint8_t* p) { return V::load_weights(p); }
  template <int kLane>
  SLUICE_INLINE typename V::W lane(const Raw& raw) {
    return raw;
  }
  SLUICE_INLINE typename V::F scale(const uint8_t* p) { return V::load(reinterpret_cast<const float*>(p)); }
};

// Whether every tile of rows reads packed weights, over all k, instead of one pass to L1 for all tiles. bf16 is taken
// as it lies; codes become pairs of bf16 by shifts and look-ups. Where dots have two of four vector ports (Zen 4 and
// 5), these run between them on the others, but storing what they make does not: a 64-byte store takes the time of 1.5
// dots from the dots.
template <class V>
constexpr bool reads_packed() {
  return V::kPair == 2;
}
inline constexpr int kDecodingRows = 6;  // by two panels: sums and outputs are 24 of 32 registers

// Of several tiles over the same packed weights: which blocks of the thread's next weights this one brings to L2.
struct Turns {
  int of = 1;           // tiles; 1: this tile has weights of its own
  int left = 0;         // blocks until its next one
  int64_t to_next = 0;  // from these weights
};

struct Tile {
  const uint8_t* codes;  // of the first of kPanels panels
  int64_t block_stride;  // bytes from a block to the same panel's next one
  const uint8_t* scales;
  int64_t scale_stride;
  int64_t k;                    // of this chunk
  const uint8_t* const* x;      // [kRows] input rows at the chunk's first k
  const float* const* x_group;  // [kRows] at the chunk's first group
  float* out;                   // [kRows][kTileCols]
  bool first;                   // start from zero, not from `out`
  Stream stream;
  Turns turns;                       // packed source
  const uint8_t *ahead, *ahead_end;  // decoded source: packed lines whose line_ahead() to bring to L2 meanwhile
};

inline constexpr int kAheadSteps = 4;     // a decoded source brings in a line every so many steps
inline constexpr int kScalesAhead = 512;  // bytes
inline constexpr int kL2Ahead = 1024;     // bytes: how far weights that lie in L2 are brought to L1

// One block of packed codes is being read: kPanels lines.
template <class V, int kPanels>
SLUICE_INLINE void prefetch_block(const uint8_t* codes, const Stream& stream) {
  const uint8_t* ahead = line_ahead<V>(codes);
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_near(in_stream(ahead + p * next_line_ahead<V>(), stream));
}

// The same for one of several tiles over these weights, which the previous unit's tiles brought to L2. So memory is
// read all the time and not during the first tile only.
template <class V, int kPanels>
SLUICE_INLINE void prefetch_shared_block(const uint8_t* codes, Turns& turns) {
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_near(codes + kL2Ahead + 64 * p);
  if (--turns.left >= 0) return;
  turns.left = turns.of - 1;
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_far(codes + turns.to_next + 64 * p);
}

template <class V, class S, int kRows, int kPanels, int kLane>
SLUICE_INLINE void lanes(typename V::F (&sum)[kRows][kPanels], const typename S::Raw (&raw)[kPanels],
                         const uint8_t* const (&x)[kRows], int64_t at) {
  if constexpr (kLane < S::kLanes) {
    typename V::W w[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) w[p] = S::template lane<kLane>(raw[p]);
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m) {
      const typename V::X b = V::broadcast_x(x[m] + at + 4 * kLane);
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) sum[m][p] = V::multiply_add(w[p], b, sum[m][p]);
    }
    lanes<V, S, kRows, kPanels, kLane + 1>(sum, raw, x, at);
  }
}

template <class V, class S, int kRows, int kPanels>
static void run_tile(const Tile& t) {
  using F = typename V::F;
  // Grouped codings need two sums a output; beyond a few rows the long one lives in `out` (L1) between groups.
  constexpr bool kInRegisters = S::kGroup == 0 || kRows * kPanels <= (reads_packed<V>() ? 12 : 8);
  const uint8_t* x[kRows];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m) x[m] = t.x[m];
  F acc[kRows][kPanels];
#pragma GCC unroll 16
  for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      if (kInRegisters) acc[m][p] = t.first ? V::zero() : V::load(t.out + m * kTileCols + 16 * p);
      if (!kInRegisters && t.first) V::store(t.out + m * kTileCols + 16 * p, V::zero());
    }

  const uint8_t* codes = t.codes;
  const uint8_t* ahead = t.ahead;
  [[maybe_unused]] Turns turns = t.turns;  // a copy: `t` may change with every store
  int64_t at = 0;
  const auto block = [&](F(&sum)[kRows][kPanels]) __attribute__((always_inline)) {
    typename S::Raw raw[kPanels];
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) {
      raw[p] = S::load(codes + 64 * p);
    }
    if constexpr (!S::kDecoded) {
      // Not 4-bit weights: they are read in a third of the time of their dots, and took 1.1 of the time at 8 rows.
      if (reads_packed<V>() && S::kBits > 4 && turns.of > 1)
        prefetch_shared_block<V, kPanels>(codes, turns);
      else
        prefetch_block<V, kPanels>(codes, t.stream);
    }
    lanes<V, S, kRows, kPanels, 0>(sum, raw, x, at);
    codes += t.block_stride;
    at += 4 * S::kLanes;
  };

  const auto bring_next = [&]() __attribute__((always_inline)) {
    if (S::kDecoded && ahead < t.ahead_end) {
      V::prefetch_far(in_stream(line_ahead<V>(ahead), t.stream));
      ahead += 64;
    }
  };

  const int64_t blocks = t.k / S::kBlockK;
  if constexpr (S::kGroup == 0) {
    constexpr int kUnroll = S::kDecoded ? kAheadSteps : 2;  // K' and chunks are multiples of 32
    for (int64_t b = 0; b < blocks; b += kUnroll) {
      bring_next();
#pragma GCC unroll 4
      for (int u = 0; u < kUnroll; ++u) block(acc);
    }
  } else {
    constexpr int64_t kGroupBlocks = S::kGroup / S::kBlockK;
    const uint8_t* scales = t.scales;
    for (int64_t b = 0, g = 0; b < blocks; b += kGroupBlocks, ++g) {
      F part[kRows][kPanels];
#pragma GCC unroll 16
      for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
        for (int p = 0; p < kPanels; ++p) part[m][p] = V::zero();
      const int64_t end = S::kGroup < kChunk || blocks - b > kGroupBlocks ? kGroupBlocks : blocks - b;
      if constexpr (S::kDecoded) {
        for (int64_t i = 0; i < end; i += kAheadSteps) {
          bring_next();
#pragma GCC unroll 4
          for (int u = 0; u < kAheadSteps; ++u) block(part);
        }
      } else {
        V::prefetch_near(scales + kScalesAhead);
        if constexpr (reads_packed<V>() && S::kGroup < kChunk) {
#pragma GCC unroll 4
          for (int64_t i = 0; i < kGroupBlocks; ++i) block(part);
        } else {
#pragma GCC unroll 1
          for (int64_t i = 0; i < end; ++i) block(part);
        }
      }
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) {
        const F ws = S::scale(scales + p * S::kScaleBytes);
#pragma GCC unroll 16
        for (int m = 0; m < kRows; ++m) {
          F s = ws;
          if constexpr (S::kGroup == 128) s = V::multiply(ws, V::broadcast_f32(t.x_group[m] + g));
          if constexpr (kInRegisters) {
            acc[m][p] = V::multiply_add_f32(part[m][p], s, acc[m][p]);
          } else {
            float* out = t.out + m * kTileCols + 16 * p;
            V::store(out, V::multiply_add_f32(part[m][p], s, V::load(out)));
          }
        }
      }
      scales += t.scale_stride;
    }
  }
  if constexpr (kInRegisters) {
#pragma GCC unroll 16
    for (int m = 0; m < kRows; ++m)
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p) V::store(t.out + m * kTileCols + 16 * p, acc[m][p]);
  }
}

// Rows of a register tile by kPanels panels.
template <class V, int kPanels>
constexpr int tile_rows() {
  return kPanels > V::kTilePanels ? V::kWideRows : V::kTileRows;
}

template <class V, class S, int kPanels>
static void run_rows(const Tile& t, int rows) {
  constexpr int kMax = tile_rows<V, kPanels>();
  static_assert(kMax <= 8);
  switch (rows) {
#define SLUICE_CASE(n)                                             \
  case n:                                                          \
    if constexpr (n <= kMax) return run_tile<V, S, n, kPanels>(t); \
    break;
    SLUICE_CASE(1)
    SLUICE_CASE(2)
    SLUICE_CASE(3)
    SLUICE_CASE(4)
    SLUICE_CASE(5)
    SLUICE_CASE(6)
    SLUICE_CASE(7)
    SLUICE_CASE(8)
#undef SLUICE_CASE
    default:
      break;
  }
}

// Decodes k codes of kPanels panels; returns nothing but the filled scratch: weights, then scales.
template <class V, class C, int kPanels, int kLane = 0>
SLUICE_INLINE void decode_lanes(const typename PackedSource<V, C>::Raw& raw, uint8_t* out) {
  using S = PackedSource<V, C>;
  if constexpr (kLane < S::kLanes) {
    V::store_weights(out + 64 * kPanels * kLane, S::template lane<kLane>(raw));
    decode_lanes<V, C, kPanels, kLane + 1>(raw, out);
  }
}

template <class V, class C, int kPanels>
static void decode_chunk(const Tile& t, uint8_t* weights, uint8_t* scales) {
  using S = PackedSource<V, C>;
  const uint8_t* codes = t.codes;
  for (int64_t b = 0; b < t.k / C::kBlockK; ++b) {
#pragma GCC unroll 8
    for (int p = 0; p < kPanels; ++p) decode_lanes<V, C, kPanels>(S::load(codes + 64 * p), weights + 64 * p);
    codes += t.block_stride;
    weights += 64 * kPanels * S::kLanes;
  }
  if constexpr (C::kGroup > 0) {
    const int64_t groups = (t.k + C::kGroup - 1) / C::kGroup;
    for (int64_t g = 0; g < groups; ++g)
#pragma GCC unroll 8
      for (int p = 0; p < kPanels; ++p)
        V::store(reinterpret_cast<float*>(scales + (g * kPanels + p) * 64),
                 S::scale(t.scales + g * t.scale_stride + p * C::kScaleBytes));
  }
}

// Rows [0, m) in tiles of nearly equal size, at most `most`: 9 rows are 5 + 4, not 8 + 1.
template <class V>
struct RowTiles {
  int m, tiles;
  explicit RowTiles(int rows, int most = V::kTileRows) : m(rows), tiles((rows + most - 1) / most) {}
  int begin(int i) const { return static_cast<int>(static_cast<int64_t>(m) * i / tiles); }
};

// All k of a unit for one tile of rows after the other; `next`: what the thread reads then.
template <class V, class C, int kPanels>
static void run_packed_tiles(const Tile& unit, int m, const uint8_t* next) {
  const RowTiles<V> tiles(m, C::kBits == 16 ? V::kTileRows : kDecodingRows);
  for (int i = 0; i < tiles.tiles; ++i) {
    const int begin = tiles.begin(i);
    Tile tile = unit;
    tile.turns = {tiles.tiles, i, next - unit.codes};
    tile.x += begin;
    tile.x_group += begin;
    tile.out += static_cast<int64_t>(begin) * kTileCols;
    run_rows<V, PackedSource<V, C>, kPanels>(tile, tiles.begin(i + 1) - begin);
  }
}

// A chunk of k after the other is decoded to `scratch`, and all tiles of rows run over it.
template <class V, class C, int kPanels>
static void run_decoded_tiles(const Tile& unit, int m, uint8_t* scratch) {
  static_assert(V::kPair == 1, "x advances by a float for each k");
  const RowTiles<V> tiles(m);
  uint8_t* const weights = scratch;
  uint8_t* const scales = scratch + kChunk * 64 * kPanels;
  for (int64_t k0 = 0; k0 < unit.k; k0 += kChunk) {
    const int64_t k = unit.k - k0 < kChunk ? unit.k - k0 : kChunk;
    Tile chunk = unit;
    chunk.codes = unit.codes + k0 / C::kBlockK * unit.block_stride;
    if constexpr (C::kGroup > 0) chunk.scales = unit.scales + k0 / C::kGroup * unit.scale_stride;
    chunk.k = k;
    chunk.first = k0 == 0;
    decode_chunk<V, C, kPanels>(chunk, weights, scales);
    chunk.ahead = chunk.codes;
    chunk.ahead_end = chunk.codes + k / C::kBlockK * unit.block_stride;
    chunk.codes = weights;
    chunk.block_stride = 64 * kPanels;
    chunk.scales = scales;
    chunk.scale_stride = 64 * kPanels;
    for (int i = 0; i < tiles.tiles; ++i) {
      const int begin = tiles.begin(i), end = tiles.begin(i + 1);
      const uint8_t* rows[8];
      const float* groups[8];
      for (int r = begin; r < end; ++r) {
        rows[r - begin] = unit.x[r] + k0 * 4;
        groups[r - begin] = C::kGroup == 128 ? unit.x_group[r] + k0 / 128 : nullptr;
      }
      Tile tile = chunk;
      tile.x = rows;
      tile.x_group = groups;
      tile.out = unit.out + static_cast<int64_t>(begin) * kTileCols;
      run_rows<V, DecodedSource<V, C::kGroup>, kPanels>(tile, end - begin);
      chunk.ahead += k / kAheadSteps * 64;  // this row tile's share
    }
  }
}

template <class V, class C, int kPanels>
static void run_unit(const GemmArgs& a, int panel) {
  alignas(64) const uint8_t* x[kMaxRows];
  const float* x_group[kMaxRows];
  for (int i = 0; i < a.m; ++i) {
    const int64_t row = a.x_rows != nullptr ? a.x_rows[i] : i;
    x[i] = a.x + row * a.x_stride;
    x_group[i] = C::kGroup == 128 ? a.x_group + row * a.x_group_stride : nullptr;
  }
  Tile t{};
  t.codes = a.codes + 64 * panel;
  t.block_stride = 64 * a.panels;
  t.scales = a.scales + panel * C::kScaleBytes;
  t.scale_stride = static_cast<int64_t>(a.panels) * C::kScaleBytes;
  t.x = x;
  t.x_group = x_group;
  t.out = a.out + 16 * panel;
  t.first = true;
  t.k = a.k;
  t.stream = a.stream;
  if constexpr (reads_packed<V>()) {
    run_packed_tiles<V, C, kPanels>(t, a.m, a.next_codes + 64 * panel);
  } else {
    // Decoding 4-bit codes in a tile of all rows leaves too few registers: 7 and 8 rows gain by a pass of their own
    // (AVX-512, one core: 80 -> 115 GFLOP/s).
    constexpr int kInRegisters = C::kBits == 4 && V::kTileRows > 6 ? 6 : tile_rows<V, kPanels>();
    if (a.m <= kInRegisters) return run_rows<V, PackedSource<V, C>, kPanels>(t, a.m);
    // gemm() asks for wide tiles for few rows only.
    if constexpr (kPanels <= V::kTilePanels) run_decoded_tiles<V, C, kPanels>(t, a.m, a.scratch);
  }
}

// For scale_outputs(): no stream passes through these lines, and it would wait for memory (2.5 % of the time of six
// rows of MXFP4).
template <class V>
SLUICE_INLINE void prefetch_row_scales(const GemmArgs& a) {
  for (int p = 0; p < a.panels * a.units; ++p) V::prefetch_near(reinterpret_cast<const uint8_t*>(a.row_scale + 16 * p));
}

template <class V>
SLUICE_INLINE void scale_outputs(const GemmArgs& a) {
  const float* row_scale = a.row_scale;
  float* unit = a.out;
  for (int u = 0; u < a.units; ++u, row_scale += 16 * a.panels, unit += kUnitOut)
    for (int i = 0; i < a.m; ++i) {
      const int64_t row = a.x_rows != nullptr ? a.x_rows[i] : i;
      for (int p = 0; p < a.panels; ++p) {
        float* out = unit + i * kTileCols + 16 * p;
        typename V::F y = V::multiply(V::load(out), V::load(row_scale + 16 * p));
        if (a.x_scale != nullptr) y = V::multiply(y, V::broadcast_f32(a.x_scale + row));
        V::store(out, y);
      }
    }
}

template <class V, class C>
static void gemm(const GemmArgs& a) {
  prefetch_row_scales<V>(a);
  int panel = 0;
  // One panel at a time leaves too few chains of additions in flight when there are few rows.
  if constexpr (V::kTilePanels == 1 && V::kWideRows > 0)
    if (a.m <= V::kWideRows && a.panels == 2) {
      run_unit<V, C, 2>(a, 0);
      panel = 2;
    }
  for (; panel + V::kTilePanels <= a.panels; panel += V::kTilePanels) run_unit<V, C, V::kTilePanels>(a, panel);
  if constexpr (V::kTilePanels > 1)
    for (; panel < a.panels; ++panel) run_unit<V, C, 1>(a, panel);
  scale_outputs<V>(a);
}

}  // namespace
}  // namespace sluice::kernels::cpu
