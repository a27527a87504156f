// SPDX-License-Identifier: Apache-2.0
#include "engine/batch.h"

namespace sluice::engine {

void BatchBuilder::clear() {
  tokens_.clear();
  positions_.clear();
  logit_rows_.clear();
  sequences_.clear();
}

int64_t BatchBuilder::add(int slot, std::span<const int32_t> tokens, int64_t context, std::span<const int32_t> blocks,
                          int64_t logit_rows, bool tentative) {
  const int64_t first = rows(), count = static_cast<int64_t>(tokens.size()), first_logit = this->logit_rows();
  sequences_.push_back({slot, first, count, context, blocks, tentative});
  tokens_.insert(tokens_.end(), tokens.begin(), tokens.end());
  for (int64_t i = 0; i < count; ++i) positions_.push_back(static_cast<int32_t>(context + i));
  for (int64_t i = count - logit_rows; i < count; ++i) logit_rows_.push_back(static_cast<int32_t>(first + i));
  return first_logit;
}

}  // namespace sluice::engine
