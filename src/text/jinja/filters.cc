// SPDX-License-Identifier: Apache-2.0
// Jinja's filters: value | name(arguments).
#include <algorithm>
#include <charconv>
#include <cmath>

#include "base/error.h"
#include "text/jinja/call.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/jinja/value_text.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

const std::string& text_of(const Value& subject, const Call& call) {
  if (!subject.is(Kind::string)) call.refuse_subject(subject, "a str");
  return subject.string();
}

// Filters that begin with str(value), as Jinja's own do.
std::string as_text(const Value& subject, Call& call) {
  call.run.charge(subject.weight());
  return to_text(subject);
}

Value length(const Value& subject, Call& call) {
  call.bind({});
  switch (subject.kind()) {
    case Kind::undefined:
      return 0;
    case Kind::string:
      return static_cast<int64_t>(count_code_points(subject.string()));
    case Kind::list:
      return static_cast<int64_t>(subject.items().size());
    case Kind::dict:
      return static_cast<int64_t>(subject.fields().fields.size());
    default:
      call.refuse_subject(subject, "a str, list or dict");
  }
}

Value trim(const Value& subject, Call& call) {
  call.bind({"chars"});
  std::optional<std::string_view> chars;
  if (call.has(0) && !call.value(0).is(Kind::none)) chars = call.text(0);
  return call.run.text(std::string(strip(as_text(subject, call), Side::both, chars)));
}

Value default_value(const Value& subject, Call& call) {
  call.bind({"default_value", "boolean"});
  const bool also_false = call.value_or(1, false).truth();
  return subject.is(Kind::undefined) || (also_false && !subject.truth()) ? call.value_or(0, "") : subject;
}

// "a.b.0" of an object, as the attribute= arguments take it; a number is an index.
Value dotted(const Value& object, const Value& path, Call& call) {
  if (!path.is(Kind::string)) return call.run.item(object, path, call.line());
  Value at = object;
  for (const std::string& part : split(path.string(), ".", -1, false)) {
    const bool number =
        !part.empty() && std::all_of(part.begin(), part.end(), [](char c) { return c >= '0' && c <= '9'; });
    at = call.run.item(at, number && part.size() < 10 ? Value(std::stoi(part)) : Value(part), call.line());
  }
  return at;
}

Value join(const Value& subject, Call& call) {
  call.bind({"d", "attribute"});
  const std::string separator = call.has(0) ? as_text(call.value(0), call) : "";
  std::string out;
  bool first = true;
  for (const Value& v : call.run.iterate(subject, call.line())) {
    if (!first) out += separator;
    first = false;
    out += as_text(call.has(1) ? dotted(v, call.value(1), call) : v, call);
    call.run.charge(static_cast<int64_t>(separator.size() / 32));
  }
  return call.run.text(std::move(out));
}

Value first(const Value& subject, Call& call) {
  call.bind({});
  const Items items = call.run.iterate(subject, call.line());
  return items.empty() ? Value::undefined("the first of an empty sequence") : items.front();
}

Value last(const Value& subject, Call& call) {
  call.bind({});
  const Items items = call.run.iterate(subject, call.line());
  return items.empty() ? Value::undefined("the last of an empty sequence") : items.back();
}

Value list(const Value& subject, Call& call) {
  call.bind({});
  return call.run.list(call.run.iterate(subject, call.line()));
}

Value reverse(const Value& subject, Call& call) {
  call.bind({});
  Items items = call.run.iterate(subject, call.line());
  std::reverse(items.begin(), items.end());
  if (!subject.is(Kind::string)) return call.run.list(std::move(items));
  std::string out;
  for (const Value& c : items) out += c.string();
  return call.run.text(std::move(out));
}

// The first positional argument names a filter or test; the rest are its arguments.
std::pair<std::string, std::vector<Value>> named_function(Call& call, size_t skip) {
  const auto& p = call.positional();
  if (p.size() <= skip || !p[skip].is(Kind::string)) call.refuse("needs the name of a filter or test");
  return {p[skip].string(), {p.begin() + static_cast<ptrdiff_t>(skip) + 1, p.end()}};
}

Value map(const Value& subject, Call& call) {
  Items out;
  if (call.positional().empty() && !call.named().empty()) {
    call.bind({"attribute", "default"});
    for (const Value& v : call.run.iterate(subject, call.line())) {
      Value found = dotted(v, call.value(0), call);
      out.push_back(found.is(Kind::undefined) && call.has(1) ? call.value(1) : std::move(found));
    }
  } else {
    const auto [name, arguments] = named_function(call, 0);
    for (const Value& v : call.run.iterate(subject, call.line()))
      out.push_back(call.run.apply_filter(name, v, arguments, call.named(), call.line()));
  }
  return call.run.list(std::move(out));
}

template <bool kKeep, bool kByAttribute>
Value choose(const Value& subject, Call& call) {
  Items out;
  const auto& p = call.positional();
  if (kByAttribute && p.empty()) call.refuse("needs the name of an attribute");
  const bool has_test = p.size() > kByAttribute;
  std::pair<std::string, std::vector<Value>> test;
  if (has_test) test = named_function(call, kByAttribute);
  for (const Value& v : call.run.iterate(subject, call.line())) {
    const Value tested = kByAttribute ? dotted(v, p[0], call) : v;
    const bool yes =
        has_test ? call.run.apply_test(test.first, tested, test.second, call.named(), call.line()) : tested.truth();
    if (yes == kKeep) out.push_back(v);
  }
  return call.run.list(std::move(out));
}

Value items(const Value& subject, Call& call) {
  call.bind({});
  Items out;
  if (subject.is(Kind::undefined)) return call.run.list({});
  if (!subject.is(Kind::dict)) call.refuse_subject(subject, "a dict");
  for (const auto& [key, value] : subject.fields().fields) out.push_back(call.run.list({Value(key), value}, true));
  return call.run.list(std::move(out));
}

Value dictsort(const Value& subject, Call& call) {
  call.bind({"case_sensitive", "by", "reverse"});
  const bool by_value = call.has(1) && call.text(1) == "value", descending = call.value_or(2, false).truth();
  const bool fold = !call.value_or(0, false).truth();
  if (!subject.is(Kind::dict)) call.refuse_subject(subject, "a dict");
  const auto key = [&](const Fields::value_type& f) {
    const Value v = by_value ? f.second : Value(f.first);
    return fold && v.is(Kind::string) ? Value(lower(v.string())) : v;
  };
  Fields fields = subject.fields().fields;
  std::stable_sort(fields.begin(), fields.end(), [&](const auto& a, const auto& b) {
    return descending ? call.run.less(key(b), key(a), "<", call.line())
                      : call.run.less(key(a), key(b), "<", call.line());
  });
  Items out;
  for (auto& [k, v] : fields) out.push_back(call.run.list({Value(k), v}, true));
  return call.run.list(std::move(out));
}

template <std::string (*kMap)(std::string_view)>
Value mapped_text(const Value& subject, Call& call) {
  call.bind({});
  return call.run.text(kMap(as_text(subject, call)));
}

Value string(const Value& subject, Call& call) {
  call.bind({});
  return subject.is(Kind::string) ? subject : call.run.text(as_text(subject, call));
}

Value safe(const Value& subject, Call& call) { return string(subject, call); }

Value replace_text(const Value& subject, Call& call) {
  call.bind({"old", "new", "count"});
  const std::string s = as_text(subject, call);
  const std::string& from = call.text(0);
  const std::string& to = call.text(1);
  // The worst case is known before the text is made.
  call.run.charge(static_cast<int64_t>(s.size() / std::max<size_t>(1, from.size()) * (to.size() + 1) / 32));
  return call.run.text(replace(s, from, to, call.has(2) && !call.value(2).is(Kind::none) ? call.integer(2) : -1));
}

Value to_int(const Value& subject, Call& call) {
  call.bind({"default", "base"});
  const int64_t base = call.integer_or(1, 10);
  if (base < 2 || base > 36) call.refuse(fmt::format("takes a base of 2 to 36, not {}", base));
  const auto from_real = [&](double d) -> Value {
    return std::abs(d) < 9.2e18 ? Value(static_cast<int64_t>(d)) : call.value_or(0, 0);
  };
  if (subject.is(Kind::integer) || subject.is(Kind::boolean)) return subject.integer();
  if (subject.is(Kind::real)) return from_real(subject.real());
  if (subject.is(Kind::string)) {
    std::string_view s = strip(subject.string(), Side::both, std::nullopt);
    const char* begin = s.data() + (s.starts_with('+') && s.size() > 1 ? 1 : 0);
    const char* end = s.data() + s.size();
    int64_t i = 0;
    if (const auto r = std::from_chars(begin, end, i, static_cast<int>(base)); r.ec == std::errc() && r.ptr == end)
      return i;
    double d = 0;
    if (const auto r = std::from_chars(begin, end, d); r.ec == std::errc() && r.ptr == end) return from_real(d);
  }
  return call.value_or(0, 0);
}

Value to_float(const Value& subject, Call& call) {
  call.bind({"default"});
  if (subject.is_number()) return subject.real();
  if (subject.is(Kind::string)) {
    const std::string_view s = strip(subject.string(), Side::both, std::nullopt);
    double d = 0;
    const auto r = std::from_chars(s.data() + (s.starts_with('+') ? 1 : 0), s.data() + s.size(), d);
    if (r.ec == std::errc() && r.ptr == s.data() + s.size()) return d;
  }
  return call.value_or(0, 0.0);
}

Value tojson(const Value& subject, Call& call) {
  call.bind({"ensure_ascii", "indent", "separators", "sort_keys"});
  JsonStyle style;
  style.ensure_ascii = call.value_or(0, false).truth();
  if (call.has(1) && !call.value(1).is(Kind::none)) {
    style.indent = call.integer(1);
    if (style.indent < 0 || style.indent > 16)
      call.refuse(fmt::format("takes an indent of 0 to 16, not {}", style.indent));
    style.item_separator.assign(1, ',');
  }
  if (call.has(2) && !call.value(2).is(Kind::none)) {
    const Value& v = call.value(2);
    if (!v.is(Kind::list) || v.items().size() != 2) call.refuse("takes two strings as \"separators\"");
    style.item_separator = text_of(v.items()[0], call);
    style.key_separator = text_of(v.items()[1], call);
  }
  style.sort_keys = call.value_or(3, false).truth();
  call.run.charge(subject.weight() * (1 + std::max<int64_t>(0, style.indent)));
  if (subject.is(Kind::undefined)) call.refuse_subject(subject, "what JSON has a form for");
  return call.run.text(to_json(subject, style));
}

Value key_of(const Value& v, const Value& attribute, bool fold, Call& call) {
  Value key = attribute.is(Kind::none) ? v : dotted(v, attribute, call);
  return fold && key.is(Kind::string) ? Value(lower(key.string())) : key;
}

Value sort(const Value& subject, Call& call) {
  call.bind({"reverse", "case_sensitive", "attribute"});
  const bool descending = call.value_or(0, false).truth(), fold = !call.value_or(1, false).truth();
  std::vector<std::pair<Value, Value>> keyed;
  for (const Value& v : call.run.iterate(subject, call.line()))
    keyed.emplace_back(key_of(v, call.value_or(2, nullptr), fold, call), v);
  std::stable_sort(keyed.begin(), keyed.end(), [&](const auto& a, const auto& b) {
    call.run.charge(1);
    return call.run.less(descending ? b.first : a.first, descending ? a.first : b.first, "<", call.line());
  });
  Items out;
  for (auto& [key, v] : keyed) out.push_back(std::move(v));
  return call.run.list(std::move(out));
}

Value unique(const Value& subject, Call& call) {
  call.bind({"case_sensitive", "attribute"});
  const bool fold = !call.value_or(0, false).truth();
  Items out, keys;
  for (const Value& v : call.run.iterate(subject, call.line())) {
    Value key = key_of(v, call.value_or(1, nullptr), fold, call);
    call.run.charge(static_cast<int64_t>(keys.size()) + key.weight());
    if (std::any_of(keys.begin(), keys.end(), [&](const Value& k) { return equal(k, key); })) continue;
    keys.push_back(std::move(key));
    out.push_back(v);
  }
  return call.run.list(std::move(out));
}

template <bool kGreatest>
Value extreme(const Value& subject, Call& call) {
  call.bind({"case_sensitive", "attribute"});
  const bool fold = !call.value_or(0, false).truth();
  Value best = Value::undefined("the extreme of an empty sequence"), best_key;
  bool any = false;
  for (const Value& v : call.run.iterate(subject, call.line())) {
    Value key = key_of(v, call.value_or(1, nullptr), fold, call);
    if (any && !call.run.less(kGreatest ? best_key : key, kGreatest ? key : best_key, "<", call.line())) continue;
    any = true;
    best = v;
    best_key = std::move(key);
  }
  return best;
}

Value sum(const Value& subject, Call& call) {
  call.bind({"attribute", "start"});
  Value total = call.value_or(1, 0);
  for (const Value& each : call.run.iterate(subject, call.line())) {
    const Value v = call.has(0) && !call.value(0).is(Kind::none) ? dotted(each, call.value(0), call) : each;
    if (!v.is_number() || !total.is_number()) call.refuse_subject(v, "numbers");
    int64_t i = 0;
    if (v.is(Kind::real) || total.is(Kind::real)) {
      total = total.real() + v.real();
    } else if (__builtin_add_overflow(total.integer(), v.integer(), &i)) {
      call.refuse("passes 64 bits");
    } else {
      total = i;
    }
  }
  return total;
}

Value absolute(const Value& subject, Call& call) {
  call.bind({});
  if (!subject.is_number()) call.refuse_subject(subject, "a number");
  if (subject.is(Kind::real)) return std::abs(subject.real());
  if (subject.integer() == INT64_MIN) call.refuse("passes 64 bits");
  return std::abs(subject.integer());
}

Value round_number(const Value& subject, Call& call) {
  call.bind({"precision", "method"});
  if (!subject.is_number()) call.refuse_subject(subject, "a number");
  const int64_t precision = call.integer_or(0, 0);
  const std::string method = call.has(1) ? call.text(1) : "common";
  if (precision < 0 || precision > 15) call.refuse(fmt::format("takes a precision of 0 to 15, not {}", precision));
  const double d = subject.real(), scale = std::pow(10.0, static_cast<double>(precision));
  if (method == "ceil") return std::ceil(d * scale) / scale;
  if (method == "floor") return std::floor(d * scale) / scale;
  if (method != "common") call.refuse(fmt::format("has no method \"{}\"; accepted: common, ceil, floor", method));
  // Python rounds the decimal expansion to even; printing does the same.
  double rounded = d;
  const std::string s = fmt::format("{:.{}f}", d, precision);
  std::from_chars(s.data(), s.data() + s.size(), rounded);
  return rounded;
}

Value indent(const Value& subject, Call& call) {
  call.bind({"width", "first", "blank"});
  std::string space;
  if (call.has(0) && call.value(0).is(Kind::string)) {
    space = call.text(0);
  } else {
    const int64_t width = call.integer_or(0, 4);
    if (width < 0 || width > 1000) call.refuse(fmt::format("takes a width of 0 to 1000, not {}", width));
    space.assign(static_cast<size_t>(width), ' ');
  }
  const bool first_too = call.value_or(1, false).truth(), blank_too = call.value_or(2, false).truth();
  // Jinja adds a newline, splits into lines and joins them: a last newline of the text stays.
  const std::vector<std::string> lines = split_lines(as_text(subject, call) + "\n", false);
  call.run.charge(static_cast<int64_t>(lines.size() * (1 + space.size() / 32)));
  std::string out;
  for (size_t i = 0; i < lines.size(); ++i) {
    if (i > 0) out += '\n';
    if (i == 0 ? first_too : blank_too || !lines[i].empty()) out += space;
    out += lines[i];
  }
  return call.run.text(std::move(out));
}

struct Row {
  std::string_view name;
  Function function;
};
constexpr Row kFilters[] = {
    {"abs", absolute},
    {"capitalize", mapped_text<capitalize>},
    {"count", length},
    {"d", default_value},
    {"default", default_value},
    {"dictsort", dictsort},
    {"first", first},
    {"float", to_float},
    {"indent", indent},
    {"int", to_int},
    {"items", items},
    {"join", join},
    {"last", last},
    {"length", length},
    {"list", list},
    {"lower", mapped_text<lower>},
    {"map", map},
    {"max", extreme<true>},
    {"min", extreme<false>},
    {"reject", choose<false, false>},
    {"rejectattr", choose<false, true>},
    {"replace", replace_text},
    {"reverse", reverse},
    {"round", round_number},
    {"safe", safe},
    {"select", choose<true, false>},
    {"selectattr", choose<true, true>},
    {"sort", sort},
    {"string", string},
    {"sum", sum},
    {"title", mapped_text<jinja_title>},
    {"tojson", tojson},
    {"trim", trim},
    {"unique", unique},
    {"upper", mapped_text<upper>},
};

}  // namespace

Function find_filter(std::string_view name) {
  for (const Row& row : kFilters)
    if (row.name == name) return row.function;
  return nullptr;
}

}  // namespace sluice::text::jinja
