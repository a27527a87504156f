// SPDX-License-Identifier: Apache-2.0
// Methods of Python's str, dict and list that change nothing.
#include <algorithm>
#include <optional>

#include "base/error.h"
#include "text/jinja/call.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/jinja/value_text.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

// A str argument that may be left out or None.
std::optional<std::string_view> optional_text(const Call& call, size_t i) {
  if (!call.has(i) || call.value(i).is(Kind::none)) return std::nullopt;
  return call.text(i);
}

Value strings(std::vector<std::string> parts, Call& call) {
  Items items;
  for (std::string& part : parts) items.push_back(call.run.text(std::move(part)));
  return call.run.list(std::move(items));
}

template <Side kSide>
Value strip_side(const Value& self, Call& call) {
  call.bind({"chars"});
  return call.run.text(std::string(strip(self.string(), kSide, optional_text(call, 0))));
}

template <bool kFromRight>
Value split_text(const Value& self, Call& call) {
  call.bind({"sep", "maxsplit"});
  const auto separator = optional_text(call, 0);
  if (separator && separator->empty()) call.refuse("is given an empty separator");
  return strings(split(self.string(), separator, call.integer_or(1, -1), kFromRight), call);
}

Value split_text_lines(const Value& self, Call& call) {
  call.bind({"keepends"});
  return strings(split_lines(self.string(), call.value_or(0, false).truth()), call);
}

// One string or a tuple of them.
template <bool kAtEnd>
Value has_affix(const Value& self, Call& call) {
  call.bind({"affix"});
  const auto matches = [&](const Value& affix) {
    if (!affix.is(Kind::string)) call.refuse_subject(affix, "a str or a tuple of str");
    return kAtEnd ? self.string().ends_with(affix.string()) : self.string().starts_with(affix.string());
  };
  const Value& affix = call.value(0);
  if (!affix.is_tuple()) return matches(affix);
  return std::any_of(affix.items().begin(), affix.items().end(), matches);
}

template <bool kAtEnd>
Value remove_affix(const Value& self, Call& call) {
  call.bind({"affix"});
  std::string_view s = self.string();
  const std::string& affix = call.text(0);
  if (kAtEnd && s.ends_with(affix)) s.remove_suffix(affix.size());
  if (!kAtEnd && s.starts_with(affix)) s.remove_prefix(affix.size());
  return call.run.text(std::string(s));
}

template <std::string (*kMap)(std::string_view)>
Value mapped_text(const Value& self, Call& call) {
  call.bind({});
  return call.run.text(kMap(self.string()));
}

Value replace_text(const Value& self, Call& call) {
  call.bind({"old", "new", "count"});
  const std::string& from = call.text(0);
  const std::string& to = call.text(1);
  call.run.charge(static_cast<int64_t>(self.string().size() / std::max<size_t>(1, from.size()) * (to.size() + 1) / 32));
  return call.run.text(replace(self.string(), from, to, call.integer_or(2, -1)));
}

// In characters; -1 when there is none.
int64_t position(const std::string& s, const std::string& what, bool from_right) {
  size_t found = find_bytes(s, what);
  if (from_right && found != std::string::npos) {
    const std::string backwards(s.rbegin(), s.rend()), reversed(what.rbegin(), what.rend());
    found = s.size() - find_bytes(backwards, reversed) - what.size();
  }
  if (found == std::string::npos) return -1;
  return static_cast<int64_t>(count_code_points(std::string_view(s).substr(0, found)));
}

template <bool kFromRight, bool kMustExist>
Value find_text(const Value& self, Call& call) {
  call.bind({"sub"});
  const int64_t at = position(self.string(), call.text(0), kFromRight);
  if (kMustExist && at < 0) call.refuse(fmt::format("does not find \"{}\"", call.text(0)));
  return at;
}

Value count_text(const Value& self, Call& call) {
  call.bind({"sub"});
  const std::string& what = call.text(0);
  if (what.empty()) return static_cast<int64_t>(count_code_points(self.string()) + 1);
  int64_t n = 0;
  for (size_t at = 0; (at = find_bytes(self.string(), what, at)) != std::string::npos; at += what.size()) ++n;
  return n;
}

Value join_text(const Value& self, Call& call) {
  call.bind({"iterable"});
  std::string out;
  bool first = true;
  for (const Value& v : call.run.iterate(call.value(0), call.line())) {
    if (!v.is(Kind::string)) call.refuse_subject(v, "an iterable of str");
    if (!first) out += self.string();
    first = false;
    out += v.string();
    call.run.charge(1 + static_cast<int64_t>((self.string().size() + v.string().size()) / 32));
  }
  return call.run.text(std::move(out));
}

template <bool (*kHas)(char32_t)>
Value is_all(const Value& self, Call& call) {
  call.bind({});
  const std::string& s = self.string();
  for (size_t pos = 0; pos < s.size();)
    if (!kHas(next_code_point(s, pos))) return false;
  return !s.empty();
}

bool is_ascii_digit(char32_t c) { return c >= '0' && c <= '9'; }
bool is_letter(char32_t c) { return is_word_character(c) && !is_ascii_digit(c) && c != '_'; }
bool is_letter_or_digit(char32_t c) { return is_word_character(c) && c != '_'; }

Value get(const Value& self, Call& call) {
  call.bind({"key", "default"});
  const Value& key = call.value(0);
  const Value* found = key.is(Kind::string) ? self.fields().find(key.string()) : nullptr;
  return found ? *found : call.value_or(1, nullptr);
}

template <bool kKeys, bool kValues>
Value parts_of(const Value& self, Call& call) {
  call.bind({});
  Items out;
  for (const auto& [key, value] : self.fields().fields)
    out.push_back(kKeys && kValues ? call.run.list({Value(key), value}, true) : kKeys ? Value(key) : value);
  return call.run.list(std::move(out));
}

Value copy(const Value& self, Call& call) {
  call.bind({});
  return self;
}

Value index_of(const Value& self, Call& call) {
  call.bind({"value"});
  call.run.charge(self.weight());
  for (size_t i = 0; i < self.items().size(); ++i)
    if (equal(self.items()[i], call.value(0))) return static_cast<int64_t>(i);
  call.refuse("does not find the value");
}

Value count_of(const Value& self, Call& call) {
  call.bind({"value"});
  call.run.charge(self.weight());
  return static_cast<int64_t>(
      std::count_if(self.items().begin(), self.items().end(), [&](const Value& v) { return equal(v, call.value(0)); }));
}

struct Row {
  std::string_view name;
  Function function;
};
constexpr Row kStringMethods[] = {
    {"capitalize", mapped_text<capitalize>},
    {"count", count_text},
    {"endswith", has_affix<true>},
    {"find", find_text<false, false>},
    {"index", find_text<false, true>},
    {"isalnum", is_all<is_letter_or_digit>},
    {"isalpha", is_all<is_letter>},
    {"isdigit", is_all<is_ascii_digit>},
    {"isspace", is_all<is_py_space>},
    {"join", join_text},
    {"lower", mapped_text<lower>},
    {"lstrip", strip_side<Side::left>},
    {"removeprefix", remove_affix<false>},
    {"removesuffix", remove_affix<true>},
    {"replace", replace_text},
    {"rfind", find_text<true, false>},
    {"rindex", find_text<true, true>},
    {"rsplit", split_text<true>},
    {"rstrip", strip_side<Side::right>},
    {"split", split_text<false>},
    {"splitlines", split_text_lines},
    {"startswith", has_affix<false>},
    {"strip", strip_side<Side::both>},
    {"title", mapped_text<title>},
    {"upper", mapped_text<upper>},
};
constexpr Row kDictMethods[] = {
    {"copy", copy},
    {"get", get},
    {"items", parts_of<true, true>},
    {"keys", parts_of<true, false>},
    {"values", parts_of<false, true>},
};
constexpr Row kListMethods[] = {{"copy", copy}, {"count", count_of}, {"index", index_of}};

template <size_t N>
Function find(const Row (&rows)[N], std::string_view name) {
  for (const Row& row : rows)
    if (row.name == name) return row.function;
  return nullptr;
}

}  // namespace

Function find_string_method(std::string_view name) { return find(kStringMethods, name); }
Function find_dict_method(std::string_view name) { return find(kDictMethods, name); }
Function find_list_method(std::string_view name) { return find(kListMethods, name); }

}  // namespace sluice::text::jinja
