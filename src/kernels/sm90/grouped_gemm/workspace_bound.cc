// SPDX-License-Identifier: Apache-2.0
#include "kernels/sm90/grouped_gemm/workspace_bound.h"

#include <algorithm>
#include <utility>

namespace sluice::sm90 {

WorkspaceBound::WorkspaceBound(Bytes exact, const Choice& choice) : exact_(std::move(exact)) {
  constexpr int64_t kMostTokens = int64_t{1} << 31;  // the kernels count pairs of tokens and experts in 32 bits
  int64_t most = 0;
  const auto add = [&](int64_t tokens) {
    most = std::max(most, exact_(tokens));
    bounds_.push_back({tokens, most});
  };
  for (int64_t tokens = 1; tokens <= tuning::kSplitTokens; ++tokens) add(tokens);
  const Instance widest = choice(kMostTokens).instance;
  for (int64_t first = tuning::kSplitTokens + 1;;) {
    const Instance tile = choice(first).instance;
    if (tile == widest) return;
    int64_t last = first, beyond = kMostTokens;
    while (beyond - last > 1) {
      const int64_t middle = last + (beyond - last) / 2;
      (choice(middle).instance == tile ? last : beyond) = middle;
    }
    add(last);
    first = beyond;
  }
}

int64_t WorkspaceBound::bytes(int64_t tokens) const {
  if (tokens <= 0) return 0;
  const auto after = std::upper_bound(bounds_.begin(), bounds_.end(), tokens,
                                      [](int64_t t, const Bound& bound) { return t < bound.tokens; });
  const int64_t before = after == bounds_.begin() ? 0 : std::prev(after)->bytes;
  return std::max(before, exact_(tokens));
}

}  // namespace sluice::sm90
