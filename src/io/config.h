// SPDX-License-Identifier: Apache-2.0
// Typed, checked access to config.json and its like. Every getter takes the range that the caller can handle, so
// that a wrong value ends in a sentence and not in a division by zero three layers deeper.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "base/named.h"

namespace sluice::io {

struct JsonValue;

// Both ends are accepted.
struct IntRange {
  int64_t min = std::numeric_limits<int64_t>::min();
  int64_t max = std::numeric_limits<int64_t>::max();
};
struct NumberRange {
  double min = -std::numeric_limits<double>::infinity();  // NaN is never accepted, infinity only inside the range
  double max = std::numeric_limits<double>::infinity();
};

// One key, or several that name the same thing in different families: {"num_experts", "n_routed_experts"}.
class ConfigKeys {
 public:
  ConfigKeys(const char* key) : keys_{key} {}
  ConfigKeys(const std::string& key) : keys_{key} {}
  ConfigKeys(std::initializer_list<std::string_view> keys) : keys_(keys) {}
  const std::vector<std::string_view>& all() const { return keys_; }

 private:
  std::vector<std::string_view> keys_;
};

// An object of a config file; copying copies a handle. A key whose value is null counts as absent. Getters without a
// fallback throw when the key is absent; all throw bad_file naming file, key, value and what is accepted, also when two
// alternative keys are present with different values. A fallback must lie in the range too: one that is
// computed from other keys (hidden_size / num_attention_heads) may not be usable either.
class Config {
 public:
  // Throws as read_file, and bad_file when the text is no JSON object. Python's Infinity and NaN are understood.
  static Config load(const std::filesystem::path& path);
  static Config parse(std::string_view text, std::string source);

  const std::string& source() const { return source_; }  // the file's path
  bool has(const ConfigKeys& keys) const;
  std::vector<std::string> keys() const;  // of the members that are not null, in file order

  int64_t integer(const ConfigKeys& keys, IntRange range) const;
  int64_t integer(const ConfigKeys& keys, IntRange range, int64_t fallback) const;
  double number(const ConfigKeys& keys, NumberRange range) const;
  double number(const ConfigKeys& keys, NumberRange range, double fallback) const;
  bool boolean(const ConfigKeys& keys) const;
  bool boolean(const ConfigKeys& keys, bool fallback) const;
  std::string string(const ConfigKeys& keys) const;
  std::string string(const ConfigKeys& keys, std::string_view fallback) const;

  // One value where an array is expected is an array of one: eos_token_id is written both ways.
  std::vector<int64_t> integers(const ConfigKeys& keys, IntRange range) const;
  std::vector<double> numbers(const ConfigKeys& keys, NumberRange range) const;
  std::vector<std::string> strings(const ConfigKeys& keys) const;
  std::vector<Config> objects(const ConfigKeys& keys) const;
  Config object(const ConfigKeys& keys) const;
  std::optional<Config> find_object(const ConfigKeys& keys) const;  // nothing when the key is absent
  // Every member of this object, which must be an object each, in file order. In one pass: ModelOpt's quantized_layers
  // has 40,960 of them in a model of 512 experts, and keys() with object() takes 9 s there.
  std::vector<std::pair<std::string, Config>> members() const;

  bool is_string(const ConfigKeys& keys) const;  // for keys that hold a name or an object
  bool is_object(const ConfigKeys& keys) const;

  // One of the names of a table; any other is well-formed but not supported (unsupported).
  template <class Enum, size_t N>
  Enum choice(const ConfigKeys& keys, const std::array<Named<Enum>, N>& table) const;

  // Throws "<file>: <key> <sentence>": bad_file for checks of one key against another, unsupported for a value that
  // means something which is not implemented.
  [[noreturn]] void refuse(const ConfigKeys& keys, const std::string& sentence,
                           ErrorCode code = ErrorCode::bad_file) const;

 private:
  Config(std::shared_ptr<const JsonValue> node, std::string source, std::string path);
  const JsonValue* find(const ConfigKeys& keys) const;
  const JsonValue& get(const ConfigKeys& keys, const std::string& accepted) const;
  Config child(const ConfigKeys& keys, const JsonValue& value, const std::string& suffix = "") const;
  std::string name_of(const ConfigKeys& keys) const;
  template <class Read>
  auto list(const ConfigKeys& keys, const std::string& accepted, const Read& read) const;

  std::shared_ptr<const JsonValue> node_;  // shares the ownership of the whole document
  std::string source_;
  std::string path_;  // "" or "rope_scaling."
};

template <class Enum, size_t N>
Enum Config::choice(const ConfigKeys& keys, const std::array<Named<Enum>, N>& table) const {
  const std::string value = string(keys);
  std::string accepted;
  for (const auto& row : table) {
    if (row.name == value) return row.value;
    accepted.append(accepted.empty() ? "" : ", ").append(row.name);
  }
  refuse(keys, "is \"" + value + "\"; accepted: " + accepted, ErrorCode::unsupported);
}

}  // namespace sluice::io
