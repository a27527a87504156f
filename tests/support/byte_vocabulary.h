// SPDX-License-Identifier: Apache-2.0
// A vocabulary of one token per byte, none of them special: with it a text is its own tokens.
#pragma once

#include "grammar/vocabulary.h"

namespace sluice::test {

inline grammar::Vocabulary byte_vocabulary() {
  grammar::Vocabulary v;
  for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
  v.special.assign(256, false);
  v.size = 256;
  return v;
}

}  // namespace sluice::test
