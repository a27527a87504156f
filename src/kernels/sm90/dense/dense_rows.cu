// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.h"
#include "format/e8m0.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/dense/dense_rows.h"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"
#include "kernels/sm90/route/choose.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128;

// Eight codes of one row; zero beyond its end.
__device__ inline uint2 load_codes8(const DenseRowsArgs& a, int64_t row, int column) {
  const int columns = a.rows.source.columns;
  const bool four = is_four_bit(a.coding);
  const int64_t bytes = four ? ceil_div(columns, 2) : columns;
  const uint8_t* from = a.codes + row * bytes + (four ? column / 2 : column);
  if (columns % 8 == 0)
    return four ? uint2{*reinterpret_cast<const uint32_t*>(from), 0} : *reinterpret_cast<const uint2*>(from);
  uint32_t words[2] = {0, 0};
  const int here = min(8, columns - column), count = four ? ceil_div(here, 2) : here;
  for (int i = 0; i < count; ++i) words[i / 4] |= static_cast<uint32_t>(from[i]) << (8 * (i % 4));
  if (four && here < 8) words[0] &= (1u << (4 * here)) - 1u;
  return {words[0], words[1]};
}

// A token that is quantised already, into its row.
__device__ inline void write_coded(const DenseRowsArgs& a, int64_t token, const Target& target) {
  const RowsArgs& r = a.rows;
  const int group = coding_group(a.coding);
  const int64_t groups = group > 0 ? ceil_div(r.source.columns, group) : 0;
  const int padded_columns = r.out.k_blocks * (r.out.e4m3 ? 128 : 64);
  for (int column = 8 * static_cast<int>(threadIdx.x); column < padded_columns; column += 8 * kThreads) {
    uint2 codes{};
    uint4 packed{};
    float group_scale = 1.0f;
    if (column < r.source.columns) {
      codes = load_codes8(a, token, column);
      float scale = 1.0f;
      if (group > 0) {
        const int64_t at = format::scale_offset(a.layout, token, column / group, r.source.max_tokens, groups);
        if (a.coding == Coding::fp8_group)
          group_scale = static_cast<const float*>(a.scales)[at];
        else if (a.coding == Coding::mxfp8 || a.coding == Coding::mxfp4)
          scale = format::e8m0_to_float(static_cast<const uint8_t*>(a.scales)[at]);
        else
          scale = format::e4m3_to_float(static_cast<const uint8_t*>(a.scales)[at]);
      }
      if (!r.out.e4m3) {
        float v[8];
#pragma unroll
        for (int i = 0; i < 8; ++i) {
          const uint32_t code =
              is_four_bit(a.coding) ? codes.x >> (4 * i) & 15u : (i < 4 ? codes.x : codes.y) >> (8 * (i % 4)) & 255u;
          v[i] = scale * (is_four_bit(a.coding) ? format::e2m1_to_float(static_cast<uint8_t>(code))
                                                : format::e4m3_to_float(static_cast<uint8_t>(code)));
        }
        packed = {ptx::cvt_bf16x2_f32(v[1], v[0]), ptx::cvt_bf16x2_f32(v[3], v[2]), ptx::cvt_bf16x2_f32(v[5], v[4]),
                  ptx::cvt_bf16x2_f32(v[7], v[6])};
      }
    }
    const bool first = (column & 127) == 0;
    store8(r, target, column, packed, codes, group_scale, first);
    // FP8 block with float32 sums reads BF16 rows, whose scales store8 leaves to the caller.
    if (!r.out.e4m3 && a.coding == Coding::fp8_group && first) store_scale(target, column, group_scale);
  }
  if (threadIdx.x == 0 && r.out.row_scale != nullptr) r.out.row_scale[token] = a.row_scales[token];
}

__global__ void __launch_bounds__(kThreads) dense_rows_kernel(const __grid_constant__ DenseRowsArgs a) {
  __shared__ uint32_t shared[kThreads / 32];
  const RowsArgs& r = a.rows;
  ptx::griddepcontrol_wait();
  const int tokens = static_cast<int>(real_tokens(r.source.num_tokens, r.source.max_tokens));
  const ExpertTiles p = expert_tiles(tokens, a.max_n, a.step_n);
  if (blockIdx.x == 0 && threadIdx.x == 0) *a.header = {p.tiles, p.rows, {0, 0}};
  const int thread = static_cast<int>(blockIdx.x * kThreads + threadIdx.x),
            all = static_cast<int>(gridDim.x * kThreads);
  for (int i = thread; i < p.tiles; i += all) {
    const int n = i + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
    a.tiles[i] = {0, i * p.rows_per_tile, n, round_up(n, a.step_n)};
  }
  for (int i = thread; i < tokens; i += all) a.row_pair[i] = i;
  if (a.arrivals != nullptr)
    for (int i = thread; i < p.tiles * a.m_groups; i += all) a.arrivals[i] = 0;
  const int copied = r.out.data == nullptr ? 0 : tokens;
  for (int token = static_cast<int>(blockIdx.x); token < copied; token += static_cast<int>(gridDim.x)) {
    const int index = token / p.rows_per_tile, n = token % p.rows_per_tile, row_base = index * p.rows_per_tile;
    const int count = index + 1 < p.tiles ? p.rows_per_tile : p.last_rows;
    const RowTile tile{0, row_base, count, round_up(count, a.step_n)};
    const Target target = target_of(r, tile, n);
    if (r.source.tokens == nullptr) {
      write_coded(a, token, target);
      continue;
    }
    RowsArgs row = r;  // the source's rows follow each other there; these need not
    row.source.tokens = static_cast<const uint8_t*>(r.source.tokens) + token * a.stride * (r.source.tokens_f32 ? 4 : 2);
    write_token<kThreads>(row, 0, &target, 1, 0, 1, shared);
  }
  ptx::griddepcontrol_launch_dependents();
}

}  // namespace

void launch_dense_rows(const DenseRowsArgs& args, Stream stream, bool pdl) {
  const int64_t tokens = args.rows.source.max_tokens;
  const int64_t blocks =
      std::min<int64_t>(args.rows.out.data == nullptr ? ceil_div<int64_t>(tokens, kThreads) : tokens, 4096);
  launch(dense_rows_kernel, static_cast<int>(std::max<int64_t>(blocks, 1)), kThreads, 0, stream, pdl, args);
}

}  // namespace sluice::sm90
