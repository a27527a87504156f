// SPDX-License-Identifier: Apache-2.0
// Any bytes as a JSON schema, regular expression, grammar or structural tag (the first byte chooses): each is compiled
// within its limits or refused by a sentence, and what is compiled can be followed and taken back.
#include <cstdint>
#include <cstdlib>
#include <string>

#include "base/error.h"
#include "grammar/compiler.h"
#include "sampling/choose.h"

namespace {
namespace grammar = sluice::grammar;

grammar::GrammarCompiler& compiler() {
  static grammar::GrammarCompiler c(
      [] {
        grammar::Vocabulary v;
        for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
        v.bytes.insert(v.bytes.end(), {"{\"", "\":", ", ", "true", "null", "</s>"});
        v.special.assign(v.bytes.size(), false);
        v.special.back() = true;
        v.stops = {261};
        v.size = 270;
        return v;
      }(),
      {.seconds = 8, .cached_grammars = 1});
  return c;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size == 0 || !grammar::why_not_available().empty()) return 0;
  const std::string text(reinterpret_cast<const char*>(data) + 1, size - 1);
  grammar::GrammarPtr compiled;
  try {
    compiled = compiler().compile({static_cast<grammar::Kind>(data[0] % 4), text, data[0] < 128});
  } catch (const sluice::Error& error) {
    if (std::string(error.what()).size() < 10) std::abort();
    return 0;
  }
  grammar::GrammarState state(compiled);
  std::vector<uint32_t> mask(static_cast<size_t>(sluice::sampling::mask_words(270))), first(mask), again(mask);
  state.fill_mask(first);
  int steps = 0;
  for (uint32_t at = size; steps < 16; ++steps) {
    state.fill_mask(mask);
    int32_t token = -1;
    for (int32_t i = 0; token < 0 && i < 270; ++i) {
      const int32_t id = static_cast<int32_t>((at + static_cast<uint32_t>(i) * 7) % 270);
      if ((mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0) token = id;
    }
    if (token < 0) break;
    if (!state.accept(token)) std::abort();
    at = at * 31 + static_cast<uint32_t>(token);
  }
  state.rollback(steps);
  state.fill_mask(again);
  if (first != again) std::abort();
  return 0;
}
