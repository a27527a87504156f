// SPDX-License-Identifier: Apache-2.0
#include "sampling/choose.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>

#include "base/error.h"

namespace sluice::sampling {

namespace {
void edit(std::span<float> logits, const LogitEdit& e) {
  if (e.token < 0 || static_cast<size_t>(e.token) >= logits.size()) return;
  float& logit = logits[static_cast<size_t>(e.token)];
  logit += e.bias;
  if (e.repetition != 1 || e.subtract != 0) {
    double value = logit;
    value = value > 0 ? value / e.repetition : value * e.repetition;
    logit = static_cast<float>(value - e.subtract);
  }
  if (e.banned) logit = -std::numeric_limits<float>::infinity();
}

// Tokens that the mask leaves out become -infinity. Mostly words are all 0 or all 1.
void apply_mask(std::span<float> logits, std::span<const uint32_t> mask) {
  for (size_t w = 0; w < mask.size(); ++w) {
    if (mask[w] == ~uint32_t{0}) continue;
    const size_t first = w * 32, end = std::min(first + 32, logits.size());
    for (size_t i = first; i < end; ++i)
      if ((mask[w] >> (i - first) & 1) == 0) logits[i] = -std::numeric_limits<float>::infinity();
  }
}

// Four logits. Compared one by one with the best so far, 150,000 of them take 0.15 ms from the cache, in vectors 0.03,
// and all other threads wait meanwhile.
using Four = float __attribute__((vector_size(16)));

struct Largest {
  float value;
  bool nan;
};
// Of up to kChunk logits. Other cores have just written them, so lines are asked for well before they are compared.
constexpr size_t kChunk = 1024;
Largest largest_of(const float* x, size_t n) {
  constexpr size_t kAhead = 1024;  // 4 KiB; other distances were not measured
  Four best = {x[0], x[0], x[0], x[0]};
  auto nans = best != best;
  size_t i = 0;
  for (; i + 4 <= n; i += 4) {
    if (i % 16 == 0) __builtin_prefetch(x + i + kAhead);
    Four v;
    std::memcpy(&v, x + i, sizeof v);
    nans |= v != v;
    best = v > best ? v : best;
  }
  Largest out{best[0], (nans[0] | nans[1] | nans[2] | nans[3]) != 0};
  for (int lane = 1; lane < 4; ++lane) out.value = std::max(out.value, best[lane]);
  for (; i < n; ++i) out.nan |= std::isnan(x[i]), out.value = std::max(out.value, x[i]);
  return out;
}

// The first of the largest logits.
void find_largest(std::span<const float> logits, Sampled& out) {
  size_t chunk = 0;
  bool nan = false;
  out.largest = -std::numeric_limits<float>::infinity();
  for (size_t begin = 0; begin < logits.size(); begin += kChunk) {
    const Largest here = largest_of(logits.data() + begin, std::min(kChunk, logits.size() - begin));
    nan |= here.nan;
    if (here.value > out.largest) out.largest = here.value, chunk = begin;
  }
  out.problem = nan                           ? Sampled::Problem::nan
                : !std::isfinite(out.largest) ? Sampled::Problem::not_finite
                                              : Sampled::Problem::none;
  out.token = -1;
  if (out.problem != Sampled::Problem::none) return;
  while (logits[chunk] != out.largest) ++chunk;
  out.token = static_cast<int32_t>(chunk);
}

using Candidate = ChooseScratch::Candidate;

// Descending, ties by id: the same order on every machine.
bool before(const Candidate& a, const Candidate& b) { return a.logit != b.logit ? a.logit > b.logit : a.id < b.id; }
bool allowed(float logit) { return logit != -std::numeric_limits<float>::infinity(); }  // a mask leaves few

// Every token that may be chosen, by id.
void list_all(std::span<const float> logits, std::vector<Candidate>& out) {
  out.clear();
  out.reserve(logits.size());
  for (size_t i = 0; i < logits.size(); ++i)
    if (allowed(logits[i])) out.push_back({logits[i], static_cast<int32_t>(i)});
}

// The k best, in order; by id if no more than these may be chosen. For small k: a heap whose root is the worst. Few
// logits beat it, so whole runs of them are passed over (150,000 logits, k = 20: 0.05 ms; to list and sort them
// takes 1.1).
constexpr int64_t kHeapTokens = 256;
void list_best(std::span<const float> logits, size_t k, std::vector<Candidate>& out) {
  constexpr size_t kRun = 64;
  out.clear();
  bool more = false;
  const auto offer = [&](size_t id) {
    if (!allowed(logits[id])) return;
    if (out.size() == k) {
      more = true;
      if (!(logits[id] > out.front().logit)) return;
      std::pop_heap(out.begin(), out.end(), before);
      out.pop_back();
    }
    out.push_back({logits[id], static_cast<int32_t>(id)});
    std::push_heap(out.begin(), out.end(), before);
  };
  for (size_t begin = 0; begin < logits.size(); begin += kRun) {
    const size_t n = std::min(kRun, logits.size() - begin);
    if (more && !(largest_of(logits.data() + begin, n).value > out.front().logit)) continue;
    for (size_t i = 0; i < n; ++i) offer(begin + i);
  }
  if (more)
    std::sort(out.begin(), out.end(), before);
  else
    std::sort(out.begin(), out.end(), [](const Candidate& a, const Candidate& b) { return a.id < b.id; });
}

int32_t draw(const SampleRow& row, std::span<const float> logits, int32_t best, std::vector<Candidate>& candidates) {
  const float top = logits[static_cast<size_t>(best)];
  const auto weight = [&](float logit) { return std::exp((static_cast<double>(logit) - top) / row.temperature); };
  const auto at = [&](size_t i) { return candidates.begin() + static_cast<std::ptrdiff_t>(i); };
  if (row.top_k > 0 && row.top_k <= kHeapTokens)
    list_best(logits, static_cast<size_t>(row.top_k), candidates);
  else
    list_all(logits, candidates);
  size_t count = candidates.size();
  if (row.top_k > 0 && static_cast<size_t>(row.top_k) < count) {
    count = static_cast<size_t>(row.top_k);
    std::nth_element(candidates.begin(), at(count), candidates.end(), before);
    std::sort(candidates.begin(), at(count), before);
  }
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += weight(candidates[i].logit);
  if (row.top_p < 1) {
    // The nucleus is mostly small: sort only as many of the most likely tokens as it holds.
    size_t sorted = 0, kept = 0;
    double mass = 0;
    while (kept < count && (kept == 0 || mass < row.top_p * total)) {
      if (kept == sorted) {
        const size_t end = std::min(count, std::max<size_t>(64, sorted * 4));
        if (end < count) std::nth_element(at(sorted), at(end), at(count), before);
        std::sort(at(sorted), at(end), before);
        sorted = end;
      }
      mass += weight(candidates[kept++].logit);
    }
    count = kept;
    total = mass;
  }
  if (row.min_p > 0) {
    const auto end =
        std::remove_if(candidates.begin(), at(count), [&](const Candidate& c) { return weight(c.logit) < row.min_p; });
    count = static_cast<size_t>(end - candidates.begin());
    total = 0;
    for (size_t i = 0; i < count; ++i) total += weight(candidates[i].logit);
  }
  double left = uniform_at(row.seed, row.position) * total;
  for (size_t i = 0; i < count; ++i) {
    left -= weight(candidates[i].logit);
    if (left < 0) return candidates[i].id;
  }
  return best;  // rounding left something over
}
}  // namespace

int32_t checked_token(const Sampled& s, int64_t position) {
  check_file(s.problem != Sampled::Problem::nan,
             "the logits at position {} hold a NaN; the weights or their scales are broken", position);
  check(s.problem != Sampled::Problem::not_finite,
        "the largest logit at position {} is {}; a finite one is needed to choose a token", position, s.largest);
  return s.token;
}

void choose_token(const SampleRow& row, const SampleBatch& batch, std::span<float> logits, ChooseScratch& scratch,
                  Sampled& out) {
  const auto first = static_cast<size_t>(row.first_edit), count = static_cast<size_t>(row.num_edits);
  const bool scores = row.top_logprobs >= 0;
  out.problem = Sampled::Problem::none;
  if (row.forced >= 0) {
    out.token = row.forced;
    if (scores) out.logprob = logprob_of(logits, row.forced, row.top_logprobs);
    return;
  }
  const bool changed = count > 0 || row.mask >= 0;
  if (scores && changed) scratch.logits.assign(logits.begin(), logits.end());
  for (const LogitEdit& e : batch.edits.subspan(first, count)) edit(logits, e);
  if (row.mask >= 0) {
    const auto words = static_cast<size_t>(mask_words(static_cast<int64_t>(logits.size())));
    apply_mask(logits, batch.masks.subspan(static_cast<size_t>(row.mask) * words, words));
  }
  find_largest(logits, out);
  if (out.problem != Sampled::Problem::none) return;
  if (row.temperature != 0) out.token = draw(row, logits, out.token, scratch.candidates);
  if (scores)
    out.logprob = logprob_of(changed ? std::span<const float>(scratch.logits) : logits, out.token, row.top_logprobs);
}

}  // namespace sluice::sampling
