// SPDX-License-Identifier: Apache-2.0
// Any bytes as tokenizer.json, a NUL byte and tokenizer_config.json. A tokenizer that is accepted must encode and
// decode.
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "base/error.h"
#include "io/tokenizer_json.h"
#include "text/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view all(reinterpret_cast<const char*>(data), size);
  const size_t nul = all.find('\0');
  const std::string_view config = nul == all.npos ? "" : all.substr(nul + 1);
  try {
    const sluice::text::Tokenizer tokenizer(
        sluice::io::parse_tokenizer(all.substr(0, nul), "tokenizer.json", config, "tokenizer_config.json"));
    const auto ids = tokenizer.encode("ab <s>a1 b\xc3\xa9\xff aaaa");
    for (const int32_t id : ids)
      if (id < 0 || id >= tokenizer.vocab_size()) std::abort();
    tokenizer.decode(ids);
  } catch (const sluice::Error&) {
  }
  return 0;
}
