// SPDX-License-Identifier: Apache-2.0
#include "io/config.h"

#include <cmath>
#include <utility>

#include "io/file.h"
#include "io/json_value.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;  // the longest in use (per-layer quantisation) are near 1 MB

std::string range_text(IntRange r) {
  constexpr IntRange kAll;
  if (r.min == kAll.min && r.max == kAll.max) return "an integer";
  if (r.max == kAll.max) return fmt::format("an integer of at least {}", r.min);
  if (r.min == kAll.min) return fmt::format("an integer of at most {}", r.max);
  return fmt::format("an integer from {} to {}", r.min, r.max);
}

std::string range_text(NumberRange r) {
  constexpr NumberRange kAll;
  if (r.min == kAll.min && r.max == kAll.max) return "a number";
  if (r.max == kAll.max) return fmt::format("a number of at least {}", r.min);
  return fmt::format("a number from {} to {}", r.min, r.max);
}

std::optional<int64_t> read_integer(const JsonValue& v, IntRange range) {
  const auto* i = v.as<int64_t>();
  if (i == nullptr || *i < range.min || *i > range.max) return std::nullopt;
  return *i;
}

std::optional<double> read_number(const JsonValue& v, NumberRange range) {
  double number = std::nan("");
  if (const auto* i = v.as<int64_t>()) number = static_cast<double>(*i);
  if (const auto* d = v.as<double>()) number = *d;
  // transformers 5 writes what JSON cannot as {"__float__": "Infinity"}; its "NaN" is refused like any NaN.
  if (const auto* name = v.find("__float__"); name && name->as<std::string>()) {
    const double infinity = std::numeric_limits<double>::infinity();
    if (*name->as<std::string>() == "Infinity") number = infinity;
    if (*name->as<std::string>() == "-Infinity") number = -infinity;
  }
  if (!(number >= range.min && number <= range.max)) return std::nullopt;
  return number;
}

template <class T>
std::optional<T> read_as(const JsonValue& v) {
  const T* p = v.as<T>();
  return p ? std::optional<T>(*p) : std::nullopt;
}
}  // namespace

Config::Config(std::shared_ptr<const JsonValue> node, std::string source, std::string path)
    : node_(std::move(node)), source_(std::move(source)), path_(std::move(path)) {}

Config Config::load(const std::filesystem::path& path) {
  return parse(read_file(path, kMaxConfigBytes), printable(path.native(), 4096));
}

Config Config::parse(std::string_view text, std::string source) {
  auto root = std::make_shared<JsonValue>(parse_json_value(text, source, JsonDialect::python));
  check_file(root->as<JsonValue::Object>() != nullptr, "{} holds {}; it must be a JSON object", source,
             describe(*root));
  return {std::move(root), std::move(source), ""};
}

std::string Config::name_of(const ConfigKeys& keys) const {
  std::string text;
  for (const auto& key : keys.all()) text.append(text.empty() ? "" : " or ").append(path_).append(printable(key));
  return text;
}

void Config::refuse(const ConfigKeys& keys, const std::string& sentence, ErrorCode code) const {
  // Name the key that the file has, not its alternatives.
  for (const auto& key : keys.all())
    if (node_->find(key)) fail(code, "{}: {}{} {}", source_, path_, printable(key), sentence);
  fail(code, "{}: {} {}", source_, name_of(keys), sentence);
}

const JsonValue* Config::find(const ConfigKeys& keys) const {
  const JsonValue* found = nullptr;
  std::string_view found_key;
  for (const auto& key : keys.all()) {
    const JsonValue* value = node_->find(key);
    if (value == nullptr) continue;
    if (found != nullptr && !(*found == *value))
      fail(ErrorCode::bad_file, "{}: {}{} is {} but {}{} is {}; they mean the same and must agree", source_, path_,
           found_key, describe(*found), path_, key, describe(*value));
    if (found == nullptr) found_key = key;
    found = value;
  }
  return found;
}

const JsonValue& Config::get(const ConfigKeys& keys, const std::string& accepted) const {
  const JsonValue* value = find(keys);
  if (value == nullptr) refuse(keys, "is missing; it must be " + accepted);
  return *value;
}

bool Config::has(const ConfigKeys& keys) const { return find(keys) != nullptr; }

std::vector<std::string> Config::keys() const {
  std::vector<std::string> out;
  for (const JsonMember& member : *node_->as<JsonValue::Object>())
    if (!member.value.is_null()) out.push_back(member.key);
  return out;
}

int64_t Config::integer(const ConfigKeys& keys, IntRange range) const {
  const JsonValue& v = get(keys, range_text(range));
  if (const auto i = read_integer(v, range)) return *i;
  refuse(keys, "is " + describe(v) + "; it must be " + range_text(range));
}

int64_t Config::integer(const ConfigKeys& keys, IntRange range, int64_t fallback) const {
  if (has(keys)) return integer(keys, range);
  if (fallback >= range.min && fallback <= range.max) return fallback;
  refuse(keys, fmt::format("is missing and would be {}; it must be {}", fallback, range_text(range)));
}

double Config::number(const ConfigKeys& keys, NumberRange range) const {
  const JsonValue& v = get(keys, range_text(range));
  if (const auto d = read_number(v, range)) return *d;
  refuse(keys, "is " + describe(v) + "; it must be " + range_text(range));
}

double Config::number(const ConfigKeys& keys, NumberRange range, double fallback) const {
  if (has(keys)) return number(keys, range);
  if (fallback >= range.min && fallback <= range.max) return fallback;
  refuse(keys, fmt::format("is missing and would be {}; it must be {}", fallback, range_text(range)));
}

bool Config::boolean(const ConfigKeys& keys) const {
  const JsonValue& v = get(keys, "true or false");
  if (const auto* b = v.as<bool>()) return *b;
  refuse(keys, "is " + describe(v) + "; it must be true or false");
}

bool Config::boolean(const ConfigKeys& keys, bool fallback) const { return has(keys) ? boolean(keys) : fallback; }

std::string Config::string(const ConfigKeys& keys) const {
  const JsonValue& v = get(keys, "a string");
  if (const auto* s = v.as<std::string>()) return *s;
  refuse(keys, "is " + describe(v) + "; it must be a string");
}

std::string Config::string(const ConfigKeys& keys, std::string_view fallback) const {
  return has(keys) ? string(keys) : std::string(fallback);
}

// read(value) -> optional of the element.
template <class Read>
auto Config::list(const ConfigKeys& keys, const std::string& accepted, const Read& read) const {
  const std::string wanted = "an array of which each is " + accepted;
  const JsonValue& v = get(keys, wanted);
  std::vector<typename decltype(read(v))::value_type> out;
  if (const auto one = read(v)) {
    out.push_back(*one);
    return out;
  }
  const auto* array = v.as<JsonValue::Array>();
  if (array == nullptr) refuse(keys, "is " + describe(v) + "; it must be " + wanted);
  for (const JsonValue& element : *array) {
    const auto one = read(element);
    if (!one) refuse(keys, fmt::format("holds {} at [{}]; it must be {}", describe(element), out.size(), accepted));
    out.push_back(*one);
  }
  return out;
}

std::vector<int64_t> Config::integers(const ConfigKeys& keys, IntRange range) const {
  return list(keys, range_text(range), [&](const JsonValue& v) { return read_integer(v, range); });
}

std::vector<double> Config::numbers(const ConfigKeys& keys, NumberRange range) const {
  return list(keys, range_text(range), [&](const JsonValue& v) { return read_number(v, range); });
}

std::vector<std::string> Config::strings(const ConfigKeys& keys) const {
  return list(keys, "a string", [](const JsonValue& v) { return read_as<std::string>(v); });
}

Config Config::child(const ConfigKeys& keys, const JsonValue& value, const std::string& suffix) const {
  std::string_view present = keys.all().front();
  for (const auto& key : keys.all())
    if (node_->find(key)) present = key;
  return {std::shared_ptr<const JsonValue>(node_, &value), source_, path_ + printable(present) + suffix + "."};
}

std::vector<Config> Config::objects(const ConfigKeys& keys) const {
  const JsonValue& v = get(keys, "an array of objects");
  const auto* array = v.as<JsonValue::Array>();
  if (array == nullptr) refuse(keys, "is " + describe(v) + "; it must be an array of objects");
  std::vector<Config> out;
  for (const JsonValue& element : *array) {
    if (!element.as<JsonValue::Object>())
      refuse(keys, fmt::format("holds {} at [{}]; it must be an object", describe(element), out.size()));
    out.push_back(child(keys, element, fmt::format("[{}]", out.size())));
  }
  return out;
}

Config Config::object(const ConfigKeys& keys) const {
  const JsonValue& v = get(keys, "an object");
  if (!v.as<JsonValue::Object>()) refuse(keys, "is " + describe(v) + "; it must be an object");
  return child(keys, v);
}

std::optional<Config> Config::find_object(const ConfigKeys& keys) const {
  return has(keys) ? std::optional<Config>(object(keys)) : std::nullopt;
}

std::vector<std::pair<std::string, Config>> Config::members() const {
  std::vector<std::pair<std::string, Config>> out;
  for (const JsonMember& member : *node_->as<JsonValue::Object>()) {
    if (member.value.is_null()) continue;
    const std::string name = path_ + printable(member.key);
    check_file(member.value.as<JsonValue::Object>() != nullptr, "{}: {} is {}; it must be an object", source_, name,
               describe(member.value));
    out.emplace_back(member.key, Config(std::shared_ptr<const JsonValue>(node_, &member.value), source_, name + "."));
  }
  return out;
}

bool Config::is_string(const ConfigKeys& keys) const {
  const JsonValue* v = find(keys);
  return v != nullptr && v->as<std::string>() != nullptr;
}

bool Config::is_object(const ConfigKeys& keys) const {
  const JsonValue* v = find(keys);
  return v != nullptr && v->as<JsonValue::Object>() != nullptr;
}

}  // namespace sluice::io
