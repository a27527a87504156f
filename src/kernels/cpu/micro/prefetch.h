// SPDX-License-Identifier: Apache-2.0
// Which lines to prefetch while packed weights are read. V is a vector policy (vector_policy.h).
//
// V::prefetch_near prefetches to L1, V::prefetch_far to L2.
#pragma once

#include "kernels/cpu/micro/gemm_args.h"
#include "kernels/cpu/micro/inline.h"

namespace sluice::kernels::cpu {
namespace {

inline constexpr int64_t kPage = 4096;
inline constexpr int kScalesPrefetchBytes = 512;        // distance, for block scales
inline constexpr int kL2ToL1Bytes = 1024;               // distance, for weights that lie in L2
inline constexpr int kBf16PrefetchBytes = 2048;         // distance, for bf16 weights of AMX, which are not decoded
inline constexpr int64_t kInOrderPrefetchBytes = 4096;  // distance, where prefetching goes in order

// The line to prefetch while the line at `p` is read, interleaved over pages: while one 16 KiB window is read, the next
// window is prefetched as line 0 of its four pages, then line 1 of the four, and so on. For Intel's cores. A core waits
// for latency, not for bandwidth: it has about 12 misses in flight, and only the prefetcher of its L2 has more, with
// one stream per page. Prefetching from four pages at once reads 14.0 GB/s per core. Prefetching from one page reads
// 11.7 GB/s at any distance (docs/kernels/cpu_grouped_gemm.md).
SLUICE_INLINE const uint8_t* interleaved_ahead(const uint8_t* p) {
  constexpr uintptr_t kWindow = 4 * kPage;
  const auto at = reinterpret_cast<uintptr_t>(p);
  const uintptr_t line = at & (kWindow - 1);  // the low 6 bits are zero, or the offset within the line
  return p - line + kWindow + ((line & 0xc0) << 6) + ((line & 0x3f00) >> 2);
}

// The same by the policy. AMD's cores prefetch in order: they have more misses in flight, and their own prefetchers
// cross pages. Two threads of Zen 5 read 38 GB/s interleaved, 43 without prefetching, and 46 with the line 2 to 4 KiB
// ahead.
template <class V>
SLUICE_INLINE const uint8_t* line_ahead(const uint8_t* p) {
  return V::kInterleavedPrefetch ? interleaved_ahead(p) : p + kInOrderPrefetchBytes;
}
// line_ahead(p + 64) - line_ahead(p), where both lines are of one 256-byte block.
template <class V>
constexpr int64_t next_line_ahead() {
  return V::kInterleavedPrefetch ? kPage : 64;
}

// `p`, or the address in the thread's next task if `p` is past the end of this one.
SLUICE_INLINE const uint8_t* stream_address(const uint8_t* p, const PrefetchStream& s) {
  return p < s.end ? p : p + s.jump;
}

// To call for each block of packed codes that is read: kPanels lines.
template <class V, int kPanels>
SLUICE_INLINE void prefetch_block(const uint8_t* codes, const PrefetchStream& stream) {
  const uint8_t* ahead = line_ahead<V>(codes);
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_near(stream_address(ahead + p * next_line_ahead<V>(), stream));
}

// Several register tiles read the same weights, one tile after the other. Each of them prefetches every num_tiles-th
// block of the next N-tile's weights to L2, so that memory is read during all tiles and not during the first one only.
struct SharedPrefetch {
  int num_tiles = 1;       // 1: not shared, prefetch_block() is used
  int blocks_to_skip = 0;  // before this tile's next block
  int64_t to_next = 0;     // bytes from these weights to the next N-tile's
};

// prefetch_block() for a SharedPrefetch. This N-tile's weights already lie in L2 and are prefetched from there to L1.
template <class V, int kPanels>
SLUICE_INLINE void prefetch_shared_block(const uint8_t* codes, SharedPrefetch& shared) {
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_near(codes + kL2ToL1Bytes + 64 * p);
  if (--shared.blocks_to_skip >= 0) return;
  shared.blocks_to_skip = shared.num_tiles - 1;
#pragma GCC unroll 2
  for (int p = 0; p < kPanels; ++p) V::prefetch_far(codes + shared.to_next + 64 * p);
}

// For scale_outputs(). No prefetch stream covers the row scales, and waiting for them took 2.5 % of the time of six
// rows of MXFP4.
template <class V>
SLUICE_INLINE void prefetch_row_scales(const NTileWeights& w) {
  for (int p = 0; p < w.panels * w.n_tiles; ++p)
    V::prefetch_near(reinterpret_cast<const uint8_t*>(w.row_scale + kPanelN * p));
}

}  // namespace
}  // namespace sluice::kernels::cpu
