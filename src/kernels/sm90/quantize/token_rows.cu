// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/token_rows.cuh"
#include "kernels/sm90/quantize/token_rows.h"

namespace sluice::sm90 {

namespace {

constexpr int kWarps = 8, kBatch = 4;  // reads of a lane that are under way together

// One warp per row.
__global__ void __launch_bounds__(kWarps * 32) token_rows_kernel(const __grid_constant__ TokenRowsArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (static_cast<int>(blockIdx.x) >= a.header->num_tiles) return;
  const RowTile tile = a.tiles[blockIdx.x];
  const int n = static_cast<int>(blockIdx.y * kWarps + threadIdx.x / 32), lane = static_cast<int>(threadIdx.x) % 32;
  if (n >= tile.count) return;
  const PlacedRow row{a.rows + static_cast<int64_t>(tile.row_base) * a.k_blocks * 128, n, tile.padded};
  const int pieces = a.k_blocks * 8;
  uint32_t pairs = 0;
  for (int base = lane; base < pieces; base += 32 * kBatch) {
    uint4 v[kBatch];
#pragma unroll
    for (int i = 0; i < kBatch; ++i) v[i] = base + 32 * i < pieces ? *row.piece(base + 32 * i) : uint4{};
#pragma unroll
    for (int i = 0; i < kBatch; ++i) pairs = __vmaxu2(pairs, amax_pairs(v[i]));
  }
  const format::Nvfp4Global global = token_global(pairs);
  for (int base = 0; base < pieces; base += 32) {
    const int i = base + lane;
    const uint4 v = rounded_piece(i < pieces ? *row.piece(i) : uint4{}, global);
    if (i < pieces) *row.piece(i) = v;
  }
  if (lane == 0) a.row_scale[tile.row_base + n] = global.decode;
}

}  // namespace

void launch_token_rows(const TokenRowsArgs& args, int64_t max_tiles, int max_n, Stream stream, bool pdl) {
  const dim3 blocks(static_cast<unsigned>(max_tiles), static_cast<unsigned>(ceil_div(max_n, kWarps)));
  launch(token_rows_kernel, blocks, kWarps * 32, 0, stream, pdl, args);
}

}  // namespace sluice::sm90
