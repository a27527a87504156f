// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/sample/draw.cuh"
#include "kernels/sm90/sample/sample.h"
#include "kernels/sm90/tuning.h"

namespace sluice::sm90 {

namespace {

constexpr int kEditThreads = 128, kMaskThreads = 256, kMaskParts = 16;
constexpr int kMaxDrawMemory = 110 * 1024;  // two blocks of a multiprocessor have room for it

// The sum of exp(x - largest) over a row, in double: a float32 sum of a hundred thousand terms would lose three digits.
__device__ double exponential_sum(const float* logits, int vocab, float largest, SampleShared& shared) {
  double sum = 0;
  for (int i = threadIdx.x; i < vocab; i += kSampleThreads)
    sum += exp(static_cast<double>(logits[i]) - static_cast<double>(largest));
  return block_sum(sum, shared);
}

// The first token, in descending order, of those after `last`.
__device__ Ranked first_after(const float* logits, int vocab, Ranked last, SampleShared& shared) {
  Ranked best{-INFINITY, INT_MAX};
  for (int i = threadIdx.x; i < vocab; i += kSampleThreads) {
    const Ranked t{logits[i], i};
    if (before(last, t)) best = first_of(best, t);
  }
  return block_first(best, shared);
}
constexpr Ranked kBeforeAll{INFINITY, -1};

// Log probabilities are those of the logits as they come: before the edits.
__global__ void __launch_bounds__(kSampleThreads, 1) score_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ SampleShared shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const SampleRequest& r = a.requests[blockIdx.x];
  if (r.top_logprobs < 0) return;
  const float* logits = a.logits + r.row * a.stride;
  Ranked last = first_after(logits, a.vocab, kBeforeAll, shared);
  const double total = static_cast<double>(last.logit) + log(exponential_sum(logits, a.vocab, last.logit, shared));
  if (threadIdx.x == 0) a.log_totals[blockIdx.x] = total;
  for (int n = 0; n < min(r.top_logprobs, a.vocab); ++n) {
    if (n > 0) last = first_after(logits, a.vocab, last, shared);
    if (threadIdx.x == 0)
      a.top[static_cast<int64_t>(blockIdx.x) * a.max_top + n] = {last.token, static_cast<float>(last.logit - total)};
  }
}

// Edits of one token are applied by one thread, in their order.
__global__ void __launch_bounds__(kEditThreads) edit_kernel(const __grid_constant__ SampleArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const SampleRequest& r = a.requests[blockIdx.x];
  if (r.forced >= 0) return;
  float* logits = a.logits + r.row * a.stride;
  const SampleEdit* edits = a.edits + r.first_edit;
  for (int i = threadIdx.x; i < r.num_edits; i += kEditThreads) {
    const int token = edits[i].token;
    if (i > 0 && edits[i - 1].token == token) continue;
    float logit = logits[token];
    a.originals[r.first_edit + i] = logit;
    for (int j = i; j < r.num_edits && edits[j].token == token; ++j) {
      const SampleEdit& e = edits[j];
      logit = __fadd_rn(logit, e.bias);
      if (e.repetition != 1 || e.subtract != 0) {
        const double value = logit;
        const double scaled = value > 0 ? value / e.repetition : value * e.repetition;
        logit = static_cast<float>(scaled - e.subtract);
      }
      if (e.banned != 0) logit = -INFINITY;
    }
    logits[token] = logit;
  }
}

// A warp's 32 logits share one word. What a mask leaves is as it was, so original_logit() need not know of it: a token
// that was chosen was left.
__global__ void __launch_bounds__(kMaskThreads) mask_kernel(const __grid_constant__ SampleArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const SampleRequest& r = a.requests[blockIdx.y];
  if (r.forced >= 0 || r.mask < 0) return;
  float* logits = a.logits + r.row * a.stride;
  const uint32_t* mask = a.masks + static_cast<int64_t>(r.mask) * ceil_div(a.vocab, 32);
  for (int i = static_cast<int>(blockIdx.x) * kMaskThreads + static_cast<int>(threadIdx.x); i < a.vocab;
       i += kMaskParts * kMaskThreads)
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = -INFINITY;
}

// The first of a part's largest logits, and whether one is NaN. Keeps the part in shared memory, if it is to.
__device__ __forceinline__ Ranked read_part(const float* part, int begin, int count, float* kept, bool& nan) {
  constexpr int kBatch = 4;  // reads of 16 bytes under way together
  Ranked best{-INFINITY, INT_MAX};
  nan = false;
  const auto see = [&](int i, float v) {
    nan |= v != v;
    if (v > best.logit) best = {v, begin + i};
  };
  const bool aligned = reinterpret_cast<uintptr_t>(part) % 16 == 0;
  const int vectors = aligned ? count / 4 : 0;
  const auto* from = reinterpret_cast<const float4*>(part);
  for (int first = static_cast<int>(threadIdx.x); first < vectors; first += kBatch * kDrawThreads) {
    float4 v[kBatch];
#pragma unroll
    for (int b = 0; b < kBatch; ++b)
      if (first + b * kDrawThreads < vectors) v[b] = from[first + b * kDrawThreads];
#pragma unroll
    for (int b = 0; b < kBatch; ++b) {
      const int at = first + b * kDrawThreads;
      if (at >= vectors) break;
      if (kept != nullptr) reinterpret_cast<float4*>(kept)[at] = v[b];
      see(4 * at, v[b].x), see(4 * at + 1, v[b].y), see(4 * at + 2, v[b].z), see(4 * at + 3, v[b].w);
    }
  }
  for (int i = 4 * vectors + static_cast<int>(threadIdx.x); i < count; i += kDrawThreads) {
    const float v = part[i];
    if (kept != nullptr) kept[i] = v;
    see(i, v);
  }
  return best;
}

// A token's logit before the edits.
__device__ float original_logit(const SampleArgs& a, const SampleRequest& r, int32_t token) {
  if (r.forced < 0) {
    int low = 0, high = r.num_edits;  // the first edit of a token that is not lower
    while (low < high) {
      const int middle = (low + high) / 2;
      if (a.edits[r.first_edit + middle].token < token)
        low = middle + 1;
      else
        high = middle;
    }
    if (low < r.num_edits && a.edits[r.first_edit + low].token == token) return a.originals[r.first_edit + low];
  }
  return a.logits[r.row * a.stride + token];
}

// A cluster of blocks has a row.
template <bool kDraws>
__global__ void __launch_bounds__(kDrawThreads, kDraws ? 2 : 3)
    choose_kernel(const __grid_constant__ SampleArgs a, int kept_logits) {
  extern __shared__ __align__(16) uint8_t sample_smem[];
  __shared__ SampleShared reduce;
  __shared__ uint64_t slots[2][kDrawBlocks];
  ptx::griddepcontrol_launch_dependents();
  Cluster cluster;
  ptx::cluster_sync();  // all blocks run, so that their memory may be written
  ptx::griddepcontrol_wait();
  const unsigned row = blockIdx.x / cluster.blocks();
  const SampleRequest& r = a.requests[row];
  SampleOutcome out{r.forced, 0, 0.0f, 0.0f};
  bool here = cluster.rank() == 0;
  if (r.forced < 0) {
    const float* logits = a.logits + r.row * a.stride;
    const int each = round_up(ceil_div(a.vocab, static_cast<int>(cluster.blocks())), 4);
    const int begin = min(static_cast<int>(cluster.rank()) * each, a.vocab), count = min(each, a.vocab - begin);
    const bool draws = kDraws && r.temperature != 0;
    auto* kept = draws && count <= kept_logits ? reinterpret_cast<float*>(sample_smem + sizeof(DrawShared)) : nullptr;
    bool nan;
    Ranked best = block_first<kDrawWarps>(read_part(logits + begin, begin, count, kept, nan), reduce);
    nan = __syncthreads_or(nan) != 0;
    const uint64_t mine = static_cast<uint64_t>(__float_as_uint(best.logit)) << 32 |
                          static_cast<uint32_t>(best.token) << 1 | (nan ? 1 : 0);
    const uint64_t* all = cluster.gather(mine, slots);
    for (uint32_t i = 0; i < cluster.blocks(); ++i) {
      best = first_of(best, {__uint_as_float(static_cast<uint32_t>(all[i] >> 32)),
                             static_cast<int32_t>(static_cast<uint32_t>(all[i]) >> 1)});
      nan |= (all[i] & 1) != 0;
    }
    out.largest = best.logit;
    out.problem = nan ? 1 : isfinite(best.logit) ? 0 : 2;
    out.token = out.problem == 0 ? best.token : -1;
    if constexpr (kDraws)
      if (out.problem == 0 && draws) {
        Draw draw(kept != nullptr ? kept : logits + begin, begin, count, best.logit, r.temperature, cluster,
                  *reinterpret_cast<DrawShared*>(sample_smem));
        int32_t token;
        here = draw_token(r, a.vocab, best, draw, token);
        out.token = token;
      }
  }
  if (!here || threadIdx.x != 0) return;
  if (r.top_logprobs >= 0 && out.token >= 0)
    out.logprob = static_cast<float>(original_logit(a, r, out.token) - a.log_totals[row]);
  a.outcomes[row] = out;
  if (a.told != nullptr) a.told[row] = out;
}

__global__ void __launch_bounds__(kSampleThreads, 1) likelihood_kernel(const __grid_constant__ LikelihoodArgs a) {
  __shared__ SampleShared shared;
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const float* logits = a.logits + blockIdx.x * a.stride;
  const Ranked best = first_after(logits, a.vocab, kBeforeAll, shared);
  const double sum = exponential_sum(logits, a.vocab, best.logit, shared);  // NaN where the row holds one
  if (threadIdx.x == 0)
    a.out[blockIdx.x] = (static_cast<double>(logits[a.ids[blockIdx.x]]) - static_cast<double>(best.logit)) - log(sum);
}

constexpr int kTakeThreads = 128;

__device__ int32_t taken(int32_t id, const SampleOutcome* outcomes, int64_t rows) {
  const int64_t from = ~id;
  return id >= 0 ? id : from < rows ? max(outcomes[from].token, 0) : 0;
}

__global__ void __launch_bounds__(kTakeThreads) take_sampled_kernel(const __grid_constant__ TakeSampledArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTakeThreads + threadIdx.x;
  if (i < a.count && a.ids[i] < 0) a.ids[i] = taken(a.ids[i], a.outcomes, a.rows);
}

constexpr int kMoveThreads = 256, kMoveInts = 4 * kMoveThreads;  // of a block

// The host's memory is read before griddepcontrol.wait, so that the way across the bus passes while tokens are chosen,
// and without a cache, as the host has written it before. What is written here the step before has read; all of it has
// ended after the wait, since each kernel ahead ends after its own. There is no griddepcontrol.launch_dependents:
// kernels read a batch before they wait.
__global__ void __launch_bounds__(kMoveThreads) move_ints_kernel(const __grid_constant__ MoveIntsArgs a) {
  int piece = 0;
  int64_t block = blockIdx.x;
  for (int64_t blocks; block >= (blocks = ceil_div<int64_t>(a.pieces[piece].count, kMoveInts)); ++piece)
    block -= blocks;
  const int64_t at = block * kMoveInts + 4 * threadIdx.x, i = a.pieces[piece].first + at;
  const bool used = at < a.pieces[piece].count;
  int4 v{};
  if (used) v = __ldcv(reinterpret_cast<const int4*>(a.from + i));
  ptx::griddepcontrol_wait();
  if (!used) return;
  if (a.ids && piece == 0)
    v = {taken(v.x, a.outcomes, a.rows), taken(v.y, a.outcomes, a.rows), taken(v.z, a.outcomes, a.rows),
         taken(v.w, a.outcomes, a.rows)};
  *reinterpret_cast<int4*>(a.to + i) = v;
}

}  // namespace

void allow_sample() { allow_shared_memory(choose_kernel<true>, kMaxDrawMemory); }

void launch_sample(const SampleArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const auto rows = static_cast<unsigned>(a.rows);
  if (a.scored) launch(score_kernel, rows, kSampleThreads, 0, stream, pdl, a);
  if (a.edited) launch(edit_kernel, rows, kEditThreads, 0, stream, pdl, a);
  if (a.masked) launch(mask_kernel, dim3(kMaskParts, rows), kMaskThreads, 0, stream, pdl, a);
  if (!a.drawn) {
    int cluster = kDrawBlocks;
    while (cluster > 2 && a.rows * cluster > tuning::kGreedyBlocks) cluster /= 2;
    launch_clusters(choose_kernel<false>, cluster, rows * static_cast<unsigned>(cluster), kDrawThreads, 0, stream, pdl,
                    a, 0);
    return;
  }
  // Parts of a row are kept in shared memory where there is room for them; else they are read again.
  int kept = round_up(ceil_div(a.vocab, kDrawBlocks), 4);
  if (static_cast<int>(sizeof(DrawShared)) + 4 * kept > kMaxDrawMemory) kept = 0;
  launch_clusters(choose_kernel<true>, kDrawBlocks, rows * kDrawBlocks, kDrawThreads,
                  static_cast<int>(sizeof(DrawShared)) + 4 * kept, stream, pdl, a, kept);
}

void launch_take_sampled(const TakeSampledArgs& a, Stream stream, bool pdl) {
  if (a.count == 0) return;
  launch(take_sampled_kernel, static_cast<unsigned>(ceil_div<int64_t>(a.count, kTakeThreads)), kTakeThreads, 0, stream,
         pdl, a);
}

void launch_move_ints(const MoveIntsArgs& a, Stream stream, bool pdl) {
  int64_t blocks = 0;
  for (int i = 0; i < a.num_pieces; ++i) blocks += ceil_div<int64_t>(a.pieces[i].count, kMoveInts);
  if (blocks > 0) launch(move_ints_kernel, static_cast<unsigned>(blocks), kMoveThreads, 0, stream, pdl, a);
}

void launch_log_likelihoods(const LikelihoodArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  launch(likelihood_kernel, static_cast<unsigned>(a.rows), kSampleThreads, 0, stream, pdl, a);
}

}  // namespace sluice::sm90
