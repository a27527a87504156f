// SPDX-License-Identifier: Apache-2.0
// Numbers that were measured and not derived: where one way becomes quicker than another on an H200. Each says what it
// decides; the measurements are in bench/results/moe_h200.md and in the page of docs/kernels that is named.
#pragma once

#include <cstdint>

namespace sluice::sm90::tuning {

// ---- grouped GEMM: tile and split-K (docs/kernels/sm90_grouped_gemm.md) ----------------------------------------

// A tile holds the rows that an expert gets at the mean plus this many standard deviations, which is enough for 19 of
// 20 experts. An expert with more rows takes two narrow tiles. With 4 deviations NVFP4, Nemotron-3-Nano, 512 and 2048
// tokens took 351 and 660 us instead of 316 and 576.
inline constexpr double kExpectedRowsDeviations = 1.65;

// A wider tile is not taken where its tasks would fill less than this share of the blocks (one small matrix, 128
// tokens: 120 us in a wide tile with split-K, 26 in a narrow one; docs/kernels/sm90_dense.md).
inline constexpr double kMinBusyShare = 0.24;
// One matrix, more than kSplitTokens: so for tiles of more than kNarrowTile rows, whose tasks have a multiprocessor
// each (BF16, [5120, 2048], 256 tokens: 40 tasks of 256 rows 30.2 us, 160 of 64 rows 24.8; [2048, 4096], 512: 50.3
// and 40.2; but 80 tasks of 256 rows, [5120, 2048], 512 tokens: 31.6 and 42.3).
inline constexpr double kMinBusyShareWide = 0.6;
inline constexpr int kNarrowTile = 64;

// One block per multiprocessor instead of two ("blocks per multiprocessor" there): the range of tasks of 128 weight
// rows per multiprocessor in which it is quicker, where five shapes at 1 to 16 tokens cross over.
inline constexpr int kOneBlockMinColumns = 512;  // of GEMM2's K at least: shorter tasks are mostly epilogue
inline constexpr double kTwoBlocksFrom = 1;      // between one task and two only two blocks hold all at once
inline constexpr double kTwoBlocksTo = 2;        // (of weights that are not decoded, or if GEMM2 is a separate launch)
inline constexpr double kOneBlockTasks = 10;     // BF16, FP8
inline constexpr double kOneBlockTasksE4m3 = 8.5;  // decoded e4m3
inline constexpr double kOneBlockTasksE2m1 = 5;    // decoded e2m1

// Split-K ("split-K" there). Adding partial sums costs two round trips through memory, so splits are few and not short.
inline constexpr int64_t kSplitTokens = 64;  // a call of more tokens is not split
inline constexpr int kMinKBlocksPerSplit = 4;
inline constexpr int kMaxSplits = 4;         // of weights that are not decoded
inline constexpr int kMaxSplitsDecoded = 2;  // per M-tile of a task and block per multiprocessor
// One matrix without a second GEMM is split if its tasks take less than this share of the blocks ...
inline constexpr double kSplitBelowShare = 0.35, kSplitBelowShareDecoded = 0.45;
// ... into as many tasks as fill this share, which is what it takes to keep the memory busy
// (docs/kernels/sm90_dense.md).
inline constexpr double kFilledShare = 0.4;

// ---- one token (docs/kernels/sm90_one_token.md) ---------------------------------------------------------------------

// The kernels of one token run layers of at most this many values between the products (top_k times I). Each block,
// or cluster of blocks, of the second product rounds all of these. With given experts (H200): Qwen3 (6144) BF16 28.2 ->
// 24.7 us, FP8 block 26.2 -> 19.8, MXFP8 25.3 -> 21.0; Nemotron-3-Nano (11136) BF16 41.1 -> 37.8. From logits NVFP4
// decodes Nano's single sequences at 397 tokens/s with these kernels, and at 400 without (H100).
inline constexpr int64_t kOneTokenValues = 8192, kOneTokenValuesBf16 = 12288;

// ---- product of few rows (docs/kernels/sm90_few_rows.md) ----------------------------------------------------------

// K is cut into parts, each a block's, until this many blocks per multiprocessor stream weights.
inline constexpr double kFewRowsFilled = 0.9;
// Values of rows of packed weights that a block rounds for all of its tasks; more are rounded once by a launch before.
// NVFP4, 8 rows, H200: by each block [4608, 2688] (5,376 values) takes 7.7 us, [2112, 7168] (7,168) 9.4 and [10304,
// 2688] (10,752) 12.1, by a launch 7.7, 8.9 and 10.8. [7168, 16384] in MXFP8, 2 rows (8,192): 32.5 and 40.
inline constexpr int64_t kFewRowsRounded = 8192;

// ---- product of a batch of rows: its cost model (docs/kernels/sm90_batch_rows.md) ----------------------------------

// Microseconds: the start, the products of 128 weight rows by 256 rows by a k-block, the decoding of a k-block, the
// exchange of sums, and what a second wave of clusters adds.
inline constexpr double kBatchStartUs = 2.7, kBatchKBlockUs = 0.64, kBatchDecodeUs = 0.22, kBatchExchangeUs = 0.3,
                        kBatchWaveUs = 3.1;
// Bytes per microsecond: from memory and from the L2 cache, of the whole device; sums to other blocks and results to
// memory, of a block.
inline constexpr double kBatchMemoryBytes = 4.2e6, kBatchCacheBytes = 10e6, kBatchExchangeBytes = 56e3,
                        kBatchStoreBytes = 320e3;
// Of a chain, in microseconds: the start, what a block takes for a k-block whatever its rows, and what each block adds.
inline constexpr double kChainStartUs = 1.55, kChainKBlockUs = 0.072, kChainBlockUs = 0.0022;
// Bytes per microsecond: of weights and rows into one multiprocessor, and with tiles of 64 rows, beside which a ring
// has three or four stages; of weights and results, of the whole device.
inline constexpr double kChainStreamBytes = 260e3, kChainStreamBytes64 = 150e3, kChainMemoryBytes = 4.4e6;
// The share of the last turn's idle blocks that costs time.
inline constexpr double kChainUneven = 0.12;

// ---- latent attention (docs/kernels/sm90_mla.md) -------------------------------------------------------------------

// Memory for the keys and values of prompts, where absorbed queries and results of as many rows would take less: 512
// rows after 16384 positions fill the multiprocessors with 32 heads at a time.
inline constexpr int64_t kExpandedBytes = int64_t{512} << 20;
// Of one pass over some of the heads, where more are not needed to fill the multiprocessors: 8192 rows take 5.87 ms
// with 16 heads at a time (84 MB), 6.10 with 32, 6.65 with all 128, 6.26 with 8.
inline constexpr int64_t kExpandedPassBytes = int64_t{96} << 20;
// What an operation of the products with kv_b costs, in operations of attention: 232 TFLOP/s and 540 (16384
// positions before 256 and 512 new rows: expanded 3.43 and 3.57 ms, absorbed 2.17 and 4.13).
inline constexpr double kMoveCost = 2.3;

// ---- around it -----------------------------------------------------------------------------------------------------

// Weights are streamed before the tables are there if rows have at least this many columns. Rounding a long row takes
// long enough (DeepSeek-V3, 8 tokens, BF16 163 -> 157 us, NVFP4 84 -> 79). After a short row the GEMM would only start
// later (NVFP4, 2048 columns, 28 -> 31 us; docs/kernels/sm90_grouped_gemm.md, "early weights").
inline constexpr int64_t kEarlyColumns = 4096;
// ... and there are at most this many pairs, which one warp of every block counts (128 tokens: 1 to 9 us more;
// docs/kernels/sm90_route.md).
inline constexpr int64_t kEarlyPairs = 512;

// Pairs up to which every block makes the tables for itself, instead of one cluster for all (4096: the layer of 512
// tokens 1 to 9 us more; 1024: 256 tokens 1 to 10 us more); and the blocks among which it shares the columns of rows
// (264: DeepSeek-V3, 128 tokens, 19.0 us before the GEMMs instead of 16.8; 1024: 256 tokens 26.6 instead of 25.5).
// Both are in docs/kernels/sm90_route_permute.md.
inline constexpr int64_t kPermutePairs = 2048;
inline constexpr int64_t kPermuteBlocks = 512;

// Up to this many rows between the two GEMMs, as many threads round a row as have a piece of eight columns each; more
// rows take a quarter of that (docs/kernels/sm90_rows.md).
inline constexpr int64_t kSpreadRequantizedRows = 1024;

// From so many scales of 128 columns of rows on, the gather of FP8 block leaves one per token, and a launch of its own
// places them (docs/kernels/sm90_rows.md).
inline constexpr int64_t kPlacedScales = int64_t{1} << 19;

// Tiles whose tasks take turns at a group of M-tiles, so that those of one expert read its weights at the same time: at
// most so many, and at most so many bytes of rows, which every group reads again from the L2 cache. FP8 block,
// DeepSeek-V3 EP8, 8192 tokens, tile by tile and by 8, 16 and 32 tiles: 1223, 1150, 1130 and 1157 us
// (docs/kernels/sm90_grouped_gemm.md).
inline constexpr int64_t kTurnBytes = 15'000'000, kMaxTilesInTurn = 16;

// Up to this many tokens the finalize kernel spreads the columns of a token over blocks, so that all reads are under
// way at once (docs/kernels/sm90_finalize.md).
inline constexpr int64_t kSpreadColumnsTokens = 1024;

// Up to this many tokens the norm after a layer of experts adds up their results, instead of a finalize kernel
// (docs/kernels/sm90_norm.md). Of more tokens the sum has a grid of its own.
inline constexpr int64_t kFinalizeInNormTokens = 512;

// Up to this many columns, a block repacks four k-blocks of e2m1, else eight: -1 to 3 % quicker up to 2688 columns, 9 %
// more time for MXFP4 at 7168 (docs/kernels/sm90_repack.md).
inline constexpr int64_t kNarrowRepackColumns = 3072;

// ---- sampling (docs/kernels/sm90_sample.md) ------------------------------------------------------------------------

// About how many blocks choose greedy tokens in all. Each row gets its share: eight blocks at one to 16 rows, two from
// 64 on (64 rows: 14.4 us, 16.8 with four, 19.5 with eight; 8 rows: 7.5, 6.2, 5.6).
inline constexpr int kGreedyBlocks = 160;

}  // namespace sluice::sm90::tuning
