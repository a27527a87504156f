// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/math.h"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/sample/draw.cuh"
#include "kernels/sm90/sample/sample.h"

namespace sluice::sm90 {

namespace {

constexpr int kEditThreads = 128, kPartThreads = 256;

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
__global__ void __launch_bounds__(kPartThreads) mask_kernel(const __grid_constant__ SampleArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const SampleRequest& r = a.requests[blockIdx.y];
  if (r.forced >= 0 || r.mask < 0) return;
  float* logits = a.logits + r.row * a.stride;
  const uint32_t* mask = a.masks + static_cast<int64_t>(r.mask) * ceil_div(a.vocab, 32);
  for (int i = static_cast<int>(blockIdx.x) * kPartThreads + static_cast<int>(threadIdx.x); i < a.vocab;
       i += kSampleParts * kPartThreads)
    if ((mask[i / 32] >> (i % 32) & 1) == 0) logits[i] = -INFINITY;
}

__global__ void __launch_bounds__(kPartThreads) largest_kernel(const __grid_constant__ SampleArgs a) {
  __shared__ Ranked firsts[kPartThreads / 32];
  __shared__ int nans[kPartThreads / 32];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const float* logits = a.logits + a.requests[blockIdx.y].row * a.stride;
  const int each = ceil_div(a.vocab, kSampleParts), begin = static_cast<int>(blockIdx.x) * each;
  const int end = min(begin + each, a.vocab);
  Ranked best{-INFINITY, INT_MAX};
  bool nan = false;
#pragma unroll 4
  for (int i = begin + static_cast<int>(threadIdx.x); i < end; i += kPartThreads) {
    const float v = logits[i];
    nan |= v != v;
    best = first_of(best, {v, i});
  }
  best = warp_first(best);
  const bool any = __any_sync(0xffffffffu, nan);
  if ((threadIdx.x & 31) == 0) firsts[threadIdx.x >> 5] = best, nans[threadIdx.x >> 5] = any;
  __syncthreads();
  if (threadIdx.x != 0) return;
  SampleLargest out{best.logit, best.token, any};
  for (int i = 0; i < kPartThreads / 32; ++i) {
    best = first_of(best, firsts[i]);
    out.nan |= nans[i];
  }
  out.value = best.logit, out.token = best.token;
  a.largest[static_cast<int64_t>(blockIdx.y) * kSampleParts + blockIdx.x] = out;
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

__global__ void __launch_bounds__(kSampleThreads, 1) choose_kernel(const __grid_constant__ SampleArgs a) {
  extern __shared__ __align__(16) uint8_t sample_smem[];
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const SampleRequest& r = a.requests[blockIdx.x];
  SampleOutcome out{r.forced, 0, 0.0f, 0.0f};
  if (r.forced < 0) {
    const SampleLargest* parts = a.largest + static_cast<int64_t>(blockIdx.x) * kSampleParts;
    Ranked best{-INFINITY, INT_MAX};
    bool nan = false;
    for (int i = 0; i < kSampleParts; ++i) {
      best = first_of(best, {parts[i].value, parts[i].token});
      nan |= parts[i].nan != 0;
    }
    out.largest = best.logit;
    out.problem = nan ? 1 : isfinite(best.logit) ? 0 : 2;
    out.token = out.problem == 0 ? best.token : -1;
    if (out.problem == 0 && r.temperature != 0)
      out.token =
          draw_token(r, a.logits + r.row * a.stride, a.vocab, best, *reinterpret_cast<DrawShared*>(sample_smem));
  }
  if (threadIdx.x != 0) return;
  if (r.top_logprobs >= 0 && out.token >= 0)
    out.logprob = static_cast<float>(original_logit(a, r, out.token) - a.log_totals[blockIdx.x]);
  a.outcomes[blockIdx.x] = out;
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

__global__ void __launch_bounds__(kTakeThreads) take_sampled_kernel(const __grid_constant__ TakeSampledArgs a) {
  ptx::griddepcontrol_launch_dependents();
  ptx::griddepcontrol_wait();
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kTakeThreads + threadIdx.x;
  if (i >= a.count || a.ids[i] >= 0) return;
  const int64_t from = ~a.ids[i];
  a.ids[i] = from < a.rows ? max(a.outcomes[from].token, 0) : 0;
}

}  // namespace

void allow_sample() { allow_shared_memory(choose_kernel, static_cast<int>(sizeof(DrawShared))); }

void launch_sample(const SampleArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const auto rows = static_cast<unsigned>(a.rows);
  if (a.scored) launch(score_kernel, rows, kSampleThreads, 0, stream, pdl, a);
  if (a.edited) launch(edit_kernel, rows, kEditThreads, 0, stream, pdl, a);
  if (a.masked) launch(mask_kernel, dim3(kSampleParts, rows), kPartThreads, 0, stream, pdl, a);
  launch(largest_kernel, dim3(kSampleParts, rows), kPartThreads, 0, stream, pdl, a);
  launch(choose_kernel, rows, kSampleThreads, a.drawn ? static_cast<int>(sizeof(DrawShared)) : 0, stream, pdl, a);
}

void launch_take_sampled(const TakeSampledArgs& a, Stream stream, bool pdl) {
  if (a.count == 0) return;
  launch(take_sampled_kernel, static_cast<unsigned>(ceil_div<int64_t>(a.count, kTakeThreads)), kTakeThreads, 0, stream,
         pdl, a);
}

void launch_log_likelihoods(const LikelihoodArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  launch(likelihood_kernel, static_cast<unsigned>(a.rows), kSampleThreads, 0, stream, pdl, a);
}

}  // namespace sluice::sm90
