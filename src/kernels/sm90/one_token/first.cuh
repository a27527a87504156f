// SPDX-License-Identifier: Apache-2.0
// The first product of one token: up and gate of its experts, activated. Blocks share the 16-row groups of all experts
// evenly; weights go from memory to registers, some k-blocks ahead.
#pragma once

#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/one_token/shared.cuh"

namespace sluice::sm90 {

// One activated column, for every row of the tile. Returns the last row's value: rows of a repeated expert are equal
// wherever maxima are read (runs_one_token).
__device__ __forceinline__ float store_activated(const OneTokenArgs& a, const RowTile& tile, int column, float up,
                                                 float gate) {
  const EpilogueArgs& e = a.gemm[0].epilogue;
  const int64_t at = static_cast<int64_t>(tile.expert) * e.columns + column;
  if (e.activation.bias != nullptr) up += e.activation.bias[at];
  if (e.activation.bias_gate != nullptr) gate += e.activation.bias_gate[at];
  activation::Params params;
  if (e.activation.alpha != nullptr) params.alpha = e.activation.alpha[tile.expert];
  if (e.activation.beta != nullptr) params.beta = e.activation.beta[tile.expert];
  if (e.activation.limit != nullptr) params.limit = e.activation.limit[tile.expert];
  float last = 0.0f;
  for (int n = 0; n < tile.count; ++n) {  // the same expert more than once
    const int64_t row = static_cast<int64_t>(tile.row_base) + n;
    const float w = e.pair_weight != nullptr ? e.pair_weight[a.row_pair[row]] : 1.0f;
    float v[1] = {up * w};
    activate(e.act, v, {gate * w}, params);
    if (a.middle_bf16) v[0] = __uint_as_float(ptx::cvt_bf16x2_f32(0.0f, v[0]) << 16);
    a.middle[row * e.columns + column] = v[0];
    last = v[0];
  }
  return last;
}

template <WeightOperand op>
__global__ void __maxnreg__(FirstTile<op>::registers)
    one_token_first(const __grid_constant__ OneTokenArgs a, const int parts) {
  using T = FirstTile<op>;
  extern __shared__ __align__(16) uint32_t token[];  // [k_blocks][kTokenWords], then the sums
  const GemmArgs& g = a.gemm[0];
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5, lane = thread & 31;
  const int groups = groups_of(g.epilogue.columns, g.epilogue.gated);
  const Share share(warp, T::warps, parts, g.k_blocks, T::sub);
  const int per_segment = share.end - share.begin;
  float* sums = reinterpret_cast<float*>(token + g.k_blocks * kTokenWords<op>);
  touch_parameters(a);
  // In this order: one_token_second reads the tables without a wait of its own.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (a.num_tokens != nullptr && *a.num_tokens <= 0) return;
  const LaneTiles tiles(a);
  const int total = tiles.num * groups;
  const int first = total * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x),
            segments = total * static_cast<int>(blockIdx.x + 1) / static_cast<int>(gridDim.x) - first;
  if (segments == 0) return;
  // The token, from row 0 of the first tile: asked for before the weights, which would be ahead of it.
  const int row0 = tiles.row_base(0), padded = __shfl_sync(0xffffffffu, tiles.tile.padded, 0);
  const uint8_t* x = g.x.data + static_cast<int64_t>(row0) * g.k_blocks * 128;
  const auto load_x = [&](int i) {
    return __ldcg(reinterpret_cast<const uint4*>(x + static_cast<int64_t>(i >> 3) * padded * 128) + (i & 7));
  };
  uint4 first_x{};
  if (thread < g.k_blocks * 8) first_x = load_x(thread);

  // Weights on their way: the warp's k-blocks of one of its segments after the other.
  Fragment<op> held[T::ahead];
  int load_segment = share.first, load_left = 0;
  const uint8_t *from = g.weights.data, *from_scales = nullptr;
  const auto enter = [&]() {
    const int at = first + load_segment, t = at / groups, in_expert = at - t * groups;
    from = g.weights.data +
           ((static_cast<int64_t>(tiles.expert(t)) * g.m_tiles + (in_expert >> 3)) * g.k_blocks + share.begin) *
               k_block_bytes(op) +
           RowGroup<op>::from(in_expert & 7, 0);
    from_scales =
        from - RowGroup<op>::from(in_expert & 7, 0) + RowGroup<op>::from(in_expert & 7, RowGroup<op>::pieces - 1);
    load_left = per_segment;
  };
  if (per_segment > 0 && load_segment < segments) enter();
  const auto load_next = [&](Fragment<op>& to) {
    if (load_left == 0) return;
    to.load(
        [&]<class V>(int piece, int offset) {
          const uint8_t* p = piece > 0 && piece == RowGroup<op>::pieces - 1 ? from_scales : from + 2048 * piece;
          return __ldcs(reinterpret_cast<const V*>(p + offset));
        },
        lane);
    from += k_block_bytes(op), from_scales += k_block_bytes(op);
    if (--load_left == 0) {
      load_segment += share.step;
      if (load_segment < segments) enter();
    }
  };
#pragma unroll
  for (int i = 0; i < T::ahead; ++i) load_next(held[i]);

  for (int i = thread; i < g.k_blocks * 8; i += T::threads) {
    const uint4 v = i == thread ? first_x : load_x(i);
    uint32_t* to = token + (i >> 3) * kTokenWords<op>;
    const uint32_t from_row[4] = {v.x, v.y, v.z, v.w};
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      if constexpr (is_fp8(op)) {
        to[token_word<op>(2 * (i & 7) + (w >> 1), 2 * (w & 1))] =
            ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(from_row[w]));
        to[token_word<op>(2 * (i & 7) + (w >> 1), 2 * (w & 1) + 1)] =
            ptx::cvt_f16x2_e4m3x2(static_cast<uint16_t>(from_row[w] >> 16));
      } else {
        to[token_word<op>(i & 7, w)] = from_row[w];
      }
    }
  }
  // What a thread needs last.
  const int columns_each = g.epilogue.gated ? 8 : 16;
  const float shared = g.x.scale->factor * (g.x.row_scale != nullptr ? __ldcg(g.x.row_scale + row0) : 1.0f);
  float up_scale = shared, gate_scale = shared;
  const auto load_scales = [&](int i) {  // the whole warp
    if (g.weights.row_scale == nullptr) return;
    const int at = first + min(i / columns_each, segments - 1), t = at / groups, in_expert = at - t * groups;
    const float* p = g.weights.row_scale +
                     (static_cast<int64_t>(tiles.expert(t)) * g.m_tiles + (in_expert >> 3)) * kMTileRows +
                     (in_expert & 7) * 16 + i % columns_each;
    up_scale = shared * __ldg(p);
    if (g.epilogue.gated) gate_scale = shared * __ldg(p + 8);
  };
  load_scales(thread);
  // Block scales of the warp's units in the order in which it multiplies, times the token's; 32 at a time, one per
  // lane.
  const int units_of_segment = ceil_div(g.k_blocks, T::sub), units_each = ceil_div(per_segment, T::sub);
  float2 block_scales = {1.0f, 1.0f};
  const auto load_block_scales = [&](int unit) {
    const int s = min(share.first + unit / units_each * share.step, segments - 1);
    const int run = share.begin / T::sub + unit % units_each;
    const int at = first + s, t = at / groups;
    const float* p =
        g.weights.block_scale +
        ((static_cast<int64_t>(tiles.expert(t)) * g.m_tiles + ((at - t * groups) >> 3)) * units_of_segment + run) * 4;
    const float of_token =
        __ldcg(g.x.block_scale + static_cast<int64_t>(row0) * units_of_segment + static_cast<int64_t>(run) * padded);
    block_scales = {__ldg(p) * of_token, (g.epilogue.gated ? __ldg(p + 1) : __ldg(p)) * of_token};
  };
  if constexpr (block_scaled(op))
    if (per_segment > 0) load_block_scales(lane);
  __syncthreads();

  float c[2][4] = {}, sum[2] = {};
  const uint32_t* words = token + share.begin * kTokenWords<op> + (lane & 3) * (kTokenWords<op> / 4);
  int segment = share.first, left = per_segment, unit = 0;
  const uint32_t* at = words;
  while (segment < segments && per_segment > 0) {
#pragma unroll
    for (int i = 0; i < T::ahead; ++i) {
      if (segment >= segments) break;
      held[i].multiply(at, c);
      load_next(held[i]);
      at += kTokenWords<op>;
      --left;
      if constexpr (block_scaled(op)) {
        if (T::sub == 1 || left == 0 || ((per_segment - left) & (T::sub - 1)) == 0) {
          take_sums(c, sum, __shfl_sync(0xffffffffu, block_scales.x, unit & 31),
                    __shfl_sync(0xffffffffu, block_scales.y, unit & 31));
          if ((++unit & 31) == 0) load_block_scales(unit + lane);
        }
      }
      if (left == 0) {
        if constexpr (!block_scaled(op)) take_sums(c, sum, 1.0f, 1.0f);
        store_sums<op>(sums, parts, segment, share.part, sum);
        sum[0] = sum[1] = 0.0f;
        segment += share.step, left = per_segment, at = words;
      }
    }
  }
  if (per_segment == 0)
    for (int s = share.first; s < segments; s += share.step) store_sums<op>(sums, parts, s, share.part, sum);
  __syncthreads();
  // Sums to columns.
  for (int base = 0; base < segments * columns_each; base += T::threads) {
    const int i = base + thread, s = i / columns_each, in_all = first + min(s, segments - 1), t = in_all / groups;
    const int in_expert = in_all - t * groups, column = in_expert * columns_each + i % columns_each;
    const RowTile tile{tiles.expert(t), tiles.row_base(t), tiles.count(t), 0};
    if (base > 0) load_scales(i);
    float magnitude = 0.0f;
    if (s < segments && column < g.epilogue.columns) {
      const float up = total_of(sums, parts, s, i % columns_each) * up_scale;
      const float gate = g.epilogue.gated ? total_of(sums, parts, s, i % columns_each + 8) * gate_scale : 0.0f;
      magnitude = store_activated(a, tile, column, up, gate);
    }
    if (scales_rows(g.epilogue.round)) {
      const uint32_t most = amax_lanes(format::amax_bits(0, magnitude), columns_each);
      if (s < segments && i % columns_each == 0)
        for (int n = 0; n < tile.count; ++n)
          a.middle_max[(static_cast<int64_t>(tile.row_base) + n) * groups + in_expert] = __uint_as_float(most);
    }
  }
}

}  // namespace sluice::sm90
