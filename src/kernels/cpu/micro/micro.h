// SPDX-License-Identifier: Apache-2.0
// The inner kernels of one instruction set, as a table of functions over plain data. The files micro/<isa>.cc are the
// only code that is compiled for more than the base architecture; they see nothing but intrinsics and this header, so
// that no function shared with other files can be emitted with instructions that a machine lacks.
#pragma once

#include <cstdint>

namespace sluice::kernels::cpu {

// The form in which a GEMM reads its input rows.
enum class OperandKind : uint8_t {
  f32,    // float[K']
  bf16,   // bfloat16[K']
  nvfp4,  // Nvfp4Group[K'/16]: integers
  fixed,  // FixedRow: integers of 16 or 24 bits under a power of two for each 32, and what they cannot hold
};

// 16 input values under one scale. e2m1 codes are halves of integers, so 4-bit by 4-bit products are summed exactly in
// int32: sum(x w) = 0.25 * sum(2x * 2w). The dot product wants one operand unsigned: weights go in as 2w + 12, and
// `offset` = -12 * sum(2x) takes the 12 out again. Order of codes: see micro/nvfp4_dot.h.
struct Nvfp4Group {
  int8_t codes[16];  // 2x
  float scale;       // block scale / 4
  int32_t offset;
};

// A row of values that bfloat16 holds, for micro/mxfp4_dot.h. 32 of them are integers of 24 bits times the scale of
// their block, a power of two that the largest decides: with 8 significant bits in 23, all that are at least 2^-15 of
// it are exact. They lie as three planes of bytes. A row without many values below 2^-7 of their block's largest has an
// empty low plane, so that kernels need not multiply it. What the planes of a row cannot hold (and NaN and infinities)
// is zero there and stands in `rest`, by k ascending.
inline constexpr int kFixedBlock = 32;            // k
inline constexpr int kFixedChunk = 256;           // k: the rest of a chunk is added after its blocks
inline constexpr float kFixedFactor = 0.5f;       // of the scales and of Rest::value: the weights are 2 times too large
inline constexpr int kFixedSum = INT32_MAX / 12;  // of a block's magnitudes: sums with the weights fit in int32
inline constexpr int kFixedBias = 1 << 23;        // in the planes: dots want unsigned bytes
struct FixedRest {
  float value;
  uint16_t k;      // in its chunk
  uint16_t block;  // k / kFixedBlock
};
struct FixedRow {
  // Bytes from the row's start. The upper two planes come first: of each 32 k 32 bytes of bits 16-23, 32 of bits 8-15,
  // each in the order of codes of Nvfp4Group.
  int64_t low = 0;     // uint8[K']: bits 0-7
  int64_t scales = 0;  // float[K'/32][2]: of a sum over two planes, over three
  int64_t starts = 0;  // int32[1 + chunks + 1]: the planes in use (2 or 3), then each chunk's first one in `rest`
  int64_t rest = 0;    // FixedRest[K'] at most
  int64_t bytes = 0;
  explicit constexpr FixedRow(int64_t k)
      : low(2 * k),
        scales(low + k),
        starts(scales + k / kFixedBlock * 8),
        rest((starts + ((k + kFixedChunk - 1) / kFixedChunk + 2) * 4 + 7) / 8 * 8),
        bytes(rest + k * static_cast<int64_t>(sizeof(FixedRest))) {}
};

inline constexpr int kTileCols = 32;  // columns of a unit (weights/panel.h)
inline constexpr int kMaxRows = 128;  // input rows in one call
inline constexpr int kMaxUnits = 4;   // units in one call
// Floats from a unit's outputs to the next one's: not whole pages, as a load waits for earlier stores whose addresses
// have the same low 12 bits.
inline constexpr int kUnitOut = kMaxRows * kTileCols + 512;
inline constexpr int kScratchBytes = 40960;  // decoded weights of one chunk

// The weights that a task reads front to back, for prefetching (micro/tile.h).
struct Stream {
  const uint8_t* end = nullptr;  // of what this task reads
  int64_t jump = 0;              // from there to what this thread reads next
};

// For each unit out[m][32] = (sum over k of x[row][k] * w[n][k]) * row_scale[n] * x_scale[row] for the rows of the
// unit.
struct GemmArgs {
  const uint8_t* codes = nullptr;  // weights/panel.h
  const uint8_t* scales = nullptr;
  const float* row_scale = nullptr;
  int panels = 0;
  int64_t k = 0;                            // K'
  Stream stream;                            // of the codes
  bool first = true, last = true;           // of the calls of a task: what a kernel sets up serves all of them
  int units = 1;                            // so many that follow in memory, if the kernel takes several
  int64_t unit_codes = 0, unit_scales = 0;  // bytes from a unit to the next
  const uint8_t *next_codes = nullptr, *next_scales = nullptr;  // what this thread reads after this call

  const uint8_t* x = nullptr;       // operand rows
  int64_t x_stride = 0;             // bytes
  const int32_t* x_rows = nullptr;  // [m] which operand rows; null: 0 .. m-1
  const float* x_scale = nullptr;   // [operand row]; null: 1
  const float* x_group = nullptr;   // [operand row][K'/128], only for fp8_block weights
  int64_t x_group_stride = 0;       // floats
  int m = 0;                        // <= kMaxRows

  float* out = nullptr;        // a unit [kMaxRows][kTileCols], m rows of it written, kUnitOut further the next
  uint8_t* scratch = nullptr;  // kScratchBytes, 64-byte aligned
};
using GemmFn = void (*)(const GemmArgs&);

// One input row -> one operand row, quantised as format/quantize.h defines (the same bits).
struct PrepareArgs {
  int input = 0;  // format::InputFormat
  OperandKind kind = OperandKind::f32;
  bool source_bf16 = false;
  bool round_bf16_first = false;  // the source is rounded to bf16 before anything else
  const void* source = nullptr;   // float or bf16 [n]
  int64_t n = 0, padded = 0;
  float input_scale = 1.0f;      // static formats
  void* operand = nullptr;       // the operand row
  float* row_scale = nullptr;    // one float, always written
  float* group_scale = nullptr;  // [ceil(padded/128)]; null unless fp8_block weights
  float* staging = nullptr;      // [padded] of working memory
};
using PrepareFn = void (*)(const PrepareArgs&);

// Activation of rows of a GEMM1 tile: up and gate are `cols` neighbouring columns.
struct ActivateArgs {
  int act = 0;  // activation::Activation
  const float* up = nullptr;
  const float* gate = nullptr;  // null when not gated
  float* out = nullptr;         // may be `up`
  int64_t cols = 0;
  float alpha = 1.0f, beta = 0.0f, limit = __builtin_inff();
};
using ActivateFn = void (*)(const ActivateArgs&);

// out[n] = D(sum over i ascending of weight[i] * row[i][n]), a chain of fused multiply-adds from zero.
struct CombineArgs {
  const void* const* rows = nullptr;  // D [cols] each
  const float* weights = nullptr;
  int count = 0;
  bool bf16 = false;  // D
  int64_t cols = 0;
  void* out = nullptr;
};
using CombineFn = void (*)(const CombineArgs&);

// float -> bfloat16, round to nearest even.
using RoundFn = void (*)(const float* in, uint16_t* out, int64_t n);

// The formats that differ for a kernel: code width and block scales.
enum class Code : uint8_t { bf16, e4m3, e4m3_block, e4m3_mx, e2m1_nv, e2m1_mx };
inline constexpr int kCodes = 6;

// Ceilings of one core (micro/probe.h).
using DotProbeFn = double (*)(int64_t steps);
using ReadProbeFn = void (*)(const uint8_t* p, int64_t bytes);

struct Micro {
  GemmFn gemm[kCodes];  // null: this level has none of its own for that code
  GemmFn nvfp4_dot;     // NVFP4 weights and inputs as integers; null: use gemm
  GemmFn mxfp4_dot;     // MXFP4 weights by OperandKind::fixed; null: use gemm
  PrepareFn prepare;
  ActivateFn activate;
  CombineFn combine;
  RoundFn round_bf16;
  DotProbeFn dot_probe;
  ReadProbeFn read_probe;
};

extern const Micro kScalar, kAvx2, kAvx512, kAvx512Bf16, kAmx;

}  // namespace sluice::kernels::cpu
