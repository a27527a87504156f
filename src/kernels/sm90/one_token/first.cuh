// SPDX-License-Identifier: Apache-2.0
// The first product of one token: up and gate of its experts, activated. Blocks share the 16-row groups of all experts
// evenly; weights go from memory to registers, some k-blocks ahead.
#pragma once

#include "kernels/sm90/grouped_gemm/epilogue.cuh"
#include "kernels/sm90/one_token/token_rounding.cuh"

namespace sluice::sm90 {

// One activated column of a pair.
__device__ __forceinline__ float store_activated(const OneTokenArgs& a, int pair, int expert, int column, float up,
                                                 float gate) {
  const EpilogueArgs& e = a.gemm[0].epilogue;
  const int64_t at = static_cast<int64_t>(expert) * e.columns + column;
  if (e.activation.bias != nullptr) up += e.activation.bias[at];
  if (e.activation.bias_gate != nullptr) gate += e.activation.bias_gate[at];
  activation::Params params;
  if (e.activation.alpha != nullptr) params.alpha = e.activation.alpha[expert];
  if (e.activation.beta != nullptr) params.beta = e.activation.beta[expert];
  if (e.activation.limit != nullptr) params.limit = e.activation.limit[expert];
  const float w = a.weighs_input ? a.pairs.weight(pair) : 1.0f;
  float v[1] = {up * w};
  activate(e.act, v, {gate * w}, params);
  if (a.middle_bf16) v[0] = __uint_as_float(ptx::cvt_bf16x2_f32(0.0f, v[0]) << 16);
  a.middle[static_cast<int64_t>(pair) * e.columns + column] = v[0];
  return v[0];
}

// The token on its way to the words that the block's warps multiply by.
template <WeightOperand op>
struct TokenRow {
  using T = FirstTile<op>;
  static constexpr int kPieces = k_block_columns(op) / 8;
  const bf16_t* x;
  int columns, pieces;  // of eight columns, with padding
  Eight<bf16_t> first;
  __device__ explicit TokenRow(const OneTokenArgs& a)
      : x(a.x), columns(a.x_columns), pieces(a.gemm[0].k_blocks * kPieces) {
    first = piece(static_cast<int>(threadIdx.x));
  }
  __device__ Eight<bf16_t> piece(int i) const { return load_eight<true>(x, 8 * i, columns, i < pieces); }
  // f(i, its eight columns), by whole warps.
  template <class F>
  __device__ void each(F&& f) const {
    const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
#pragma unroll 1
    for (int i = thread; i - lane < pieces; i += T::threads) {
      float v[8];
      widen(i == thread ? first : piece(i), v);
      f(i, v);
    }
  }
  // Rounds and stores all of it; the scales of 128 columns to `scales`. `maxima`: a float of each warp. Returns the
  // factor of the sums.
  __device__ float store(const InputScale& scale, Round round, uint32_t* token, float* scales, float* maxima) const {
    const int warp = static_cast<int>(threadIdx.x) >> 5, lane = static_cast<int>(threadIdx.x) & 31;
    uint32_t amax = 0;
    if (scales_rows(round)) {
      each([&](int, const float(&v)[8]) { amax = max(amax, amax8(v)); });
      amax = __reduce_max_sync(0xffffffffu, amax);
      if (lane == 0) maxima[warp] = __uint_as_float(amax);
      __syncthreads();
      amax = __reduce_max_sync(0xffffffffu, __float_as_uint(maxima[lane % T::warps]));
    }
    const TokenRounding rounding(scale, round, amax);
    each([&](int i, const float(&v)[8]) {
      const float f =
          store_rounded<op>(rounding, scale, round, v, i < pieces, token + i / kPieces * kTokenWords<op>, i % kPieces);
      if (block_scaled(op) && i < pieces && i % 16 == 0) scales[i / 16] = f;
    });
    return rounding.factor;
  }
};

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
  float* token_scales = reinterpret_cast<float*>(token + g.k_blocks * kTokenWords<op>);
  float* sums = token_scales + token_scale_words<op>(g.k_blocks);
  touch_parameters(a);
  // In this order: one_token_second reads the ids without a wait of its own.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (a.num_tokens != nullptr && *a.num_tokens <= 0) return;
  // The token and block scales are asked for before the weights, which would be ahead of them.
  const TokenRow<op> row(a);
  const InputScale scale = *g.x.scale;
  const LanePairs pairs(a);
  if (a.chosen_ids != nullptr && blockIdx.x == 0 && thread < a.top_k) {
    const int id = a.pairs.id(thread);
    a.chosen_ids[thread] = id >= 0 && id < a.experts ? id : -1;
  }
  if (a.chosen_weights != nullptr && blockIdx.x == 0 && thread < a.top_k)
    a.chosen_weights[thread] = a.pairs.weight(thread);
  const int total = pairs.num * groups;
  const int first = total * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x),
            segments = total * static_cast<int>(blockIdx.x + 1) / static_cast<int>(gridDim.x) - first;
  if (segments == 0) return;

  // Block scales of the warp's units in the order in which it multiplies, without the token's; 32 at a time, one per
  // lane.
  const int units_of_segment = ceil_div(g.k_blocks, T::sub), units_each = ceil_div(per_segment, T::sub);
  float2 block_scales = {1.0f, 1.0f};
  int block_run = 0;
  const auto load_block_scales = [&](int unit) {
    const int s = min(share.first + unit / units_each * share.step, segments - 1);
    block_run = share.begin / T::sub + unit % units_each;
    const int at = first + s, t = at / groups;
    const float* p =
        g.weights.block_scale +
        ((static_cast<int64_t>(pairs.expert_of(t)) * g.m_tiles + ((at - t * groups) >> 3)) * units_of_segment +
         block_run) *
            4;
    block_scales = {__ldg(p), g.epilogue.gated ? __ldg(p + 1) : __ldg(p)};
  };
  // The token's are in shared memory when all have rounded.
  const auto take_token_scale = [&] {
    block_scales.x *= token_scales[block_run], block_scales.y *= token_scales[block_run];
  };
  if constexpr (block_scaled(op))
    if (per_segment > 0) load_block_scales(lane);

  // Weights on their way: the warp's k-blocks of one of its segments after the other.
  Fragment<op> held[T::ahead];
  int load_segment = share.first, load_left = 0;
  const uint8_t *from = g.weights.data, *from_scales = nullptr;
  const auto enter = [&]() {
    const int at = first + load_segment, t = at / groups, in_expert = at - t * groups;
    from = g.weights.data +
           ((static_cast<int64_t>(pairs.expert_of(t)) * g.m_tiles + (in_expert >> 3)) * g.k_blocks + share.begin) *
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

  const float shared = row.store(scale, g.epilogue.round, token, token_scales, sums);  // the factor of all sums
  // What a thread needs last.
  const int columns_each = g.epilogue.gated ? 8 : 16;
  float up_scale = shared, gate_scale = shared;
  const auto load_scales = [&](int i) {  // the whole warp
    if (g.weights.row_scale == nullptr) return;
    const int at = first + min(i / columns_each, segments - 1), t = at / groups, in_expert = at - t * groups;
    const float* p = g.weights.row_scale +
                     (static_cast<int64_t>(pairs.expert_of(t)) * g.m_tiles + (in_expert >> 3)) * kMTileRows +
                     (in_expert & 7) * 16 + i % columns_each;
    up_scale = shared * __ldg(p);
    if (g.epilogue.gated) gate_scale = shared * __ldg(p + 8);
  };
  load_scales(thread);
  __syncthreads();
  if constexpr (block_scaled(op))
    if (per_segment > 0) take_token_scale();

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
          if ((++unit & 31) == 0) {
            load_block_scales(unit + lane);
            take_token_scale();
          }
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
    const int pair = pairs.pair_of(t), expert = pairs.expert_of(t);
    if (base > 0) load_scales(i);
    float magnitude = 0.0f;
    if (s < segments && column < g.epilogue.columns) {
      const float up = total_of(sums, parts, s, i % columns_each) * up_scale;
      const float gate = g.epilogue.gated ? total_of(sums, parts, s, i % columns_each + 8) * gate_scale : 0.0f;
      magnitude = store_activated(a, pair, expert, column, up, gate);
    }
    if (scales_rows(g.epilogue.round)) {
      const uint32_t most = amax_lanes(format::amax_bits(0, magnitude), columns_each);
      if (s < segments && i % columns_each == 0)
        a.middle_max[static_cast<int64_t>(pair) * groups + in_expert] = __uint_as_float(most);
    }
  }
}

}  // namespace sluice::sm90
