// SPDX-License-Identifier: Apache-2.0
// Which products the kernel for a batch of rows takes, and how it cuts them: pure functions, tested on the host.
#pragma once

#include <cstdint>

#include "kernels/sm90/batch_rows/chain_ring.h"
#include "kernels/sm90/few_rows/heuristic.h"  // k_blocks_per_copy

namespace sluice::sm90 {

// The most columns that one wgmma has, so that all rows can be one tile; more rows take the grouped GEMM, but for
// deterministic_parts().
inline constexpr int kMaxBatchRows = 256;
inline constexpr int kMaxBatchCluster = 8;  // blocks
// Clusters of seven blocks are slow where they fill the device, though it reports that all run at once: 32 of them take
// 22.5 us, of six blocks 17.9 (NVFP4, [4096, 7168], 32 rows, H200).
inline constexpr int kSlowParts = 7;
struct BatchRowsChoice {
  int tile = 0;     // rows of x that a block multiplies, of kBatchTiles; 0: the kernel does not run the call
  int blocks = 1;   // per multiprocessor, of kBatchTiles
  int parts = 1;    // of K: blocks of a cluster that add their sums
  int m_parts = 1;  // tasks of an M-tile: 1, 2 or 4; with several parts of K of a router alone. No sum depends on it
  // Several k-blocks share a stage (chain_ring.h): one of kChainTiles and of kChainMParts, one block per multiprocessor
  // and one part of K, whose sums are those of any other choice of one part.
  bool chain = false;
  // Of a chain of up to kMostSharedChainRows: blocks begin beside those of the kernel ahead.
  bool leaves_room = false;
};
inline bool operator==(const BatchRowsChoice& a, const BatchRowsChoice& b) {
  return a.tile == b.tile && a.blocks == b.blocks && a.parts == b.parts && a.m_parts == b.m_parts &&
         a.chain == b.chain && a.leaves_room == b.leaves_room;
}

// Of a chain.
constexpr ChainRing ring_of(WeightOperand op, const BatchRowsChoice& c) {
  return chain_ring(op, c.tile, c.m_parts, c.leaves_room ? kSharedChainSmem : kMostChainSmem);
}

struct BatchTileSize {
  int rows, blocks;
};
// Of equal costs the first one is taken. One block per multiprocessor comes first: blocks of two may fill half of the
// multiprocessors (116 tasks of 64 rows: 18.6 us with one, 29.7 with two). A step that is padded to be replayed from a
// graph, by less than 16 rows, has the same bits as one without padding: all rows are multiples of 16.
inline constexpr BatchTileSize kBatchTiles[] = {{32, 2}, {64, 1}, {64, 2}, {128, 1}, {256, 1}};
// Whether an operand has kernels of a tile. FP8 block that is decoded keeps the sums of 128 of K beside those of all of
// K and the codes: 256 rows are 256 sums per thread, and two blocks of 64 rows have 96 registers each.
HD constexpr bool has_batch_tile(WeightOperand o, BatchTileSize tile) {
  return o != WeightOperand::fp8_block_f32 || tile.rows <= (tile.blocks == 1 ? 128 : 32);
}
// Parts of K whose sums fit where the stages were.
HD constexpr int batch_rows_most_parts(WeightOperand o, int tile) {
  return tile <= 128 ? kMaxBatchCluster : decodes(o) || block_scaled(o) ? 2 : 3;
}

// What a device runs at the same time.
struct BatchRoom {
  int multiprocessors = 0;
  int clusters[2][kMaxBatchCluster] = {};  // of 1, 2, ... blocks, with one and with two blocks per multiprocessor
};

// Whether the kernel can run it.
bool batch_rows_possible(const WeightShape& shape, const BatchRowsChoice& choice);
// Microseconds that the choice is expected to take.
double batch_rows_us(const WeightShape& shape, int64_t rows, const BatchRoom& room, const BatchRowsChoice& choice);
// The quickest by that, of those with as many parts of K; 0: with any number. Up to kMostChainRows rows with one part
// are a chain, where the operand has chains. With any number of parts, up to kFewChainRows rows are one too, unless the
// matrix has few M-tiles or parts are expected to be quicker for kFewChainRows rows. That does not depend on the number
// of rows, so a row has the same bits beside any others up to kFewChainRows. That is so up to kMostChainRows, if the
// matrix has at most kMostFullChainMTiles M-tiles (FP8: kMostFullFp8ChainMTiles). Short and long routers have rules of
// their own (chain_ring.h).
BatchRowsChoice choose_batch_rows(const WeightShape& shape, int64_t rows, const BatchRoom& room, int k_parts);

// Parts of K of a deterministic product, whatever the rows: several only if the matrix is narrow, as a router is, so
// that this kernel takes all of its calls. A router of 128 experts (K = 2048) takes 6.6 us with one part, 3.6 with
// eight.
int deterministic_parts(const WeightShape& shape);

}  // namespace sluice::sm90
