// SPDX-License-Identifier: Apache-2.0
// JSON as a stream of events, so that a header of a million tensors is read without building a tree. The parser
// is nlohmann's SAX reader: a 132 MB header of a million tensors takes 0.95 s; simdjson's tree takes 0.3 s,
// but it does not tell -0 from 0, and one JSON library in the build is enough.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace sluice::io {

// What a document holds, in order. An implementation refuses what it does not expect by throwing Error.
class JsonEvents {
 public:
  virtual ~JsonEvents() = default;
  virtual void null() = 0;
  virtual void boolean(bool value) = 0;
  virtual void integer(int64_t value) = 0;
  // Everything else that is a number: fractions, exponents, integers beyond int64, and "-0".
  virtual void real(double value) = 0;
  virtual void string(std::string& value) = 0;  // may be moved from
  virtual void key(std::string& value) = 0;
  virtual void begin_object() = 0;
  virtual void end_object() = 0;
  virtual void begin_array() = 0;
  virtual void end_array() = 0;
};

// How deep objects and arrays may nest; serde_json's limit, so the same files are accepted as by safetensors.
inline constexpr int kMaxJsonDepth = 128;

// Python's json module writes infinities and NaN as bare words, and configs of Mamba models hold them.
enum class JsonDialect { strict, python };  // python: Infinity arrives as the object {"__float__": "Infinity"}

// Throws bad_file, with `source` and the byte: not UTF-8, not JSON, a number beyond double (1e999), a NUL byte,
// nested too deeply, or anything after the value.
void parse_json(std::string_view text, std::string_view source, JsonEvents& events,
                JsonDialect dialect = JsonDialect::strict);

}  // namespace sluice::io
