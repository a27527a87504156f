// SPDX-License-Identifier: Apache-2.0
#include "ops/cpu/attention_sums.h"

#include <algorithm>
#include <limits>

#include "ops/cpu/clones.h"
#include "ops/cpu/exp.h"

namespace sluice::ops::cpu {

namespace {
// Queries whose factors are computed side by side: an exponential alone takes as long as the row's values.
constexpr int64_t kTogether = 64;

// Of at most kTogether queries.
SLUICE_CLONES void merge_some(const AttentionSums& into, const AttentionSums& later, int64_t count) {
  float a[kTogether], b[kTogether];
  for (int64_t i = 0; i < count; ++i) {
    const float x = into.maximum[i], y = later.maximum[i], largest = x > y ? x : y;
    a[i] = exp_float(x - largest);
    b[i] = exp_float(y - largest);
    into.maximum[i] = largest;
    into.sum[i] = a[i] * into.sum[i] + b[i] * later.sum[i];
  }
  for (int64_t i = 0; i < count; ++i) {
    float* x = into.values + i * into.width;
    const float* y = later.values + i * into.width;
    for (int64_t c = 0; c < into.width; ++c) x[c] = a[i] * x[c] + b[i] * y[c];
  }
}
}  // namespace

void AttentionSums::clear(int64_t count) const {
  std::fill_n(maximum, count, -std::numeric_limits<float>::infinity());
  std::fill_n(sum, count, 0.0f);
}

void AttentionSums::merge(const AttentionSums& later, int64_t count) const {
  for (int64_t i = 0; i < count; i += kTogether) merge_some(from(i), later.from(i), std::min(kTogether, count - i));
}

}  // namespace sluice::ops::cpu
