// SPDX-License-Identifier: Apache-2.0
// One random choice from one row by a block of 1024 threads.
//
// top_k, top_p and min_p each keep a beginning of the vocabulary in descending order of logits, so a set of candidates
// is described by its last one, and "the first candidate at which the running sum reaches a target" is the only search.
// It is done without sorting: a histogram over the distance to the largest logit names the bin, then the bin's few
// tokens are compared with each other.
#pragma once

#include <climits>

#include "kernels/sm90/sample/reduce.cuh"
#include "kernels/sm90/sample/sample.h"

namespace sluice::sm90 {

// 64 bins for each temperature: e^-32 weighs nothing, so the last bin, which takes all that is farther, has no weight.
inline constexpr int kDrawBins = 2048, kDrawListed = 2048;
inline constexpr double kDrawOne = 17592186044416.0;  // 2^44, the weight of the largest logit

struct DrawShared {
  SampleShared reduce;
  uint64_t bins[kDrawBins];
  Ranked listed[kDrawListed];
  uint64_t weights[kDrawListed];
  int count;
};

enum class DrawSum : int { weights, tokens };

struct DrawTarget {
  int bin;
  uint64_t left;  // of the target, within the bin
};

class Draw {
 public:
  __device__ Draw(const float* logits, int vocab, float top, double temperature, DrawShared& shared)
      : logits_(logits),
        vocab_(vocab),
        top_(top),
        inverse_(fmin(1.0 / temperature, 1e300)),
        bin_scale_(static_cast<float>(fmin(kDrawBins / (32.0 * temperature), 1e30))),
        shared_(shared) {}

  // How likely a logit is, against the largest.
  __device__ double likelihood(float logit) const { return exp((static_cast<double>(logit) - top_) * inverse_); }
  __device__ uint64_t weight(float logit) const {
    return distance(logit) >= kDrawBins - 1 ? 0 : __double2ull_rn(likelihood(logit) * kDrawOne);
  }

  // The histogram of all tokens, and its sum. Every thread calls it, as all below.
  __device__ uint64_t count_bins(DrawSum sum) {
    return fill_bins(sum, [&](float logit) { return bin_of(logit); });
  }

  // The first token, in descending order, at which the running sum reaches `target` (1 or more, and at most the sum of
  // all), from the bins that were counted last. reached: the running sum with it. False: it lies in the last bin.
  __device__ bool find(DrawSum sum, uint64_t target, Ranked& found, uint64_t& reached) {
    const DrawTarget bin = bin_with(target);
    if (bin.bin == kDrawBins - 1) return false;
    uint64_t left = bin.left;
    int listed = list([&](float logit) { return bin_of(logit) == bin.bin; }, sum);
    if (listed > kDrawListed) {  // a flat distribution: the same again within the bin
      const auto inner = [&](float logit) {
        const float d = distance(logit);
        return static_cast<int>(d) != bin.bin ? -1 : static_cast<int>((d - static_cast<float>(bin.bin)) * kDrawBins);
      };
      fill_bins(sum, inner);
      const DrawTarget within = bin_with(left);
      left = within.left;
      listed = list([&](float logit) { return inner(logit) == within.bin; }, sum);
      if (listed > kDrawListed)
        found = bisect(sum, left, [&](float logit) { return inner(logit) == within.bin; });
      else
        found = pick(listed, left);
      count_bins(sum);  // as they were
    } else {
      found = pick(listed, left);
    }
    reached = target - left + shared_.reduce.result;
    return true;
  }

  // The first token in the order of ids at which the running sum of `weigh` reaches uniform * total; -1 for a total of
  // nothing.
  template <class Weigh>
  __device__ int32_t find_by_id(double uniform, Weigh&& weigh) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, segment = (vocab_ + kSampleWarps - 1) / kSampleWarps;
    uint64_t sum = 0;
    for (int i = warp * segment + lane; i < min((warp + 1) * segment, vocab_); i += 32) sum += weigh(logits_[i]);
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    __syncthreads();
    if (lane == 0) shared_.bins[warp] = sum;
    if (threadIdx.x == 0) shared_.count = -1;
    __syncthreads();
    uint64_t total = 0;
    for (int w = 0; w < kSampleWarps; ++w) total += shared_.bins[w];
    if (total == 0) return -1;
    uint64_t target = target_of(uniform, total);
    int part = 0;
    while (target > shared_.bins[part]) target -= shared_.bins[part++];
    const int begin = part * segment, end = min(begin + segment, vocab_);
    const int each = (segment + kSampleThreads - 1) / kSampleThreads;
    const int mine = begin + static_cast<int>(threadIdx.x) * each, mine_end = min(mine + each, end);
    uint64_t own = 0, all = 0;
    for (int i = mine; i < mine_end; ++i) own += weigh(logits_[i]);
    uint64_t running = block_exclusive(own, all, shared_.reduce);
    if (running < target && target <= running + own)
      for (int i = mine; i < mine_end; ++i) {
        running += weigh(logits_[i]);
        if (running >= target) {
          shared_.count = i;
          break;
        }
      }
    __syncthreads();
    return shared_.count;
  }

  // "u * total is used up": the first running sum beyond it, as an integer.
  __device__ static uint64_t target_of(double uniform, uint64_t total) {
    const uint64_t target = static_cast<uint64_t>(uniform * static_cast<double>(total)) + 1;
    return target < total ? target : total;
  }

  // The sum of weights of the tokens for which `in` holds.
  template <class In>
  __device__ uint64_t weight_of(In&& in) {
    uint64_t sum = 0, total = 0;
    for (int i = threadIdx.x; i < vocab_; i += kSampleThreads)
      if (in(Ranked{logits_[i], i})) sum += weight(logits_[i]);
    block_exclusive(sum, total, shared_.reduce);
    return total;
  }

 private:
  // Rises as the logit falls; equal logits have equal distances.
  __device__ float distance(float logit) const { return __fmul_rn(__fsub_rn(top_, logit), bin_scale_); }
  __device__ int bin_of(float logit) const {
    return static_cast<int>(fminf(distance(logit), static_cast<float>(kDrawBins - 1)));
  }

  template <class Bin>
  __device__ uint64_t fill_bins(DrawSum sum, Bin&& bin) {
    __syncthreads();
    for (int i = threadIdx.x; i < kDrawBins; i += kSampleThreads) shared_.bins[i] = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab_; i += kSampleThreads) {
      const float logit = logits_[i];
      const int b = bin(logit);
      if (b < 0) continue;
      const uint64_t w = sum == DrawSum::tokens ? 1 : weight(logit);
      if (w != 0) atomicAdd(reinterpret_cast<unsigned long long*>(&shared_.bins[b]), w);
    }
    __syncthreads();
    uint64_t own = 0, total = 0;
    for (int i = threadIdx.x; i < kDrawBins; i += kSampleThreads) own += shared_.bins[i];
    block_exclusive(own, total, shared_.reduce);
    return total;
  }

  __device__ DrawTarget bin_with(uint64_t target) {
    constexpr int kEach = kDrawBins / kSampleThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    uint64_t own = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) own += shared_.bins[first + i];
    uint64_t running = block_exclusive(own, total, shared_.reduce);
    if (running < target && target <= running + own)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint64_t here = shared_.bins[first + i];
        if (running < target && target <= running + here) {
          shared_.count = first + i;
          shared_.reduce.result = target - running;
        }
        running += here;
      }
    __syncthreads();
    const DrawTarget found{shared_.count, shared_.reduce.result};
    __syncthreads();
    return found;
  }

  // The tokens for which `in` holds, in any order; returns how many there are, of which kDrawListed are kept.
  template <class In>
  __device__ int list(In&& in, DrawSum sum) {
    __syncthreads();
    if (threadIdx.x == 0) shared_.count = 0;
    __syncthreads();
    for (int i = threadIdx.x; i < vocab_; i += kSampleThreads) {
      const float logit = logits_[i];
      if (!in(logit)) continue;
      const int at = atomicAdd(&shared_.count, 1);
      if (at >= kDrawListed) continue;
      shared_.listed[at] = {logit, i};
      shared_.weights[at] = sum == DrawSum::tokens ? 1 : weight(logit);
    }
    __syncthreads();
    return shared_.count;
  }

  // Of the listed tokens; leaves the running sum within the list in reduce.result.
  __device__ Ranked pick(int listed, uint64_t target) {
    for (int i = threadIdx.x; i < listed; i += kSampleThreads) {
      const Ranked me = shared_.listed[i];
      uint64_t running = 0;
      for (int j = 0; j < listed; ++j)
        if (before(shared_.listed[j], me)) running += shared_.weights[j];
      if (running < target && target <= running + shared_.weights[i]) {
        shared_.reduce.ranked_result = me;
        shared_.reduce.result = running + shared_.weights[i];
      }
    }
    __syncthreads();
    return shared_.reduce.ranked_result;
  }

  // The same for more tokens than are listed, which almost all share one logit: by halving the range of (logit, token)
  // as one integer. Slow, one pass over the row for each of up to 64 bits.
  template <class In>
  __device__ Ranked bisect(DrawSum sum, uint64_t target, In&& in) {
    uint64_t low = 0, high = ULLONG_MAX, reached = 0;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      uint64_t own = 0, total = 0;
      for (int i = threadIdx.x; i < vocab_; i += kSampleThreads)
        if (in(logits_[i]) && place(logits_[i], i) <= middle) own += sum == DrawSum::tokens ? 1 : weight(logits_[i]);
      block_exclusive(own, total, shared_.reduce);
      if (total >= target)
        high = middle, reached = total;
      else
        low = middle + 1;
    }
    const auto token = static_cast<int32_t>(low & 0xffffffffu);
    __syncthreads();
    if (threadIdx.x == 0) shared_.reduce.result = reached;
    __syncthreads();
    return {logits_[token], token};
  }
  // Ascending in the order of `before`.
  __device__ static uint64_t place(float logit, int token) {
    const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(token);
  }

  const float* logits_;
  const int vocab_;
  const float top_;
  const double inverse_;
  const float bin_scale_;
  DrawShared& shared_;
};

// The token for one row whose largest logit is `best`'s, a finite one.
__device__ inline int32_t draw_token(const SampleRequest& r, const float* logits, int vocab, Ranked best,
                                     DrawShared& shared) {
  Draw draw(logits, vocab, best.logit, r.temperature, shared);
  bool ordered = false, bounded = false;
  Ranked last{};  // of the candidates, if bounded
  if (r.top_k > 0 && r.top_k < vocab) {
    ordered = true;
    draw.count_bins(DrawSum::tokens);
    uint64_t reached;
    bounded = draw.find(DrawSum::tokens, static_cast<uint64_t>(r.top_k), last, reached);
  }
  const auto in = [&](Ranked t) { return !bounded || !before(last, t); };
  const auto likely = [&](float logit) { return r.min_p <= 0 || draw.likelihood(logit) >= r.min_p; };
  ordered = ordered || r.top_p < 1;
  if (!ordered) {
    const int32_t token =
        draw.find_by_id(r.uniform, [&](float logit) { return likely(logit) ? draw.weight(logit) : 0; });
    return token < 0 ? best.token : token;
  }
  uint64_t total = draw.count_bins(DrawSum::weights);
  if (bounded) total = draw.weight_of(in);
  if (r.top_p < 1) {
    const double wanted = ceil(r.top_p * static_cast<double>(total));
    uint64_t target = wanted < 1 ? 1 : static_cast<uint64_t>(wanted), reached = total;
    target = target < total ? target : total;
    if (draw.find(DrawSum::weights, target, last, reached)) {
      bounded = true;
      total = reached;
    }
  }
  if (r.min_p > 0) total = draw.weight_of([&](Ranked t) { return in(t) && likely(t.logit); });
  if (total == 0) return best.token;
  Ranked chosen = best;
  uint64_t reached;
  draw.find(DrawSum::weights, Draw::target_of(r.uniform, total), chosen, reached);
  return chosen.token;
}

}  // namespace sluice::sm90
