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

// The segments of a block: groups of 16 weight rows, which are numbered through the experts that are here.
struct BlockSegments {
  int groups;      // of an expert
  int first, num;  // the block's
  __device__ BlockSegments(int groups, int experts) : groups(groups) {
    const int total = experts * groups;
    first = total * static_cast<int>(blockIdx.x) / static_cast<int>(gridDim.x);
    num = total * static_cast<int>(blockIdx.x + 1) / static_cast<int>(gridDim.x) - first;
  }
  struct Place {
    int nth, group;  // as LanePairs counts experts; of its groups
  };
  __device__ Place place(int segment) const {
    const int at = first + segment, nth = at / groups;
    return {nth, at - nth * groups};
  }
};

// What all steps of the kernel refer to.
template <WeightOperand op>
struct FirstTask {
  const GemmArgs& g;
  const LanePairs pairs;
  const BlockSegments segments;
  const int parts;
  const Share share;
  __device__ FirstTask(const OneTokenArgs& a, int parts, const Share& share, int groups)
      : g(a.gemm[0]), pairs(a), segments(groups, pairs.num), parts(parts), share(share) {}
  // The M-tile of weights that has a segment.
  __device__ int64_t m_tile(const BlockSegments::Place& p) const {
    return static_cast<int64_t>(pairs.expert_of(p.nth)) * g.m_tiles + (p.group >> 3);
  }
  __device__ int columns_each() const { return g.epilogue.gated ? 8 : 16; }  // of a segment
};

// The caller's copies of what was chosen.
__device__ __forceinline__ void copy_routing(const OneTokenArgs& a) {
  const int pair = static_cast<int>(threadIdx.x);
  if (a.chosen_ids != nullptr && blockIdx.x == 0 && pair < a.top_k) {
    const int id = a.pairs.id(pair);
    a.chosen_ids[pair] = id >= 0 && id < a.experts ? id : -1;
  }
  if (a.chosen_weights != nullptr && blockIdx.x == 0 && pair < a.top_k) a.chosen_weights[pair] = a.pairs.weight(pair);
}

// Block scales of a warp's runs in the order in which it multiplies, of up and gate; 32 at a time, one per lane.
template <WeightOperand op>
class FirstBlockScales {
  using T = FirstTile<op>;

 public:
  __device__ explicit FirstBlockScales(const FirstTask<op>& task)
      : task_(task),
        runs_of_segment_(ceil_div(task.g.k_blocks, T::per_scale)),
        runs_each_(ceil_div(task.share.k_blocks(), T::per_scale)) {}
  // Of run `run` of the warp and the 31 that follow it, without the token's.
  __device__ __forceinline__ void load(int run) {
    run += static_cast<int>(threadIdx.x) & 31;
    const int s = min(task_.share.first + run / runs_each_ * task_.share.step, task_.segments.num - 1);
    run_ = task_.share.begin / T::per_scale + run % runs_each_;
    const float* p =
        task_.g.weights.block_scale + (task_.m_tile(task_.segments.place(s)) * runs_of_segment_ + run_) * 4;
    scales_ = {__ldg(p), task_.g.epilogue.gated ? __ldg(p + 1) : __ldg(p)};
  }
  // The token's are in shared memory when all have rounded.
  __device__ __forceinline__ void take_token_scale(const float* token_scales) {
    scales_.x *= token_scales[run_], scales_.y *= token_scales[run_];
  }
  __device__ __forceinline__ float2 of(int run) const {
    return {__shfl_sync(0xffffffffu, scales_.x, run & 31), __shfl_sync(0xffffffffu, scales_.y, run & 31)};
  }

 private:
  const FirstTask<op>& task_;
  int runs_of_segment_, runs_each_;
  float2 scales_ = {1.0f, 1.0f};
  int run_ = 0;  // of the segment
};

// Weights on their way to registers: the warp's k-blocks of one of its segments after the other.
template <WeightOperand op>
class FirstWeights {
  static constexpr int kLastPiece = RowGroup<op>::pieces - 1;  // has the scales of packed codes

 public:
  __device__ explicit FirstWeights(const FirstTask<op>& task)
      : task_(task), segment_(task.share.first), from_(task.g.weights.data) {
    if (task_.share.k_blocks() > 0 && segment_ < task_.segments.num) enter();
  }
  __device__ __forceinline__ void load_next(Fragment<op>& to) {
    if (left_ == 0) return;
    to.load(
        [&]<class V>(int piece, int offset) {
          const uint8_t* p = piece > 0 && piece == kLastPiece ? from_scales_ : from_ + 2048 * piece;
          return __ldcs(reinterpret_cast<const V*>(p + offset));
        },
        static_cast<int>(threadIdx.x) & 31);
    from_ += k_block_bytes(op), from_scales_ += k_block_bytes(op);
    if (--left_ == 0) {
      segment_ += task_.share.step;
      if (segment_ < task_.segments.num) enter();
    }
  }

 private:
  __device__ __forceinline__ void enter() {
    const BlockSegments::Place at = task_.segments.place(segment_);
    const int group = at.group & 7;
    from_ = task_.g.weights.data + (task_.m_tile(at) * task_.g.k_blocks + task_.share.begin) * k_block_bytes(op) +
            RowGroup<op>::from(group, 0);
    from_scales_ = from_ - RowGroup<op>::from(group, 0) + RowGroup<op>::from(group, kLastPiece);
    left_ = task_.share.k_blocks();
  }
  const FirstTask<op>& task_;
  int segment_, left_ = 0;  // k-blocks of the segment
  const uint8_t *from_, *from_scales_ = nullptr;
};

// The factors of the sums of one column, which a thread makes.
template <WeightOperand op>
struct ColumnFactors {
  const FirstTask<op>& task;
  float shared;  // by all sums
  float up = shared, gate = shared;
  // Of column i of the block; by whole warps.
  __device__ __forceinline__ void load(int i) {
    const GemmArgs& g = task.g;
    if (g.weights.row_scale == nullptr) return;
    const BlockSegments::Place at = task.segments.place(min(i / task.columns_each(), task.segments.num - 1));
    const float* p = g.weights.row_scale + task.m_tile(at) * kMTileRows + (at.group & 7) * 16 + i % task.columns_each();
    up = shared * __ldg(p);
    if (g.epilogue.gated) gate = shared * __ldg(p + 8);
  }
};

// The warp's part of all of its segments, to `sums`. held: the first k-blocks, which are on their way.
template <WeightOperand op>
__device__ __forceinline__ void multiply_segments(const FirstTask<op>& task, Fragment<op> (&held)[FirstTile<op>::ahead],
                                                  FirstWeights<op>& weights, FirstBlockScales<op>& block_scales,
                                                  const uint32_t* token, const float* token_scales, float* sums) {
  using T = FirstTile<op>;
  const Share& share = task.share;
  const int per_segment = share.k_blocks(), segments = task.segments.num;
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float c[2][4] = {}, sum[2] = {};
  const uint32_t* words = token + share.begin * kTokenWords<op> + (lane & 3) * (kTokenWords<op> / 4);
  int segment = share.first, left = per_segment, run = 0;
  const uint32_t* at = words;
  while (segment < segments && per_segment > 0) {
#pragma unroll
    for (int i = 0; i < T::ahead; ++i) {
      if (segment >= segments) break;
      held[i].multiply(at, c);
      weights.load_next(held[i]);
      at += kTokenWords<op>;
      --left;
      if constexpr (block_scaled(op)) {
        if (T::per_scale == 1 || left == 0 || ((per_segment - left) & (T::per_scale - 1)) == 0) {
          const float2 scale = block_scales.of(run);
          take_sums(c, sum, scale.x, scale.y);
          if ((++run & 31) == 0) {
            block_scales.load(run);
            block_scales.take_token_scale(token_scales);
          }
        }
      }
      if (left == 0) {
        if constexpr (!block_scaled(op)) take_sums(c, sum, 1.0f, 1.0f);
        store_sums<op>(sums, task.parts, segment, share.part, sum);
        sum[0] = sum[1] = 0.0f;
        segment += share.step, left = per_segment, at = words;
      }
    }
  }
  if (per_segment == 0)
    for (int s = share.first; s < segments; s += share.step) store_sums<op>(sums, task.parts, s, share.part, sum);
}

// The sums of the block's columns, activated, and the largest magnitude of each segment. factors: of the thread's first
// column.
template <WeightOperand op>
__device__ __forceinline__ void store_columns(const OneTokenArgs& a, const FirstTask<op>& task,
                                              ColumnFactors<op>& factors, const float* sums) {
  const EpilogueArgs& e = task.g.epilogue;
  const int columns_each = task.columns_each(), segments = task.segments.num, thread = static_cast<int>(threadIdx.x);
  for (int base = 0; base < segments * columns_each; base += FirstTile<op>::threads) {
    const int i = base + thread, s = i / columns_each;
    const BlockSegments::Place at = task.segments.place(min(s, segments - 1));
    const int column = at.group * columns_each + i % columns_each;
    const int pair = task.pairs.pair_of(at.nth), expert = task.pairs.expert_of(at.nth);
    if (base > 0) factors.load(i);
    float magnitude = 0.0f;
    if (s < segments && column < e.columns) {
      const float up = total_of(sums, task.parts, s, i % columns_each) * factors.up;
      const float gate = e.gated ? total_of(sums, task.parts, s, i % columns_each + 8) * factors.gate : 0.0f;
      magnitude = store_activated(a, pair, expert, column, up, gate);
    }
    if (scales_rows(e.round)) {
      const uint32_t most = amax_lanes(format::amax_bits(0, magnitude), columns_each);
      if (s < segments && i % columns_each == 0)
        a.middle_max[static_cast<int64_t>(pair) * task.segments.groups + at.group] = __uint_as_float(most);
    }
  }
}

template <WeightOperand op>
__global__ void __maxnreg__(FirstTile<op>::registers)
    one_token_first(const __grid_constant__ OneTokenArgs a, const int parts) {
  using T = FirstTile<op>;
  extern __shared__ __align__(16) uint32_t token[];  // [k_blocks][kTokenWords], then scales of the token and the sums
  const GemmArgs& g = a.gemm[0];
  float* token_scales = reinterpret_cast<float*>(token + g.k_blocks * kTokenWords<op>);
  float* sums = token_scales + token_scale_words<op>(g.k_blocks);
  // These divisions are done while the kernel before this one still runs.
  const Share share(static_cast<int>(threadIdx.x) >> 5, T::warps, parts, g.k_blocks, T::per_scale);
  const int groups = groups_of(g.epilogue.columns, g.epilogue.gated);
  touch_parameters(a);
  // In this order: one_token_second reads the ids without a wait of its own.
  ptx::griddepcontrol_wait();
  ptx::griddepcontrol_launch_dependents();
  if (no_token(a)) return;
  // The token and block scales are asked for before the weights, which would be ahead of them.
  const TokenRow<op> row(a);
  const InputScale scale = *g.x.scale;
  const FirstTask<op> task(a, parts, share, groups);
  copy_routing(a);
  if (task.segments.num == 0) return;
  const bool has_share = share.k_blocks() > 0;
  FirstBlockScales<op> block_scales(task);
  if (block_scaled(op) && has_share) block_scales.load(0);
  FirstWeights<op> weights(task);
  Fragment<op> held[T::ahead];
#pragma unroll
  for (int i = 0; i < T::ahead; ++i) weights.load_next(held[i]);

  const float shared = row.store(scale, g.epilogue.round, token, token_scales, sums);
  ColumnFactors<op> factors{task, shared};
  factors.load(static_cast<int>(threadIdx.x));
  __syncthreads();
  if (block_scaled(op) && has_share) block_scales.take_token_scale(token_scales);

  multiply_segments(task, held, weights, block_scales, token, token_scales, sums);
  __syncthreads();
  store_columns(a, task, factors, sums);
}

}  // namespace sluice::sm90
