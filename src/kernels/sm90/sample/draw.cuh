// SPDX-License-Identifier: Apache-2.0
// One random choice from one row by a cluster of blocks, each with a part of the row.
//
// top_k, top_p and min_p each keep a beginning of the vocabulary in descending order of logits, so a set of candidates
// is described by its last one, and "the first candidate at which the running sum reaches a target" is the only search.
// It is done without sorting: a histogram over the distance to the largest logit names the bin, then the bin's few
// tokens are compared with each other.
#pragma once

#include <climits>

#include "kernels/ptx/cluster.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/sample/reduce.cuh"
#include "kernels/sm90/sample/sample.h"

namespace sluice::sm90 {

inline constexpr int kDrawThreads = 512, kDrawWarps = kDrawThreads / 32, kDrawBlocks = 8;
// 32 bins per temperature: a logit farther than 31.97 temperatures from the largest has a weight that rounds to 0, so
// the last bin, which takes all that is farther, has no weight.
inline constexpr int kDrawBins = 1024;
inline constexpr int kDrawListed = 128;  // of one bin, compared with each other
inline constexpr int kDrawPowers = 512;  // steps of the table of powers of two, within one
inline constexpr int kDrawBatch = 4;     // tokens of a thread whose loads are in flight together

struct alignas(16) DrawShared {
  SampleShared reduce;
  uint64_t slots[2][kDrawBlocks];
  uint32_t low[kDrawBins], high[kDrawBins];  // of this block's tokens
  uint64_t totals[kDrawBins], inner[kDrawBins];
  Ranked mine[kDrawListed];      // of this block's tokens
  uint64_t listed[kDrawListed];  // of the cluster's, packed; in its first block
  uint64_t weights[kDrawListed];
  double powers[kDrawPowers];
  uint64_t found, reached;
  uint64_t left;
  uint32_t count;
  int bin;
};

// 2^(44 + i / kDrawPowers).
struct DrawPowers {
  double values[kDrawPowers] = {};
  constexpr DrawPowers() {
    constexpr double kStep = 0.6931471805599453 / kDrawPowers;
    for (int i = 0; i < kDrawPowers; ++i) {
      double term = 17592186044416.0, sum = 0;
      for (int n = 1; n < 24; ++n) sum += term, term *= kStep * i / n;
      values[i] = sum;
    }
  }
};
__device__ const DrawPowers kDrawPowersTable;

// The blocks that share a row.
class Cluster {
 public:
  __device__ Cluster() : rank_(ptx::cluster_ctarank()), blocks_(ptx::cluster_nctarank()) {}
  __device__ uint32_t rank() const { return rank_; }
  __device__ uint32_t blocks() const { return blocks_; }
  // Every block's `mine`, in order. Two arrays alternate: a block that writes one again has passed a barrier of the
  // cluster after the last reader of it.
  __device__ const uint64_t* gather(uint64_t mine, uint64_t (&slots)[2][kDrawBlocks]) {
    uint64_t* now = slots[use_];
    use_ ^= 1;
    if (threadIdx.x < blocks_) ptx::st_cluster(now + rank_, threadIdx.x, mine);
    ptx::cluster_sync();
    return now;
  }
  __device__ uint64_t sum(uint64_t mine, uint64_t (&slots)[2][kDrawBlocks]) {
    const uint64_t* all = gather(mine, slots);
    uint64_t total = 0;
    for (uint32_t i = 0; i < blocks_; ++i) total += all[i];
    return total;
  }

 private:
  uint32_t rank_, blocks_;
  int use_ = 0;
};

enum class DrawSum : int { weights, tokens };

struct DrawTarget {
  int bin;
  uint64_t left;  // of the target, within the bin
};

class Draw {
 public:
  // logits: of the tokens from `begin` on, `count` of them, those of this block.
  __device__ Draw(const float* logits, int begin, int count, float top, double temperature, Cluster& cluster,
                  DrawShared& shared)
      : logits_(logits),
        begin_(begin),
        count_(count),
        top_(top),
        inverse_(fmin(1.0 / temperature, 1e300)),
        steps_(inverse_ * (kDrawPowers * 1.4426950408889634)),
        bin_scale_(static_cast<float>(fmin(kDrawBins / (32.0 * temperature), 1e30))),
        cluster_(cluster),
        shared_(shared) {
    for (int i = static_cast<int>(threadIdx.x); i < kDrawPowers; i += kDrawThreads)
      shared_.powers[i] = kDrawPowersTable.values[i];
    __syncthreads();
  }

  // How likely a logit is, against the largest.
  __device__ double likelihood(float logit) const { return exp((static_cast<double>(logit) - top_) * inverse_); }
  // round(2^44 likelihood): a power of the table times a polynomial of degree 3, whose error is 2^-46 of the value.
  // Adding 2^52 rounds to a whole number, which is then the lower part of the bits. Without branches, so that several
  // tokens are computed at the same time.
  __device__ uint64_t weight(float logit) const {
    constexpr double kWhole = 6755399441055744.0;  // 1.5 * 2^52
    constexpr double kOne = 0.6931471805599453 / kDrawPowers, kTwo = kOne * kOne / 2, kThree = kTwo * kOne / 3;
    const double x = (static_cast<double>(logit) - top_) * steps_, shifted = x + kWhole;
    const int steps = __double2loint(shifted);
    const double r = x - (shifted - kWhole);
    const double q = r * fma(r, fma(r, kThree, kTwo), kOne);
    const double table = shared_.powers[steps & (kDrawPowers - 1)];
    constexpr int kShift = 20 - 9;
    static_assert(kDrawPowers == 1 << 9);
    const int exponent = (steps & -kDrawPowers) << kShift;
    const double power = __hiloint2double(__double2hiint(table) + exponent, __double2loint(table));
    const double rounded = fma(power, q, power) + 4503599627370496.0;
    const uint64_t whole = static_cast<uint64_t>(__double_as_longlong(rounded)) & 0xfffffffffffffu;
    // So that a NaN is 0: at temperatures whose inverse is 0 in float32, the distance of a masked logit.
    return distance(logit) < kDrawBins - 1 ? whole : 0;
  }

  // The histogram of all tokens, and its sum. Every thread of the cluster calls it, and every function below too.
  __device__ uint64_t count_bins(DrawSum sum) {
    return fill_bins(sum, shared_.totals, [&](float logit) { return bin_of(logit); });
  }

  // The first token, in descending order, at which the running sum reaches `target` (1 or more, and at most the sum of
  // all), from the bins that were counted last. reached: the running sum with it. False: it lies in the last bin.
  __device__ bool find(DrawSum sum, uint64_t target, Ranked& found, uint64_t& reached) {
    const DrawTarget bin = bin_with(shared_.totals, target);
    if (bin.bin == kDrawBins - 1) return false;
    uint64_t left = bin.left;
    if (list([&](float logit) { return bin_of(logit) == bin.bin; }, sum)) {
      found = pick(left);
    } else {  // a flat distribution: the same again within the bin
      const auto inner = [&](float logit) {
        const float d = distance(logit);
        return static_cast<int>(d) != bin.bin ? -1 : static_cast<int>((d - static_cast<float>(bin.bin)) * kDrawBins);
      };
      fill_bins(sum, shared_.inner, inner);
      const DrawTarget within = bin_with(shared_.inner, left);
      left = within.left;
      const auto in = [&](float logit) { return inner(logit) == within.bin; };
      found = list(in, sum) ? pick(left) : bisect(sum, left, in);
    }
    reached = target - left + shared_.reached;
    return true;
  }

  // The first token in the order of ids at which the running sum of `weigh` reaches uniform * total. True in the block
  // that has it, and in all blocks, with -1, for a total of nothing.
  template <class Weigh>
  __device__ bool find_by_id(double uniform, Weigh&& weigh, int32_t& token) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5, segment = (count_ + kDrawWarps - 1) / kDrawWarps;
    uint64_t sum = 0;
    each<32>(warp * segment + lane, min((warp + 1) * segment, count_),
             [&](const float(&logits)[kDrawBatch], int first, int end) {
               uint64_t w[kDrawBatch];
#pragma unroll
               for (int b = 0; b < kDrawBatch; ++b) w[b] = weigh(logits[b]);
#pragma unroll
               for (int b = 0; b < kDrawBatch; ++b) sum += first + 32 * b < end ? w[b] : 0;
             });
#pragma unroll
    for (int i = 16; i > 0; i /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, i);
    __syncthreads();
    if (lane == 0) shared_.reduce.counts[warp] = sum;
    __syncthreads();
    uint64_t mine = 0, total = 0, before = 0;
    for (int w = 0; w < kDrawWarps; ++w) mine += shared_.reduce.counts[w];
    const uint64_t* all = cluster_.gather(mine, shared_.slots);
    for (uint32_t i = 0; i < cluster_.blocks(); ++i) {
      if (i < cluster_.rank()) before += all[i];
      total += all[i];
    }
    token = -1;
    if (total == 0) return true;
    uint64_t target = target_of(uniform, total);
    if (target <= before || target > before + mine) return false;
    target -= before;
    int part = 0;
    while (target > shared_.reduce.counts[part]) target -= shared_.reduce.counts[part++];
    const int begin = part * segment, end = min(begin + segment, count_);
    const int each = (segment + kDrawThreads - 1) / kDrawThreads;
    const int first = begin + static_cast<int>(threadIdx.x) * each, last = min(first + each, end);
    uint64_t own = 0, sums = 0;
    for (int i = first; i < last; ++i) own += weigh(logits_[i]);
    uint64_t running = block_exclusive<kDrawWarps>(own, sums, shared_.reduce);
    if (running < target && target <= running + own)
      for (int i = first; i < last; ++i) {
        running += weigh(logits_[i]);
        if (running >= target) {
          shared_.bin = begin_ + i;
          break;
        }
      }
    __syncthreads();
    token = shared_.bin;
    return true;
  }

  // "u * total is used up": the first running sum beyond it, as an integer.
  __device__ static uint64_t target_of(double uniform, uint64_t total) {
    const uint64_t target = static_cast<uint64_t>(uniform * static_cast<double>(total)) + 1;
    return target < total ? target : total;
  }

  // The sum of weights of the tokens for which `in` holds.
  template <class In>
  __device__ uint64_t weight_of(In&& in) {
    uint64_t sum = 0;
    each_token([&](float logit, int i) {
      if (in(Ranked{logit, begin_ + i})) sum += weight(logit);
    });
    return sum_of(sum);
  }

 private:
  // run(logits of first, first + kStride, ..., first, end) for batches from `first` on.
  template <int kStride, class Run>
  __device__ void each(int first, int end, Run&& run) const {
    for (; first < end; first += kDrawBatch * kStride) {
      float logits[kDrawBatch];
#pragma unroll
      for (int b = 0; b < kDrawBatch; ++b) logits[b] = logits_[min(first + b * kStride, end - 1)];
      run(logits, first, end);
    }
  }
  // run(logit, i) for this thread's tokens.
  template <class Run>
  __device__ void each_token(Run&& run) const {
    each<kDrawThreads>(static_cast<int>(threadIdx.x), count_,
                       [&](const float(&logits)[kDrawBatch], int first, int end) {
#pragma unroll
                         for (int b = 0; b < kDrawBatch; ++b)
                           if (first + b * kDrawThreads < end) run(logits[b], first + b * kDrawThreads);
                       });
  }

  // Rises as the logit falls; equal logits have equal distances.
  __device__ float distance(float logit) const { return __fmul_rn(__fsub_rn(top_, logit), bin_scale_); }
  __device__ int bin_of(float logit) const {
    return static_cast<int>(fminf(distance(logit), static_cast<float>(kDrawBins - 1)));
  }

  __device__ uint64_t sum_of(uint64_t own) {
    uint64_t total = 0;
    block_exclusive<kDrawWarps>(own, total, shared_.reduce);
    return cluster_.sum(total, shared_.slots);
  }

  // To a bin of this block, in two halves: shared memory adds words of 32 bits at once.
  __device__ void add(int bin, uint64_t w) {
    const auto low = static_cast<uint32_t>(w);
    const uint32_t old = atomicAdd(&shared_.low[bin], low);
    const uint32_t high = static_cast<uint32_t>(w >> 32) + (old + low < old ? 1 : 0);
    if (high != 0) atomicAdd(&shared_.high[bin], high);
  }

  // Each block counts its tokens, then adds up a share of the bins for all blocks.
  template <class Bin>
  __device__ uint64_t fill_bins(DrawSum sum, uint64_t (&totals)[kDrawBins], Bin&& bin) {
    __syncthreads();
    for (int i = threadIdx.x; i < kDrawBins; i += kDrawThreads) shared_.low[i] = shared_.high[i] = 0;
    __syncthreads();
    each<kDrawThreads>(static_cast<int>(threadIdx.x), count_,
                       [&](const float(&logits)[kDrawBatch], int first, int end) {
                         int bins[kDrawBatch];
                         uint64_t w[kDrawBatch];
#pragma unroll
                         for (int b = 0; b < kDrawBatch; ++b)
                           bins[b] = first + b * kDrawThreads < end ? bin(logits[b]) : -1;
#pragma unroll
                         for (int b = 0; b < kDrawBatch; ++b) w[b] = sum == DrawSum::tokens ? 1 : weight(logits[b]);
#pragma unroll
                         for (int b = 0; b < kDrawBatch; ++b)
                           if (bins[b] >= 0 && w[b] != 0) add(bins[b], w[b]);
                       });
    ptx::cluster_sync();
    constexpr int kShare = kDrawBins / kDrawBlocks;
    if (static_cast<int>(threadIdx.x) < kShare) {
      const int i = static_cast<int>(cluster_.rank()) * kShare + static_cast<int>(threadIdx.x);
      uint32_t low[kDrawBlocks], high[kDrawBlocks];
#pragma unroll
      for (int r = 0; r < kDrawBlocks; ++r) {
        low[r] = ptx::ld_cluster(&shared_.low[i], r);
        high[r] = ptx::ld_cluster(&shared_.high[i], r);
      }
      uint64_t total = 0;
#pragma unroll
      for (int r = 0; r < kDrawBlocks; ++r) total += (static_cast<uint64_t>(high[r]) << 32) + low[r];
#pragma unroll
      for (int r = 0; r < kDrawBlocks; ++r) ptx::st_cluster(&totals[i], r, total);
    }
    ptx::cluster_sync();
    uint64_t own = 0, total = 0;
    for (int i = threadIdx.x; i < kDrawBins; i += kDrawThreads) own += totals[i];
    block_exclusive<kDrawWarps>(own, total, shared_.reduce);
    return total;
  }

  __device__ DrawTarget bin_with(const uint64_t (&totals)[kDrawBins], uint64_t target) {
    constexpr int kEach = kDrawBins / kDrawThreads;
    const int first = static_cast<int>(threadIdx.x) * kEach;
    uint64_t own = 0, total = 0;
#pragma unroll
    for (int i = 0; i < kEach; ++i) own += totals[first + i];
    uint64_t running = block_exclusive<kDrawWarps>(own, total, shared_.reduce);
    if (running < target && target <= running + own)
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const uint64_t here = totals[first + i];
        if (running < target && target <= running + here) {
          shared_.bin = first + i;
          shared_.left = target - running;
        }
        running += here;
      }
    __syncthreads();
    const DrawTarget found{shared_.bin, shared_.left};
    __syncthreads();
    return found;
  }

  // The tokens for which `in` holds, in any order, in the first block's memory. Whether they fit there.
  template <class In>
  __device__ bool list(In&& in, DrawSum sum) {
    __syncthreads();
    if (threadIdx.x == 0) shared_.count = 0;
    __syncthreads();
    each_token([&](float logit, int i) {
      if (!in(logit)) return;
      const uint32_t at = atomicAdd(&shared_.count, 1);
      if (at < kDrawListed) shared_.mine[at] = {logit, begin_ + i};
    });
    __syncthreads();
    const uint32_t own = shared_.count;
    const uint64_t* all = cluster_.gather(own, shared_.slots);
    uint64_t before = 0, total = 0;
    for (uint32_t i = 0; i < kDrawBlocks; ++i) {
      if (i < cluster_.rank()) before += all[i];
      total += all[i];
    }
    if (total > kDrawListed) return false;
    if (threadIdx.x < own) {
      const Ranked t = shared_.mine[threadIdx.x];
      const auto at = before + threadIdx.x;
      ptx::st_cluster(&shared_.listed[at], 0, packed(t));
      ptx::st_cluster(&shared_.weights[at], 0, sum == DrawSum::tokens ? 1 : weight(t.logit));
    }
    listed_ = static_cast<int>(total);
    ptx::cluster_sync();
    return true;
  }

  // Of the listed tokens; leaves the running sum within the list in `reached`.
  __device__ Ranked pick(uint64_t target) {
    if (cluster_.rank() == 0) {
      for (int i = threadIdx.x; i < listed_; i += kDrawThreads) {
        const Ranked me = unpacked(shared_.listed[i]);
        uint64_t running = 0;
#pragma unroll 4
        for (int j = 0; j < listed_; ++j) running += before(unpacked(shared_.listed[j]), me) ? shared_.weights[j] : 0;
        if (running < target && target <= running + shared_.weights[i])
          for (uint32_t r = 0; r < cluster_.blocks(); ++r) {
            ptx::st_cluster(&shared_.found, r, packed(me));
            ptx::st_cluster(&shared_.reached, r, running + shared_.weights[i]);
          }
      }
    }
    ptx::cluster_sync();
    return unpacked(shared_.found);
  }

  // The same for more tokens than are listed, which almost all share one logit: by halving the range of (logit, token)
  // as one integer. Slow, one pass over the row for each of up to 64 bits.
  template <class In>
  __device__ Ranked bisect(DrawSum sum, uint64_t target, In&& in) {
    uint64_t low = 0, high = ULLONG_MAX, reached = 0;
    while (low < high) {
      const uint64_t middle = low + (high - low) / 2;
      uint64_t own = 0;
      each_token([&](float logit, int i) {
        if (in(logit) && place(logit, begin_ + i) <= middle) own += sum == DrawSum::tokens ? 1 : weight(logit);
      });
      const uint64_t total = sum_of(own);
      if (total >= target)
        high = middle, reached = total;
      else
        low = middle + 1;
    }
    __syncthreads();
    if (threadIdx.x == 0) shared_.reached = reached;
    __syncthreads();
    return {logit_at(low), static_cast<int32_t>(low & 0xffffffffu)};
  }
  // Ascending in the order of `before`.
  __device__ static uint64_t place(float logit, int token) {
    const uint32_t bits = __float_as_uint(logit == 0.0f ? 0.0f : logit);
    const uint32_t ascending = bits & 0x80000000u ? ~bits : bits | 0x80000000u;
    return static_cast<uint64_t>(~ascending) << 32 | static_cast<uint32_t>(token);
  }
  __device__ static float logit_at(uint64_t place) {
    const auto ascending = static_cast<uint32_t>(~place >> 32);
    return __uint_as_float(ascending & 0x80000000u ? ascending & 0x7fffffffu : ~ascending);
  }
  __device__ static uint64_t packed(Ranked t) {
    return static_cast<uint64_t>(static_cast<uint32_t>(t.token)) << 32 | __float_as_uint(t.logit);
  }
  __device__ static Ranked unpacked(uint64_t t) {
    return {__uint_as_float(static_cast<uint32_t>(t)), static_cast<int32_t>(t >> 32)};
  }

  const float* logits_;
  const int begin_, count_;
  const float top_;
  const double inverse_, steps_;
  const float bin_scale_;
  int listed_ = 0;
  Cluster& cluster_;
  DrawShared& shared_;
};

// The token for one row whose largest logit is `best`'s, a finite one. Whether this block has it; more than one block
// may.
__device__ inline bool draw_token(const SampleRequest& r, int vocab, Ranked best, Draw& draw, int32_t& token) {
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
    const bool here = draw.find_by_id(
        r.uniform, [&](float logit) { return likely(logit) ? draw.weight(logit) : 0; }, token);
    if (here && token < 0) token = best.token;
    return here;
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
  token = best.token;
  if (total == 0) return true;
  Ranked chosen = best;
  uint64_t reached;
  draw.find(DrawSum::weights, Draw::target_of(r.uniform, total), chosen, reached);
  token = chosen.token;
  return true;
}

}  // namespace sluice::sm90
