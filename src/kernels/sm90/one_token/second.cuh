// SPDX-License-Identifier: Apache-2.0
// The second product of one token, and the sum over its experts. A block, or a cluster of blocks that share the
// experts, has 16 columns of the result. Its weights are on their way to shared memory while the first product runs.
// Each warp rounds the part of the activated rows that it multiplies.
#pragma once

#include "kernels/ptx/st_async.cuh"
#include "kernels/sm90/few_rows/load.cuh"
#include "kernels/sm90/one_token/token_rounding.cuh"

namespace sluice::sm90 {

__device__ __forceinline__ void store_result(const EpilogueArgs& e, int64_t at, float v) {
  static_cast<uint16_t*>(e.out)[at] = static_cast<uint16_t>(ptx::cvt_bf16x2_f32(0.0f, v));
}

// What a block does: some of the experts, for 16 columns of the result.
template <WeightOperand op>
struct SecondTask {
  const OneTokenArgs& a;
  const OneTokenPlan& plan;
  const GemmArgs& g;
  bool none;  // there is no token
  const LanePairs pairs;
  int rank;             // of the block in its cluster
  int group;            // of 16 weight rows, which are columns of the result
  int first, segments;  // the experts that are here and the block's, a segment each
  const Share share;
  __device__ SecondTask(const OneTokenArgs& a, const OneTokenPlan& plan)
      : a(a),
        plan(plan),
        g(a.gemm[1]),
        none(no_token(a)),
        pairs(a),
        rank(static_cast<int>(blockIdx.x) % plan.cluster),
        group(static_cast<int>(blockIdx.x) / plan.cluster),
        share(static_cast<int>(threadIdx.x) >> 5, SecondTile<op>::warps, plan.second_parts, g.k_blocks,
              SecondTile<op>::per_scale) {
    const int num = none ? 0 : pairs.num;
    first = num * rank / plan.cluster, segments = num * (rank + 1) / plan.cluster - first;
  }
  // The M-tile of weights that has a segment.
  __device__ int64_t m_tile(int segment) const {
    return static_cast<int64_t>(pairs.expert_of(first + segment)) * g.m_tiles + (group >> 3);
  }
};

// A block's shared memory.
template <WeightOperand op>
struct SecondMemory {
  using T = SecondTile<op>;
  // Of the warp: the ring of weights, the rounded columns, the block scales of its runs, the barriers of the ring.
  uint8_t* ring;
  uint32_t* words;
  float* block_scales;
  uint64_t* full;
  // Of the block.
  float* sums;
  float* results;       // [top_k][16]
  float* pair_weights;  // [top_k]
  __device__ SecondMemory(uint8_t* memory, const OneTokenPlan& plan, int top_k) {
    const int warp = static_cast<int>(threadIdx.x) >> 5, stages = plan.stages, most = plan.warp_k_blocks;
    ring = memory + warp * stages * T::stage_bytes;
    words = reinterpret_cast<uint32_t*>(memory + T::warps * stages * T::stage_bytes);
    block_scales = reinterpret_cast<float*>(words + T::warps * most * kTokenWords<op>);
    full = reinterpret_cast<uint64_t*>(block_scales + T::warps * most);
    sums = reinterpret_cast<float*>(full + T::warps * stages);
    results = sums + ceil_div(top_k, plan.cluster) * plan.second_parts * 16;
    pair_weights = results + top_k * 16;
    words += warp * most * kTokenWords<op>, block_scales += warp * most, full += warp * stages;
  }
};

// The warp's ring of weights: stages of some k-blocks of one of its segments after the other.
template <WeightOperand op>
class SecondWeights {
  using T = SecondTile<op>;
  using Rows = RowGroup<op>;

 public:
  // After the ring's barriers were made.
  __device__ SecondWeights(const SecondTask<op>& task, const SecondMemory<op>& memory)
      : task_(task),
        memory_(memory),
        load_segment_(task.share.first),
        load_k_(task.share.begin),
        more_(task.share.k_blocks() > 0 && load_segment_ < task.segments),
        policy_(ptx::createpolicy_evict_first()),
        from_(more_ ? segment_begin() : nullptr) {
    for (int i = 0; i < task.plan.stages; ++i) load_next();
  }
  __device__ __forceinline__ void wait() const { ptx::mbarrier_wait(memory_.full + stage_, phase_); }
  // K-block i of the stage that was waited for.
  __device__ __forceinline__ void read(int i, Fragment<op>& to) const {
    to.load(
        [&]<class V>(int piece, int offset) {
          return *reinterpret_cast<const V*>(memory_.ring + stage_ * T::stage_bytes + i * T::k_block_stage +
                                             Rows::offset(piece) + offset);
        },
        static_cast<int>(threadIdx.x) & 31);
  }
  // The warp has read the stage: other weights go there.
  __device__ __forceinline__ void advance() {
    if (more_) {
      __syncwarp();
      load_next();
    }
    if (++stage_ == task_.plan.stages) stage_ = 0, phase_ ^= 1u;
  }

 private:
  __device__ __forceinline__ const uint8_t* segment_begin() const {
    return task_.g.weights.data + (task_.m_tile(load_segment_) * task_.g.k_blocks + load_k_) * k_block_bytes(op);
  }
  __device__ __forceinline__ void load_next() {
    if (!more_) return;
    const int count = min(T::stage_k_blocks, task_.share.end - load_k_), group = task_.group & 7;
    if ((threadIdx.x & 31) == 0) {
      uint64_t* full = memory_.full + load_stage_;
      ptx::mbarrier_arrive_expect_tx(full, count * Rows::bytes);
      for (int i = 0; i < count; ++i)
#pragma unroll
        for (int p = 0; p < Rows::pieces; ++p)
          ptx::cp_async_bulk(memory_.ring + load_stage_ * T::stage_bytes + i * T::k_block_stage + Rows::offset(p),
                             from_ + i * k_block_bytes(op) + Rows::from(group, p), Rows::bytes_of(p), full, policy_);
    }
    if (++load_stage_ == task_.plan.stages) load_stage_ = 0;
    load_k_ += count, from_ += count * k_block_bytes(op);
    if (load_k_ == task_.share.end) {
      load_k_ = task_.share.begin, load_segment_ += task_.share.step;
      more_ = load_segment_ < task_.segments;
      if (more_) from_ = segment_begin();
    }
  }
  const SecondTask<op>& task_;
  const SecondMemory<op>& memory_;
  int load_segment_, load_k_, load_stage_ = 0;
  bool more_;
  uint64_t policy_;
  const uint8_t* from_;
  int stage_ = 0;  // the one to multiply by
  uint32_t phase_ = 0;
};

// What a thread needs for one row of a segment when the sums are there. By whole warps.
template <WeightOperand op>
struct ResultRow {
  float scale;
  int pair;
  __device__ ResultRow(const SecondTask<op>& task, int segment) {
    const int s = min(segment, max(task.segments - 1, 0)), row = static_cast<int>(threadIdx.x) & 15;
    const float* scales = task.g.weights.row_scale;
    const int64_t m_tile = task.m_tile(s);
    scale = scales != nullptr ? __ldg(scales + m_tile * kMTileRows + ((task.group & 7) * 16 + row)) : 1.0f;
    pair = task.pairs.pair_of(task.first + s);
  }
};

// The weights' block scales of the warp's runs, to shared memory.
template <WeightOperand op>
__device__ __forceinline__ void load_block_scales(const SecondTask<op>& task, const SecondMemory<op>& memory) {
  using T = SecondTile<op>;
  const Share& share = task.share;
  const int runs_of_segment = ceil_div(task.g.k_blocks, T::per_scale);
  const int runs_each = ceil_div(share.k_blocks(), T::per_scale);
  for (int s = share.first, run = 0; s < task.segments; s += share.step, run += runs_each) {
    const int64_t at = task.m_tile(s) * runs_of_segment + share.begin / T::per_scale;
    for (int i = static_cast<int>(threadIdx.x) & 31; i < runs_each; i += 32)
      memory.block_scales[run + i] = __ldg(task.g.weights.block_scale + (at + i) * 4);
  }
}

// The rows between the products, and how they are rounded.
struct MiddleRows {
  const float *values, *maxima;  // [top_k, columns], [top_k, groups]
  int columns, groups;
  InputScale scale;
  Round round;
  __device__ explicit MiddleRows(const OneTokenArgs& a)
      : values(a.middle),
        maxima(a.middle_max),
        columns(a.gemm[0].epilogue.columns),
        groups(groups_of(columns, a.gemm[0].epilogue.gated)),
        scale(*a.gemm[1].x.scale),
        round(a.gemm[0].epilogue.round) {}
  // Of a pair. By whole warps, when the first product has ended.
  __device__ __forceinline__ TokenRounding rounding(int pair) const {
    uint32_t amax = 0;
    if (scales_rows(round)) {
      const float* from = maxima + static_cast<int64_t>(pair) * groups;
#pragma unroll 4
      for (int i = static_cast<int>(threadIdx.x) & 31; i < groups; i += 32)
        amax = max(amax, __float_as_uint(__ldcg(from + i)));
      amax = __reduce_max_sync(0xffffffffu, amax);
    }
    return TokenRounding(scale, round, amax);
  }
};

// Rounds what the warp multiplies of the rows between the products. Their block scales multiply those of the weights.
// Returns the factor of the sums of the warp's first segment.
template <WeightOperand op>
__device__ __forceinline__ float round_rows(const SecondTask<op>& task, const SecondMemory<op>& memory,
                                            const MiddleRows& rows) {
  using T = SecondTile<op>;
  constexpr int kPieces = T::columns / 8;
  constexpr int kHeld = 3;  // chunks whose reads are under way together
  const Share& share = task.share;
  const int per_segment = share.k_blocks(), runs_each = ceil_div(per_segment, T::per_scale);
  const int lane = static_cast<int>(threadIdx.x) & 31;
  float first_factor = rows.scale.factor;
  if (per_segment == 0) return first_factor;
  int at = 0, run = 0;  // of the warp
  for (int s = share.first; s < task.segments; s += share.step, at += per_segment, run += runs_each) {
    const int pair = task.pairs.pair_of(task.first + s);
    const float* values = rows.values + static_cast<int64_t>(pair) * rows.columns;
    const TokenRounding rounding = rows.rounding(pair);
    if (s == share.first) first_factor = rounding.factor;
    for (int k = share.begin; k < share.end; k += kHeld * T::chunk) {
      float v[kHeld][8];
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        const int chunk = k + h * T::chunk;
        if (chunk < share.end) widen(load_eight<true>(values, chunk * T::columns + 8 * lane, rows.columns, true), v[h]);
      }
#pragma unroll
      for (int h = 0; h < kHeld; ++h) {
        if (k + h * T::chunk >= share.end) break;
        const int k_block = k + h * T::chunk + lane / kPieces - share.begin;
        const bool real = k_block < per_segment;
        const float f = store_rounded<op>(rounding, rows.scale, rows.round, v[h], real,
                                          memory.words + (at + k_block) * kTokenWords<op>, lane % kPieces);
        if (block_scaled(op) && real && lane % 16 == 0) memory.block_scales[run + k_block / T::per_scale] *= f;
      }
    }
  }
  return first_factor;
}

// The warp's part of all of its segments, to the block's sums.
template <WeightOperand op>
__device__ __forceinline__ void multiply_rows(const SecondTask<op>& task, const SecondMemory<op>& memory,
                                              SecondWeights<op>& weights, const MiddleRows& rows, float first_factor) {
  using T = SecondTile<op>;
  const Share& share = task.share;
  const int per_segment = share.k_blocks();
  float c[2][4] = {}, sum[2] = {};
  const uint32_t* at = memory.words + (threadIdx.x & 3) * (kTokenWords<op> / 4);
  const float* block_scale = memory.block_scales;
  for (int s = share.first; s < task.segments; s += share.step) {
    for (int k = 0; k < per_segment; k += T::stage_k_blocks) {
      weights.wait();
      Fragment<op> held[T::stage_k_blocks];
#pragma unroll
      for (int i = 0; i < T::stage_k_blocks; ++i)
        if (i == 0 || k + i < per_segment) weights.read(i, held[i]);
#pragma unroll
      for (int i = 0; i < T::stage_k_blocks; ++i) {
        if (i > 0 && k + i >= per_segment) break;
        held[i].multiply(at, c);
        at += kTokenWords<op>;
        if constexpr (block_scaled(op)) {
          if (T::per_scale == 1 || i % T::per_scale == T::per_scale - 1 || k + i + 1 == per_segment) {
            const float f = *block_scale++;
            take_sums(c, sum, f, f);
          }
        }
      }
      weights.advance();
    }
    if constexpr (!block_scaled(op)) take_sums(c, sum, 1.0f, 1.0f);
    float factor = first_factor;
    if (s != share.first && scales_rows(rows.round)) factor = rows.rounding(task.pairs.pair_of(task.first + s)).factor;
    sum[0] *= factor, sum[1] *= factor;
    store_sums<op>(memory.sums, task.plan.second_parts, s, share.part, sum);
    sum[0] = sum[1] = 0.0f;
  }
}

// The results of the block's experts: to memory, or to where the cluster's first block adds them. of: the
// thread's first row.
template <WeightOperand op>
__device__ __forceinline__ void store_pairs(const SecondTask<op>& task, const SecondMemory<op>& memory,
                                            ResultRow<op> of) {
  const EpilogueArgs& e = task.g.epilogue;
  const int thread = static_cast<int>(threadIdx.x), row = thread & 15, column = task.group * 16 + row;
  for (int base = 0; base < task.segments * 16; base += SecondTile<op>::threads) {
    const int s = (base + thread) >> 4;
    if (base > 0) of = ResultRow<op>(task, s);
    const int expert = task.pairs.expert_of(task.first + min(s, task.segments - 1));
    if (s >= task.segments || column >= e.columns) continue;
    float r = total_of(memory.sums, task.plan.second_parts, s, row) * of.scale;
    if (e.activation.bias != nullptr) r += __ldg(e.activation.bias + static_cast<int64_t>(expert) * e.columns + column);
    if (!task.a.finalize) {
      store_result(e, static_cast<int64_t>(of.pair) * e.columns + column, r);
    } else {
      // To the place of its pair: the sum is in the order of choice.
      r = __uint_as_float(ptx::cvt_bf16x2_f32(0.0f, r) << 16);
      float* to = memory.results + of.pair * 16 + row;
      if (task.rank == 0)
        *to = r;
      else
        ptx::st_cluster_f32(ptx::mapa(ptx::smem_address(to), 0), r);
    }
  }
}

// Not finalized: the results of pairs that are not here are zero.
template <WeightOperand op>
__device__ __forceinline__ void clear_absent(const SecondTask<op>& task, int column) {
  for (int pair = static_cast<int>(threadIdx.x) >> 4; pair < task.a.top_k; pair += SecondTile<op>::threads / 16)
    if ((task.pairs.here >> pair & 1) == 0)
      store_result(task.g.epilogue, static_cast<int64_t>(pair) * task.g.epilogue.columns + column, 0.0f);
}

// One column of the layer's result.
template <WeightOperand op>
__device__ __forceinline__ void add_pairs(const SecondTask<op>& task, const SecondMemory<op>& memory, int column) {
  float r = 0.0f;
#pragma unroll 8
  for (int pair = 0; pair < task.a.top_k; ++pair)
    if ((task.pairs.here >> pair & 1) != 0)
      r = fmaf(memory.pair_weights[pair], memory.results[pair * 16 + (threadIdx.x & 15)], r);
  store_result(task.g.epilogue, column, r);
}

template <WeightOperand op>
__global__ void __maxnreg__(SecondTile<op>::registers)
    one_token_second(const __grid_constant__ OneTokenArgs a, const __grid_constant__ OneTokenPlan plan) {
  extern __shared__ __align__(128) uint8_t ring[];
  const int thread = static_cast<int>(threadIdx.x), lane = thread & 31;
  const SecondMemory<op> memory(ring, plan, a.top_k);
  for (int i = lane; i < plan.stages; i += 32) ptx::mbarrier_init(memory.full + i, 1);
  ptx::fence_mbarrier_init();
  touch_parameters(a);
  // The ids are there: the first product waited for them before it let this kernel start.
  const SecondTask<op> task(a, plan);
  __syncwarp();
  // What does not depend on the first product is asked for while that runs.
  SecondWeights<op> weights(task, memory);
  const ResultRow<op> of_first(task, thread >> 4);
  const MiddleRows rows(a);
  if constexpr (block_scaled(op)) load_block_scales(task, memory);

  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  __syncthreads();
  const bool clustered = plan.cluster > 1;
  if (clustered) ptx::cluster_arrive_relaxed();
  if (thread < (task.none ? 0 : task.pairs.num)) {
    const int pair = task.pairs.pair;
    memory.pair_weights[pair] = a.weighs_input ? 1.0f : a.pairs.weight(pair);
  }

  const float first_factor = round_rows(task, memory, rows);
  __syncwarp();
  multiply_rows(task, memory, weights, rows, first_factor);
  __syncthreads();
  if (clustered) ptx::cluster_wait();  // block 0 has begun
  store_pairs(task, memory, of_first);
  if (clustered)
    ptx::cluster_sync();
  else
    __syncthreads();

  const int column = task.group * 16 + (thread & 15);
  if (task.none || task.rank != 0 || column >= task.g.epilogue.columns) return;
  if (!a.finalize) return clear_absent(task, column);
  if (thread < 16) add_pairs(task, memory, column);
}

}  // namespace sluice::sm90
