// SPDX-License-Identifier: Apache-2.0
#include "grammar/vocabulary.h"

#include <algorithm>

namespace sluice::grammar {

Vocabulary vocabulary_of(const text::Tokenizer& tokenizer, int64_t size, std::span<const int32_t> stops) {
  Vocabulary v;
  v.size = size;
  v.stops.assign(stops.begin(), stops.end());
  const auto ids = static_cast<int32_t>(std::min<int64_t>(tokenizer.vocab_size(), size));
  for (int32_t id = 0; id < ids; ++id) {
    v.bytes.emplace_back(tokenizer.bytes_of(id));
    v.special.push_back(tokenizer.is_special(id));
  }
  return v;
}

}  // namespace sluice::grammar
