// SPDX-License-Identifier: Apache-2.0
#include "engine/metrics.h"

#include <algorithm>

namespace sluice::engine {

namespace {
double ratio(int64_t a, int64_t b) { return b > 0 ? static_cast<double>(a) / static_cast<double>(b) : 0; }
}  // namespace

void Histogram::observe(double value) {
  ++counts_[static_cast<size_t>(std::lower_bound(bounds_.begin(), bounds_.end(), value) - bounds_.begin())];
  ++count_;
  sum_ += value;
}

double Metrics::cache_hit_rate() const { return ratio(cached_tokens, prompt_tokens); }
double Metrics::token_usage() const { return ratio(blocks_used, blocks); }
double Metrics::accept_length() const { return ratio(accepted + verify_rounds, verify_rounds); }
double Metrics::accept_rate() const { return ratio(accepted, drafted); }

}  // namespace sluice::engine
