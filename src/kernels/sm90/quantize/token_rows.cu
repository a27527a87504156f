// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/round.cuh"
#include "kernels/sm90/quantize/token_rows.h"

namespace sluice::sm90 {

namespace {

constexpr int kWarps = 8, kBatch = 4;  // reads of a lane that are under way together

// A row's pieces of 16 bytes, 8 columns each, as they lie.
struct Row {
  uint8_t* tile;  // its first slab
  int n, padded;
  __device__ uint4* piece(int i) const {
    return reinterpret_cast<uint4*>(tile + static_cast<int64_t>(i >> 3) * padded * 128 + swizzled(n, i & 7));
  }
};

// Largest magnitude of two bf16 a word, NaN above infinity as in format::amax_bits.
__device__ inline uint32_t amax_pairs(const uint4& v) {
  const uint32_t m = 0x7fff7fffu;
  return __vmaxu2(__vmaxu2(v.x & m, v.y & m), __vmaxu2(v.z & m, v.w & m));
}

// A warp a row. Two neighbouring lanes have the 16 columns of a block scale.
__global__ void __launch_bounds__(kWarps * 32) token_rows_kernel(const __grid_constant__ TokenRowsArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (static_cast<int>(blockIdx.x) >= a.header->num_tiles) return;
  const Tile tile = a.tiles[blockIdx.x];
  const int n = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x) % 32;
  if (n >= tile.count) return;
  const int pieces = a.slabs * 8;
  const Row row{a.rows + static_cast<int64_t>(tile.row_base) * a.slabs * 128, n, tile.padded};
  uint32_t pairs = 0;
  for (int base = lane; base < pieces; base += 32 * kBatch) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) v[i] = base + 32 * i < pieces ? *row.piece(base + 32 * i) : uint4{};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) pairs = __vmaxu2(pairs, amax_pairs(v[i]));
  }
  const uint32_t row_bits = amax_lanes(max(pairs << 16, pairs & 0xffff0000u), 32);
  const format::Nvfp4Global global = format::nvfp4_row_global(format::amax_value(row_bits));
  for (int base = 0; base < pieces; base += 32) {
    const int i = base + lane;
    const uint4 v = i < pieces ? *row.piece(i) : uint4{};
    const uint32_t words[4] = {v.x, v.y, v.z, v.w};
    float values[8];
#pragma unroll
    for (int j = 0; j < 4; ++j) {
      values[2 * j] = __uint_as_float(words[j] << 16);
      values[2 * j + 1] = __uint_as_float(words[j] & 0xffff0000u);
    }
    const uint32_t bits = amax_lanes(amax8(values), 2);
    if (i < pieces) *row.piece(i) = rounded_bf16(Round::nvfp4_token, values, bits, global, 1.0f, 1.0f);
  }
  if (lane == 0) a.row_scale[tile.row_base + n] = global.decode;
}

}  // namespace

void launch_token_rows(const TokenRowsArgs& args, int64_t max_tiles, int max_n, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(max_tiles), static_cast<unsigned>(ceil_div(max_n, kWarps)));
  launch(token_rows_kernel, blocks, kWarps * 32, 0, stream, pdl, args);
}

}  // namespace sluice::sm90
