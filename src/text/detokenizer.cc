// SPDX-License-Identifier: Apache-2.0
#include "text/detokenizer.h"

#include "text/utf8.h"

namespace sluice::text {

std::string Detokenizer::push(int32_t id) {
  if (skip_special_tokens_ && tokenizer_->is_special(id)) return {};
  pending_ += tokenizer_->bytes_of(id);
  std::string out;
  const size_t held_back = append_utf8(out, pending_, false);
  pending_.erase(0, pending_.size() - held_back);
  return out;
}

std::string Detokenizer::finish() {
  std::string out;
  append_utf8(out, pending_, true);
  pending_.clear();
  return out;
}

}  // namespace sluice::text
