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

template <WeightOperand op>
__global__ void __maxnreg__(SecondTile<op>::registers)
    one_token_second(const __grid_constant__ OneTokenArgs a, const __grid_constant__ OneTokenPlan plan) {
  using T = SecondTile<op>;
  extern __shared__ __align__(128) uint8_t ring[];
  const GemmArgs& g = a.gemm[1];
  const int thread = static_cast<int>(threadIdx.x), warp = thread >> 5, lane = thread & 31;
  const int parts = plan.second_parts, stages = plan.stages, most = plan.warp_k_blocks;
  const int most_rows = ceil_div(a.top_k, plan.cluster);
  // The ring of each warp, its rounded columns, the scales of its units, its barriers; sums, results, weights.
  uint8_t* own = ring + warp * stages * T::stage_bytes;
  uint32_t* words = reinterpret_cast<uint32_t*>(ring + T::warps * stages * T::stage_bytes);
  float* unit_scales = reinterpret_cast<float*>(words + T::warps * most * kTokenWords<op>);
  uint64_t* full = reinterpret_cast<uint64_t*>(unit_scales + T::warps * most);
  float* sums = reinterpret_cast<float*>(full + T::warps * stages);
  float* results = sums + most_rows * parts * 16;  // [top_k][16]
  float* pair_weights = results + a.top_k * 16;    // [top_k]
  words += warp * most * kTokenWords<op>, unit_scales += warp * most, full += warp * stages;
  for (int i = lane; i < stages; i += 32) ptx::mbarrier_init(full + i, 1);
  ptx::fence_mbarrier_init();
  touch_parameters(a);
  // The ids are there: the first product waited for them before it let this kernel start.
  const bool none = a.num_tokens != nullptr && *a.num_tokens <= 0;
  const LanePairs pairs(a);
  __syncwarp();
  const int rank = static_cast<int>(blockIdx.x) % plan.cluster;
  const int group16 = static_cast<int>(blockIdx.x) / plan.cluster, group = group16 & 7, m_tile = group16 >> 3;
  const int num = none ? 0 : pairs.num;
  const int first = num * rank / plan.cluster, segments = num * (rank + 1) / plan.cluster - first;
  const Share share(warp, T::warps, parts, g.k_blocks, T::sub);
  const int per_segment = share.end - share.begin;
  const auto m_tile_of = [&](int segment) {
    return static_cast<int64_t>(pairs.expert_of(first + segment)) * g.m_tiles + m_tile;
  };

  // Stages of some k-blocks of a segment to the warp's ring, in order.
  int load_segment = share.first, load_k = share.begin, load_stage = 0;
  bool more = per_segment > 0 && load_segment < segments;
  const uint64_t policy = ptx::createpolicy_evict_first();
  const uint8_t* from =
      more ? g.weights.data + (m_tile_of(load_segment) * g.k_blocks + load_k) * k_block_bytes(op) : nullptr;
  const auto load_next = [&]() {
    if (!more) return;
    const int count = min(T::stage_k_blocks, share.end - load_k);
    if (lane == 0) {
      ptx::mbarrier_arrive_expect_tx(full + load_stage, count * RowGroup<op>::bytes);
      for (int i = 0; i < count; ++i)
#pragma unroll
        for (int p = 0; p < RowGroup<op>::pieces; ++p)
          ptx::cp_async_bulk(own + load_stage * T::stage_bytes + i * T::k_block_stage + RowGroup<op>::offset(p),
                             from + i * k_block_bytes(op) + RowGroup<op>::from(group, p), RowGroup<op>::bytes_of(p),
                             full + load_stage, policy);
    }
    if (++load_stage == stages) load_stage = 0;
    load_k += count, from += count * k_block_bytes(op);
    if (load_k == share.end) {
      load_k = share.begin, load_segment += share.step;
      more = load_segment < segments;
      if (more) from = g.weights.data + (m_tile_of(load_segment) * g.k_blocks + load_k) * k_block_bytes(op);
    }
  };
  for (int i = 0; i < stages; ++i) load_next();
  // What a thread needs last, of its segment and row.
  const int row16 = thread & 15, weight_row = group16 * 16 + row16;
  const bool inside = weight_row < g.epilogue.columns;
  const auto scale_of = [&](int segment) {  // the whole warp
    const int64_t at = m_tile_of(min(segment, max(segments - 1, 0)));
    return g.weights.row_scale != nullptr ? __ldg(g.weights.row_scale + at * kMTileRows + (group * 16 + row16)) : 1.0f;
  };
  const float first_scale = scale_of(thread >> 4);
  const auto pair_of = [&](int segment) { return pairs.pair_of(first + min(segment, max(segments - 1, 0))); };
  const int first_pair = segments > 0 ? pair_of(thread >> 4) : 0;
  const InputScale scale = *g.x.scale;
  const int inter = a.gemm[0].epilogue.columns, max_groups = groups_of(inter, a.gemm[0].epilogue.gated);
  const Round round = a.gemm[0].epilogue.round;
  const int units_of_segment = ceil_div(g.k_blocks, T::sub), units_each = ceil_div(per_segment, T::sub);
  if constexpr (block_scaled(op))
    for (int s = share.first, u = 0; s < segments; s += share.step, u += units_each) {
      const int64_t at = m_tile_of(s) * units_of_segment + share.begin / T::sub;
      for (int i = lane; i < units_each; i += 32) unit_scales[u + i] = __ldg(g.weights.block_scale + (at + i) * 4);
    }
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  __syncthreads();
  if (plan.cluster > 1) ptx::cluster_arrive_relaxed();
  if (warp == 0 && lane < num) {
    pair_weights[pairs.pair] = a.weighs_input ? 1.0f : a.pairs.weight(pairs.pair);
  }

  // The warp's columns, rounded.
  const auto load8_of = [&](const float* row, int column, float(&v)[8]) {
    widen(load_eight<true>(row, column, inter, true), v);
  };
  const auto rounding_of = [&](int row) {
    uint32_t amax = 0;
    if (scales_rows(round)) {
      const float* most_of = a.middle_max + static_cast<int64_t>(row) * max_groups;
#pragma unroll 4
      for (int i = lane; i < max_groups; i += 32) amax = max(amax, __float_as_uint(__ldcg(most_of + i)));
      amax = __reduce_max_sync(0xffffffffu, amax);
    }
    return TokenRounding(scale, round, amax);
  };
  constexpr int kPieces = T::columns / 8;
  float first_factor = scale.factor;
  if (per_segment > 0) {
    int at = 0, units = 0;  // of the warp
    for (int s = share.first; s < segments; s += share.step, at += per_segment, units += units_each) {
      const int row = pairs.pair_of(first + s);
      const float* values = a.middle + static_cast<int64_t>(row) * inter;
      const TokenRounding rounding = rounding_of(row);
      if (s == share.first) first_factor = rounding.factor;
      constexpr int kHeld = 3;  // chunks whose reads are under way together
      for (int k = share.begin; k < share.end; k += kHeld * T::chunk) {
        float v[kHeld][8];
#pragma unroll
        for (int h = 0; h < kHeld; ++h)
          if (k + h * T::chunk < share.end) load8_of(values, (k + h * T::chunk) * T::columns + 8 * lane, v[h]);
#pragma unroll
        for (int h = 0; h < kHeld; ++h) {
          if (k + h * T::chunk >= share.end) break;
          const int k_block = k + h * T::chunk + lane / kPieces - share.begin;
          const bool real = k_block < per_segment;
          const float f = store_rounded<op>(rounding, scale, round, v[h], real,
                                            words + (at + k_block) * kTokenWords<op>, lane % kPieces);
          if (block_scaled(op) && real && lane % 16 == 0) unit_scales[units + k_block / T::sub] *= f;
        }
      }
    }
  }
  __syncwarp();

  // The products.
  float c[2][4] = {}, sum[2] = {};
  const uint32_t* at = words + (lane & 3) * (kTokenWords<op> / 4);
  const float* unit_scale = unit_scales;
  int stage = 0;
  uint32_t phase = 0;
  for (int s = share.first; s < segments; s += share.step) {
    for (int k = 0; k < per_segment; k += T::stage_k_blocks) {
      ptx::mbarrier_wait(full + stage, phase);
      Fragment<op> weights[T::stage_k_blocks];
#pragma unroll
      for (int i = 0; i < T::stage_k_blocks; ++i)
        if (i == 0 || k + i < per_segment)
          weights[i].load(
              [&]<class V>(int p, int offset) {
                return *reinterpret_cast<const V*>(own + stage * T::stage_bytes + i * T::k_block_stage +
                                                   RowGroup<op>::offset(p) + offset);
              },
              lane);
#pragma unroll
      for (int i = 0; i < T::stage_k_blocks; ++i) {
        if (i > 0 && k + i >= per_segment) break;
        weights[i].multiply(at, c);
        at += kTokenWords<op>;
        if constexpr (block_scaled(op)) {
          if (T::sub == 1 || i % T::sub == T::sub - 1 || k + i + 1 == per_segment) {
            const float f = *unit_scale++;
            take_sums(c, sum, f, f);
          }
        }
      }
      if (more) {
        __syncwarp();
        load_next();  // to where these weights were
      }
      if (++stage == stages) stage = 0, phase ^= 1u;
    }
    if constexpr (!block_scaled(op)) take_sums(c, sum, 1.0f, 1.0f);
    float factor = first_factor;
    if (s != share.first && scales_rows(round)) factor = rounding_of(pairs.pair_of(first + s)).factor;
    sum[0] *= factor, sum[1] *= factor;
    store_sums<op>(sums, parts, s, share.part, sum);
    sum[0] = sum[1] = 0.0f;
  }
  __syncthreads();
  if (plan.cluster > 1) ptx::cluster_wait();  // block 0 has begun
  for (int base = 0; base < segments * 16; base += T::threads) {
    const int s = (base + thread) >> 4;
    const float row_scale = base == 0 ? first_scale : scale_of(s);
    const int pair = base == 0 ? first_pair : pair_of(s);
    const int expert = pairs.expert_of(first + min(s, segments - 1));
    if (s >= segments || !inside) continue;
    float r = total_of(sums, parts, s, row16) * row_scale;
    if (g.epilogue.activation.bias != nullptr)
      r += __ldg(g.epilogue.activation.bias + static_cast<int64_t>(expert) * g.epilogue.columns + weight_row);
    if (!a.finalize) {
      store_result(g.epilogue, static_cast<int64_t>(pair) * g.epilogue.columns + weight_row, r);
    } else {
      // To the place of its pair: the sum is in the order of choice.
      r = __uint_as_float(ptx::cvt_bf16x2_f32(0.0f, r) << 16);
      if (rank == 0)
        results[pair * 16 + row16] = r;
      else
        ptx::st_cluster_f32(ptx::mapa(ptx::smem_address(results + pair * 16 + row16), 0), r);
    }
  }
  if (plan.cluster > 1)
    ptx::cluster_sync();
  else
    __syncthreads();
  if (none || rank != 0 || !inside) return;
  if (!a.finalize) {  // absent pairs
    for (int pair = thread >> 4; pair < a.top_k; pair += T::threads / 16)
      if ((pairs.here >> pair & 1) == 0)
        store_result(g.epilogue, static_cast<int64_t>(pair) * g.epilogue.columns + weight_row, 0.0f);
    return;
  }
  if (thread >= 16) return;
  float r = 0.0f;
#pragma unroll 8
  for (int pair = 0; pair < a.top_k; ++pair)
    if ((pairs.here >> pair & 1) != 0) r = fmaf(pair_weights[pair], results[pair * 16 + row16], r);
  store_result(g.epilogue, weight_row, r);
}

}  // namespace sluice::sm90
