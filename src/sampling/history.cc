// SPDX-License-Identifier: Apache-2.0
#include "sampling/history.h"

#include <algorithm>

namespace sluice::sampling {

void History::penalize(const Penalties& p, std::span<const int32_t> drafts, std::vector<LogitEdit>& edits) const {
  const auto edit = [&](int32_t token, int64_t count) {
    const double subtract = count > 0 ? p.frequency * static_cast<double>(count) + p.presence : 0;
    edits.push_back({.token = token, .repetition = p.repetition, .subtract = subtract});
  };
  for (const auto& [token, count] : seen_) edit(token, count + std::count(drafts.begin(), drafts.end(), token));
  for (auto draft = drafts.begin(); draft != drafts.end(); ++draft)
    if (!seen_.contains(*draft) && std::find(drafts.begin(), draft, *draft) == draft)
      edit(*draft, std::count(drafts.begin(), drafts.end(), *draft));
}

}  // namespace sluice::sampling
