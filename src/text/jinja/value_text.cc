// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value_text.h"

#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/py_string.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

std::string float_text(double d) {
  if (std::isnan(d)) return "nan";
  if (std::isinf(d)) return d < 0 ? "-inf" : "inf";
  std::string out = fmt::format("{}", d);  // shortest form that reads back, like repr(float)
  if (out.find_first_of(".e") == std::string::npos) out += ".0";
  return out;
}

class Json {
 public:
  explicit Json(const JsonStyle& style) : style_(style) {}

  std::string run(const Value& value) {
    write(value, 0);
    return std::move(out_);
  }

 private:
  void write(const Value& v, int64_t level) {
    switch (v.kind()) {
      case Kind::none:
        out_ += "null";
        return;
      case Kind::boolean:
        out_ += v.boolean() ? "true" : "false";
        return;
      case Kind::integer:
        out_ += std::to_string(v.integer());
        return;
      case Kind::real:
        out_ += real(v.real());
        return;
      case Kind::string:
        string(v.string());
        return;
      case Kind::list:
        if (v.items().empty()) {
          out_ += "[]";
          return;
        }
        out_ += '[';
        for (size_t i = 0; i < v.items().size(); ++i) {
          separate(i, level + 1);
          write(v.items()[i], level + 1);
        }
        new_line(level);
        out_ += ']';
        return;
      case Kind::dict:
        dict(v.fields().fields, level);
        return;
      default:
        fail(ErrorCode::invalid_argument,
             "tojson is given {} ({}); it takes None, bool, int, float, str, list and dict", v.kind_name(),
             v.is(Kind::undefined) ? v.undefined_name() : v.kind_name());
    }
  }

  void dict(const Fields& fields, int64_t level) {
    if (fields.empty()) {
      out_ += "{}";
      return;
    }
    std::vector<const Fields::value_type*> order;
    for (const auto& f : fields) order.push_back(&f);
    if (style_.sort_keys) std::sort(order.begin(), order.end(), [](auto* a, auto* b) { return a->first < b->first; });
    out_ += '{';
    for (size_t i = 0; i < order.size(); ++i) {
      separate(i, level + 1);
      string(order[i]->first);
      out_ += style_.key_separator;
      write(order[i]->second, level + 1);
    }
    new_line(level);
    out_ += '}';
  }

  void separate(size_t i, int64_t level) {
    if (i > 0) out_ += style_.item_separator;
    new_line(level);
  }

  void new_line(int64_t level) {
    if (style_.indent < 0) return;
    out_ += '\n';
    out_.append(static_cast<size_t>(style_.indent * level), ' ');
  }

  static std::string real(double d) {
    if (std::isnan(d)) return "NaN";
    if (std::isinf(d)) return d < 0 ? "-Infinity" : "Infinity";
    return float_text(d);
  }

  void string(std::string_view s) {
    out_ += '"';
    for (size_t pos = 0; pos < s.size();) {
      const size_t begin = pos;
      const auto c = static_cast<uint32_t>(next_code_point(s, pos));
      constexpr std::string_view kFrom = "\"\\\n\r\t\f\b", kTo = "\"\\nrtfb";
      if (const size_t at = c < 0x80 ? kFrom.find(static_cast<char>(c)) : std::string_view::npos;
          at != std::string_view::npos) {
        out_ += '\\';
        out_ += kTo[at];
      } else if (c < 0x20 || (style_.ensure_ascii && c > 0x7F && c < 0x10000)) {
        out_ += fmt::format("\\u{:04x}", c);
      } else if (style_.ensure_ascii && c >= 0x10000) {
        out_ += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + ((c - 0x10000) & 0x3FF));
      } else {
        out_ += s.substr(begin, pos - begin);
      }
    }
    out_ += '"';
  }

  const JsonStyle& style_;
  std::string out_;
};

}  // namespace

std::string to_text(const Value& value) {
  if (value.is(Kind::string)) return value.string();
  return value.is(Kind::undefined) ? "" : to_repr(value);
}

std::string to_repr(const Value& v) {
  switch (v.kind()) {
    case Kind::undefined:
      return "Undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return v.boolean() ? "True" : "False";
    case Kind::integer:
      return std::to_string(v.integer());
    case Kind::real:
      return float_text(v.real());
    case Kind::string:
      return repr(v.string());
    case Kind::list: {
      std::string out(1, v.is_tuple() ? '(' : '[');
      for (const Value& item : v.items()) {
        if (out.size() > 1) out += ", ";
        out += to_repr(item);
      }
      if (v.is_tuple() && v.items().size() == 1) out += ',';
      return out + (v.is_tuple() ? ')' : ']');
    }
    case Kind::dict: {
      std::string out = "{";
      for (const auto& [key, item] : v.fields().fields) {
        if (out.size() > 1) out += ", ";
        out += repr(key) + ": " + to_repr(item);
      }
      return out + "}";
    }
    case Kind::name_space:
    case Kind::loop:
    case Kind::callable:
      break;
  }
  fail(ErrorCode::invalid_argument, "a {} of the chat template is printed; it has no text", v.kind_name());
}

std::string to_json(const Value& value, const JsonStyle& style) { return Json(style).run(value); }

}  // namespace sluice::text::jinja
