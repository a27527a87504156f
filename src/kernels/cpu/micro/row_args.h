// SPDX-License-Identifier: Apache-2.0
// The arguments of the row operations: packing an input row, an activation, a weighted sum of rows, rounding to bf16.
#pragma once

#include "kernels/cpu/micro/packed_layout.h"

namespace sluice::kernels::cpu {

// The two enumerations below repeat format::InputFormat and activation::Activation, which files that are compiled for
// one instruction set cannot include (kernel_table.h says why). cpu_kernel.cc asserts that they agree.
//
// How an input row is quantised before the product.
enum class InputRounding : uint8_t { plain, fp8_static, fp8_token, fp8_group, mxfp8, nvfp4, nvfp4_token };

struct PackSource {
  const void* data = nullptr;  // bfloat16 or float [n]
  bool bf16 = false;
  bool round_to_bf16_first = false;  // float sources: rounded to bfloat16 before anything else
  int64_t n = 0;                     // K
};

// One packed row. `type` fixes the form of `data`; padded_n is K'.
//   row_scale     never null, always written
//   group_scale   [ceil(padded_n / 128)], always written; null unless the weights are fp8_block
struct PackTarget {
  PackedType type = PackedType::f32;
  void* data = nullptr;
  float* row_scale = nullptr;
  float* group_scale = nullptr;
  int64_t padded_n = 0;
};

// One input row -> one packed row, quantised as format/quantize.h defines, with the same bits.
struct PackRowArgs {
  InputRounding rounding = InputRounding::plain;
  float input_scale = 1.0f;  // read by fp8_static and nvfp4 only
  PackSource source;
  PackTarget target;
  float* staging = nullptr;  // float[padded_n]; may be null if target.type is f32
};
using PackRowFn = void (*)(const PackRowArgs&);

enum class ActivationCode : uint8_t {
  gelu = 0,
  silu = 2,
  swiglu = 3,
  geglu = 4,
  relu2 = 6,
  geglu_tanh = 8,
  identity = 9
};

// out[i] = activation(up[i], gate[i]) for `cols` neighbouring columns of one row.
struct ActivateArgs {
  ActivationCode act = ActivationCode::identity;
  const float* up = nullptr;
  const float* gate = nullptr;  // null exactly if the activation is not gated
  float* out = nullptr;         // may be `up`
  int64_t cols = 0;
  float alpha = 1.0f, beta = 0.0f, limit = __builtin_inff();  // swiglu's
};
using ActivateFn = void (*)(const ActivateArgs&);

// out[n] = sum over i ascending of weights[i] * rows[i][n]: one chain of fused multiply-adds from zero, then rounded to
// the type of the rows.
struct WeightedSumArgs {
  const void* const* rows = nullptr;  // [count], each bfloat16 or float [cols]
  const float* weights = nullptr;     // [count]
  int count = 0;                      // 0 gives zeros
  bool bf16 = false;                  // rows and out; otherwise float
  int64_t cols = 0;
  void* out = nullptr;
};
using WeightedSumFn = void (*)(const WeightedSumArgs&);

// What a tile product multiplies. bfloat16 values are widened exactly, in registers.
enum class TileOperands : uint8_t {
  f32,           // a: float; b: float [k][n]
  bf16_rows,     // a: float; b: bfloat16 [k][n]; the outputs are split (below)
  bf16_columns,  // a: float; b: bfloat16 [k / 2][n][2]: neighbours are two l of one j
  bf16_pairs,    // a: bfloat16; b as for bf16_columns. By vdpbf16ps, where the level has it: of a pair the odd l first
  bf16_parts,    // a: the sum of some bfloat16 matrices; b as for bf16_columns. By tdpbf16ps, where the level has it
};
inline constexpr int kTileOperands = 5;

// out[i][j] = keep[i] * out[i][j] + sum over l ascending of a[i][l] * b[l][j], i in [0, m), j in [0, n), l in [0, k),
// in float32, for tiles that are in the cache: attention's scores and weighted sums. Every output is one chain of
// additions whatever m and n, so a row's result does not depend on the other rows. Strides count words of four bytes: a
// float, or two bfloat16 values.
//
// bf16_parts: for each 32 l and each part, in this order, the products of the even l are one chain from zero, those of
// the odd l another, and their sum is added to the output. Values and sums below 2^-126 are zero.
//
// Split outputs: of each 32 columns the even ones come first, then the odd ones. A word of b holds one of each.
struct TileProductArgs {
  const void* a = nullptr;      // [m][a_stride]
  const void* b = nullptr;      // rows b_stride apart
  float* out = nullptr;         // [m][out_stride]
  const float* keep = nullptr;  // [m]; null: out is not read, its factor is zero
  int64_t a_stride = 0, b_stride = 0, out_stride = 0;
  // n is a multiple of 16, for bf16_rows and bf16_parts of 32. k is even for bf16_columns and bf16_pairs, a multiple of
  // 32 for bf16_parts. b's rows are 64-byte aligned for bf16_pairs.
  int64_t m = 0, n = 0, k = 0;
  // Memory that is brought to L2 meanwhile, spread evenly over the work on the first rows; null: none.
  const void* next = nullptr;
  int64_t next_bytes = 0;
  // Of bf16_parts alone. The words from a part to the next one; and what the shapes of this thread's tile registers
  // are, 0 before the first call, so that they need not be set again (50 ns). A call with m = 0 gives the registers
  // back.
  int parts = 1;
  int64_t part_stride = 0;
  int* tile_rows = nullptr;
};
using TileProductFn = void (*)(const TileProductArgs&);

// Online softmax between two products, for one step of kSoftmaxPositions positions: query i sees its first
// min(seen + i / per_row, kSoftmaxPositions), at least one. Its scores become exp(scale * score - new maximum), and 0
// where they are not seen. `maximum` and `sum` are updated; keep[i] is the factor by which everything that was
// accumulated before shrinks. A query's results do not depend on the other queries.
inline constexpr int kSoftmaxPositions = 64;
struct SoftmaxArgs {
  float* scores = nullptr;  // [queries][kSoftmaxPositions], overwritten
  int64_t queries = 0, per_row = 1, seen = 0;
  float scale = 1;
  float *maximum = nullptr, *sum = nullptr, *keep = nullptr;  // [queries]
  // Between products of bf16_parts, where the results go instead, as three parts whose sum is exact down to 2^-110:
  // [3][queries][kSoftmaxPositions / 2] words, part_stride words from a part to the next one. Word i of each 16 holds
  // the positions i and i + 16 of 32.
  uint32_t* parts = nullptr;
  int64_t part_stride = 0;
};
using SoftmaxFn = void (*)(const SoftmaxArgs&);

// float [n] -> bfloat16 [n], round to nearest, ties to even.
using RoundBf16Fn = void (*)(const float* in, uint16_t* out, int64_t n);

}  // namespace sluice::kernels::cpu
