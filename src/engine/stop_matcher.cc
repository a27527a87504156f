// SPDX-License-Identifier: Apache-2.0
#include "engine/stop_matcher.h"

#include <algorithm>

namespace sluice::engine {

bool StopMatcher::push(std::string_view piece, std::string& out) {
  if (stops_.empty()) {
    out += piece;
    return false;
  }
  const size_t old = held_.size();
  held_ += piece;
  for (size_t end = old + 1; end <= held_.size(); ++end) {
    const size_t length = complete_at(end);
    if (length == 0) continue;
    matched_ = held_.substr(end - length, length);
    out.append(held_, 0, include_ ? end : end - length);
    held_.clear();
    return true;
  }
  const size_t certain = held_.size() - undecided();
  out.append(held_, 0, certain);
  held_.erase(0, certain);
  return false;
}

void StopMatcher::finish(std::string& out) {
  out += held_;
  held_.clear();
}

size_t StopMatcher::complete_at(size_t end) const {
  size_t longest = 0;
  for (const std::string& stop : stops_)
    if (stop.size() <= end && held_.compare(end - stop.size(), stop.size(), stop) == 0)
      longest = std::max(longest, stop.size());
  return longest;
}

size_t StopMatcher::undecided() const {
  size_t most = 0;
  for (const std::string& stop : stops_)
    for (size_t n = std::min(stop.size() - 1, held_.size()); n > most; --n)
      if (held_.compare(held_.size() - n, n, stop, 0, n) == 0) most = n;
  return most;
}

}  // namespace sluice::engine
