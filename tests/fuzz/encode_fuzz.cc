// SPDX-License-Identifier: Apache-2.0
// Any bytes as text, through the pre-tokenizers of the families that models use: decoding gives the text back, and a
// stream of the ids gives the same as decoding them at once.
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_alphabet.h"
#include "text/detokenizer.h"
#include "text/tokenizer.h"
#include "text/utf8.h"

namespace {

using sluice::text::Detokenizer;
using sluice::text::PreTokenizerStep;
using sluice::text::Tokenizer;
using sluice::text::TokenizerData;

// Every byte, a few merges that cross and overlap, two added tokens.
Tokenizer make(const std::vector<const char*>& patterns, bool gpt2) {
  TokenizerData d;
  d.source = "fuzz";
  for (size_t b = 0; b < 256; ++b) d.vocab.emplace_back(sluice::text::byte_alphabet_utf8()[b], b);
  for (const auto& [left, right] : {std::pair{"a", "a"}, {"aa", "aa"}, {"a", "b"}, {"1", "1"}, {"aa", "b"}}) {
    d.vocab.emplace_back(std::string(left) + right, d.vocab.size());
    d.merges.emplace_back(left, right);
  }
  const auto next = static_cast<int64_t>(d.vocab.size());
  d.added_tokens = {{.content = "<s>", .id = next, .special = true}, {.content = "<s>a", .id = next + 1}};
  for (const char* pattern : patterns) {
    PreTokenizerStep step;
    step.pattern = pattern;
    d.pre_tokenizers.push_back(step);
  }
  PreTokenizerStep bytes;
  bytes.kind = PreTokenizerStep::Kind::byte_level;
  bytes.add_prefix_space = false;
  bytes.use_regex = gpt2;
  d.pre_tokenizers.push_back(bytes);
  return Tokenizer(d);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Tokenizer tokenizers[] = {
      make({}, true),
      make({R"((?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+)"
            R"(|\s+(?!\S)|\s+)"},
           false),
      make(
          {R"(\p{N}{1,3})", R"([\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+)",
           R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+| ?[\p{P}\p{S}]+[\r\n]*)"
           R"(|\s*[\r\n]+|\s+(?!\S)|\s+)"},
          false),
  };
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string expected = sluice::text::to_valid_utf8(text);
  for (const Tokenizer& t : tokenizers)
    for (const bool parse_special : {false, true}) {
      const auto ids = t.encode(text, {.parse_special = parse_special});
      if (t.decode(ids) != expected) std::abort();
      Detokenizer stream(t);
      std::string streamed;
      for (const int32_t id : ids) streamed += stream.push(id);
      if (streamed + stream.finish() != expected) std::abort();
    }
  return 0;
}
