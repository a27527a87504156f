// SPDX-License-Identifier: Apache-2.0
#include "io/json.h"

#include <limits>
#include <nlohmann/json.hpp>

#include "base/error.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
class Adapter final : public nlohmann::json_sax<nlohmann::json> {
 public:
  Adapter(JsonEvents& events, std::string_view source) : events_(events), source_(source) {}

  bool null() override { return events_.null(), true; }
  bool boolean(bool value) override { return events_.boolean(value), true; }
  bool number_integer(number_integer_t value) override {
    // The lexer takes this path for a leading minus only, so zero was written "-0".
    value == 0 ? events_.real(-0.0) : events_.integer(value);
    return true;
  }
  bool number_unsigned(number_unsigned_t value) override {
    constexpr auto kMax = static_cast<number_unsigned_t>(std::numeric_limits<int64_t>::max());
    value <= kMax ? events_.integer(static_cast<int64_t>(value)) : events_.real(static_cast<double>(value));
    return true;
  }
  bool number_float(number_float_t value, const string_t&) override { return events_.real(value), true; }
  bool string(string_t& value) override { return events_.string(value), true; }
  bool binary(binary_t&) override { return false; }
  bool key(string_t& value) override { return events_.key(value), true; }
  bool start_object(size_t) override { return enter(), events_.begin_object(), true; }
  bool end_object() override { return --depth_, events_.end_object(), true; }
  bool start_array(size_t) override { return enter(), events_.begin_array(), true; }
  bool end_array() override { return --depth_, events_.end_array(), true; }

  bool parse_error(size_t position, const std::string&, const nlohmann::detail::exception& error) override {
    // "[json.exception.parse_error.101] parse error at line 1, column 2: syntax error ...": keep the last part.
    std::string_view reason = error.what();
    if (const size_t end = reason.find("] "); end != reason.npos) reason.remove_prefix(end + 2);
    if (reason.starts_with("parse error"))
      if (const size_t colon = reason.find(": "); colon != reason.npos) reason.remove_prefix(colon + 2);
    fail(ErrorCode::bad_file, "{} is not JSON at byte {}: {}", source_, position, printable(reason, 200));
  }

 private:
  void enter() {
    check_file(++depth_ <= kMaxJsonDepth, "{} nests objects or arrays more than {} deep", source_, kMaxJsonDepth);
  }

  JsonEvents& events_;
  std::string_view source_;
  int depth_ = 0;
};

// Rewrites Python's Infinity, -Infinity and NaN outside of strings; `text` itself when there are none.
std::string_view without_python_constants(std::string_view text, std::string& storage) {
  size_t copied = 0;
  bool in_string = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
      continue;
    }
    if (c == '"') in_string = true;
    for (const std::string_view word : {"Infinity", "-Infinity", "NaN"}) {
      if (c != word[0] || text.substr(i, word.size()) != word) continue;
      storage.append(text.substr(copied, i - copied)).append("{\"__float__\":\"").append(word).append("\"}");
      i += word.size() - 1;
      copied = i + 1;
      break;
    }
  }
  if (copied == 0) return text;
  return storage.append(text.substr(copied));
}
}  // namespace

void parse_json(std::string_view text, std::string_view source, JsonEvents& events, JsonDialect dialect) {
  // The lexer takes a NUL byte for the end of input: whatever follows it would be accepted unseen.
  const size_t nul = text.find('\0');
  check_file(nul == text.npos, "{} is not JSON at byte {}: a NUL byte", source, nul);
  std::string storage;
  if (dialect == JsonDialect::python) text = without_python_constants(text, storage);
  Adapter adapter(events, source);
  const bool complete = nlohmann::json::sax_parse(text.data(), text.data() + text.size(), &adapter);
  check_file(complete, "{} is not JSON", source);
}

}  // namespace sluice::io
