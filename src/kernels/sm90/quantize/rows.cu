// SPDX-License-Identifier: Apache-2.0
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/quantize/rows.cuh"

namespace sluice::sm90 {

namespace {

constexpr int kThreads = 128;
// Of eight columns, per thread and step: as many as are stored in 16 bytes.
HD constexpr int pieces_of(bool e4m3) { return e4m3 ? 2 : 1; }

// One block per token, or several with a part of its columns each. It rounds the token once and writes it for each of
// its local experts. The rounding is a constant of each instance: this kernel is bound by its instructions.
template <Round kRound, bool kE4m3>
__global__ void __launch_bounds__(kThreads, 12) gather_kernel(const __grid_constant__ RowsArgs args) {
  RowsArgs a = args;
  a.out.round = kRound;
  a.out.e4m3 = kE4m3;
  __shared__ Target targets[kMaxTopK];
  __shared__ int num_targets;
  __shared__ uint32_t shared[kThreads / 32];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t tokens = real_tokens(a.source.num_tokens, a.source.max_tokens);
  const auto share = static_cast<int>(tokens_per_share(a.source.max_tokens, a.source.locals));
  const bool first = blockIdx.y == 0;
  for (int64_t token = blockIdx.x; token < tokens; token += gridDim.x) {
    __syncthreads();
    if (threadIdx.x == 0) num_targets = 0;
    __syncthreads();
    if (static_cast<int>(threadIdx.x) < a.source.top_k) {
      const int64_t pair = token * a.source.top_k + threadIdx.x;
      const int rank = a.gather.rank[pair], id = a.gather.pairs.id(pair);
      if (first && a.gather.weights != nullptr) a.gather.weights[pair] = a.gather.pairs.weight(pair);
      if (first && a.gather.chosen_ids != nullptr)
        a.gather.chosen_ids[pair] = id >= 0 && id < a.gather.experts ? id : -1;
      if (first && a.gather.chosen_weights != nullptr) a.gather.chosen_weights[pair] = a.gather.pairs.weight(pair);
      int row = -1;
      if (rank >= 0) {
        const int e = id - a.gather.local_offset;
        const int place = rank + a.gather.counts[static_cast<int>(token) / share * int64_t{a.source.locals} + e];
        const int per = a.gather.expert_tile_rows[e];
        const RowTile tile = a.gather.tiles[a.gather.expert_tile[e] + place / per];
        const int n = place % per;
        row = tile.row_base + n;
        targets[atomicAdd(&num_targets, 1)] = target_of(a, tile, n);
        if (first) a.gather.row_pair[row] = static_cast<int32_t>(pair);
      }
      if (first) a.gather.pair_row[pair] = row;
    }
    __syncthreads();
    if (first && a.gather.zero_absent != nullptr)
      for (int k = 0; k < a.source.top_k; ++k)
        if (a.gather.rank[token * a.source.top_k + k] < 0) clear_row<kThreads>(a, token * a.source.top_k + k);
    if (num_targets != 0)
      write_token<kThreads, pieces_of(kE4m3)>(a, token, targets, num_targets, static_cast<int>(blockIdx.y),
                                              static_cast<int>(gridDim.y), shared);
  }
}

// The scales of tokens to those of rows. The gather's own stores of them, 4 bytes per row and 128 columns, each lie in
// another line, and take as long as a quarter of the codes. Here a warp stores 32 rows side by side.
__global__ void __launch_bounds__(kThreads) place_scales_kernel(const __grid_constant__ RowsArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  if (static_cast<int>(blockIdx.x) >= a.gather.header->num_tiles) return;
  const RowTile tile = a.gather.tiles[blockIdx.x];
  const int n = static_cast<int>(blockIdx.y * kThreads + threadIdx.x), runs = a.out.scale_runs;
  if (n >= tile.padded) return;
  float* out = a.out.block_scale + static_cast<int64_t>(tile.row_base) * runs + n;
  const bool real = n < tile.count;
  const int64_t token = real ? a.gather.row_pair[tile.row_base + n] / a.source.top_k : 0;
  const float* from = a.out.token_scale + token * token_scale_stride(runs);
#pragma unroll 4
  for (int run = 0; run < runs; run += 4) {
    const float4 read = real ? *reinterpret_cast<const float4*>(from + run) : float4{};
    const float scale[4] = {read.x, read.y, read.z, read.w};
#pragma unroll
    for (int i = 0; i < 4; ++i)
      if (run + i < runs) out[static_cast<int64_t>(run + i) * tile.padded] = scale[i];
  }
}

using GatherKernel = void (*)(RowsArgs);
GatherKernel gather_kernel_of(const RowDestination& out) {
  switch (out.round) {
    case Round::plain:
      return gather_kernel<Round::plain, false>;
    case Round::mxfp8:
      return gather_kernel<Round::mxfp8, false>;
    case Round::nvfp4:
      return gather_kernel<Round::nvfp4, false>;
    case Round::nvfp4_token:
      return gather_kernel<Round::nvfp4_token, false>;
    case Round::fp8_static:
      return out.e4m3 ? gather_kernel<Round::fp8_static, true> : gather_kernel<Round::fp8_static, false>;
    case Round::fp8_token:
      return out.e4m3 ? gather_kernel<Round::fp8_token, true> : gather_kernel<Round::fp8_token, false>;
    case Round::fp8_group:
      return out.e4m3 ? gather_kernel<Round::fp8_group, true> : gather_kernel<Round::fp8_group, false>;
  }
  return nullptr;
}

}  // namespace

void launch_gather(const RowsArgs& args, int64_t max_tiles, int max_n, Stream stream, bool pdl) {
  // Up to 1024 tokens the columns of one are spread over blocks, so that all reads and stores are under way at once.
  const int columns = args.out.k_blocks * (args.out.e4m3 ? 128 : 64);
  const int64_t blocks = args.source.max_tokens < 16384 ? args.source.max_tokens : 16384;
  const int parts = blocks <= 1024 ? ceil_div(columns, 8 * pieces_of(args.out.e4m3) * kThreads) : 1;
  launch(gather_kernel_of(args.out), dim3(static_cast<unsigned>(blocks > 0 ? blocks : 1), static_cast<unsigned>(parts)),
         kThreads, 0, stream, pdl, args);
  if (args.out.token_scale == nullptr) return;
  const dim3 tiles(static_cast<unsigned>(max_tiles), static_cast<unsigned>(ceil_div(max_n, kThreads)));
  launch(place_scales_kernel, tiles, kThreads, 0, stream, pdl, args);
}

}  // namespace sluice::sm90
