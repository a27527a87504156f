// SPDX-License-Identifier: Apache-2.0
// Evaluation of expressions, with Python's rules for its types.
#include <algorithm>
#include <cmath>

#include "base/error.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"
#include "text/jinja/value_text.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

bool is_integer(const Value& v) { return v.is(Kind::integer) || v.is(Kind::boolean); }

Value method(const std::string& name, const Value& self) {
  return std::make_shared<const Callable>(Callable{name, nullptr, self});
}

Value loop_attribute(const Loop& loop, const Value& self, const std::string& name) {
  const Items& items = loop.items.items();
  const auto length = static_cast<int64_t>(items.size());
  const auto at = static_cast<size_t>(loop.index0);
  if (name == "index0") return loop.index0;
  if (name == "index") return loop.index0 + 1;
  if (name == "revindex") return length - loop.index0;
  if (name == "revindex0") return length - loop.index0 - 1;
  if (name == "first") return loop.index0 == 0;
  if (name == "last") return loop.index0 + 1 == length;
  if (name == "length") return length;
  if (name == "depth") return 1;  // counts recursive loops only
  if (name == "depth0") return 0;
  if (name == "previtem" && at > 0 && at <= items.size()) return items[at - 1];
  if (name == "nextitem" && at + 1 < items.size()) return items[at + 1];
  if (name == "cycle") return method(name, self);
  return Value::undefined("loop." + name);
}

// Python's floor division and its remainder, which has the divisor's sign. b is not 0.
int64_t floor_mod(int64_t a, int64_t b) {
  if (b == -1) return 0;  // INT64_MIN % -1 traps
  const int64_t r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}

}  // namespace

Value Interpreter::eval(const Node& node) {
  const Deeper deeper(*this, node.line);
  switch (node.kind) {
    case NodeKind::constant:
      return node.value;
    case NodeKind::name:
      return eval_name(node);
    case NodeKind::list:
      return list(eval_all(node));
    case NodeKind::tuple:
      return list(eval_all(node), true);
    case NodeKind::dict:
      return eval_dict(node);
    case NodeKind::attribute:
      return attribute(eval(*node.children[0]), node.text, node.line);
    case NodeKind::index: {
      const Value object = eval(*node.children[0]);
      return item(object, eval(*node.children[1]), node.line);
    }
    case NodeKind::slice:
      return eval_slice(node);
    case NodeKind::call:
      return eval_call(node);
    case NodeKind::filter:
    case NodeKind::test: {
      const Value subject = eval(*node.children[0]);
      const Call call = arguments(node, "");
      if (node.kind == NodeKind::filter)
        return apply_filter(node.text, subject, call.positional(), call.named(), node.line);
      return apply_test(node.text, subject, call.positional(), call.named(), node.line);
    }
    case NodeKind::unary:
      return eval_unary(node);
    case NodeKind::binary:
      return eval_binary(node);
    case NodeKind::compare:
      return eval_compare(node);
    case NodeKind::condition:
      if (eval(*node.children[1]).truth()) return eval(*node.children[0]);
      return node.children[2] ? eval(*node.children[2])
                              : Value::undefined("the other side of an \"if\" without \"else\"");
    default:
      fail(ErrorCode::internal, "chat template line {}: a statement in place of an expression", node.line);
  }
}

Value Interpreter::eval_name(const Node& node) const {
  for (const Scope* s = scope_; s; s = s->parent)
    for (const auto& [name, value] : s->names)
      if (name == node.text) return value;
  if (find_global(node.text)) return method(node.text, Value());
  return Value::undefined(node.text);
}

Items Interpreter::eval_all(const Node& node) {
  Items out;
  for (const NodePtr& child : node.children) out.push_back(eval(*child));
  return out;
}

Value Interpreter::eval_dict(const Node& node) {
  Fields fields;
  for (size_t i = 0; i < node.children.size(); i += 2) {
    const Value key = eval(*node.children[i]);
    if (!key.is(Kind::string))
      fail(ErrorCode::unsupported, "chat template line {}: a {} as the key of a dict is not supported", node.line,
           key.kind_name());
    fields.emplace_back(key.string(), eval(*node.children[i + 1]));
  }
  charge(static_cast<int64_t>(fields.size()));
  return Value::dict(std::move(fields));
}

Value Interpreter::attribute(const Value& object, const std::string& name, int line) {
  switch (object.kind()) {
    case Kind::undefined:
      refuse(line, fmt::format("\"{}\" is undefined, so it has no \"{}\"", object.undefined_name(), name));
    case Kind::string:
      if (find_string_method(name)) return method(name, object);
      break;
    case Kind::list:
      if (find_list_method(name)) return method(name, object);
      break;
    case Kind::dict:
      if (find_dict_method(name)) return method(name, object);
      charge(object.fields().index.empty() ? static_cast<int64_t>(object.fields().fields.size() / 8) : 0);
      if (const Value* found = object.fields().find(name)) return *found;
      break;
    case Kind::name_space:
      for (const auto& [key, value] : object.name_space().fields)
        if (key == name) return value;
      break;
    case Kind::loop:
      return loop_attribute(object.loop(), object, name);
    default:
      break;
  }
  return Value::undefined(name);
}

Value Interpreter::item(const Value& object, const Value& key, int line) {
  if (key.is(Kind::string)) {
    if (object.is(Kind::dict))
      if (const Value* found = object.fields().find(key.string())) return *found;
    return attribute(object, key.string(), line);
  }
  if (object.is(Kind::undefined))
    refuse(line, fmt::format("\"{}\" is undefined and is indexed", object.undefined_name()));
  if (!is_integer(key)) return Value::undefined("an item");
  int64_t i = key.integer();
  if (object.is(Kind::list)) {
    const auto n = static_cast<int64_t>(object.items().size());
    if (i < 0) i += n;
    if (i >= 0 && i < n) return object.items()[static_cast<size_t>(i)];
  } else if (object.is(Kind::string)) {
    charge(static_cast<int64_t>(object.string().size() / 32));
    const std::string& s = object.string();
    if (i < 0) i += static_cast<int64_t>(count_code_points(s));
    for (size_t pos = 0; i >= 0 && pos < s.size(); --i) {
      const size_t begin = pos;
      next_code_point(s, pos);
      if (i == 0) return Value(s.substr(begin, pos - begin));
    }
  }
  return Value::undefined(fmt::format("item {}", key.integer()));
}

Items Interpreter::iterate(const Value& value, int line) {
  charge(value.is(Kind::string) ? static_cast<int64_t>(value.string().size()) : 1);
  Items out;
  switch (value.kind()) {
    case Kind::undefined:
      return out;
    case Kind::list:
      charge(static_cast<int64_t>(value.items().size()));
      return value.items();
    case Kind::string:
      for (std::string& c : characters(value.string())) out.emplace_back(std::move(c));
      return out;
    case Kind::dict:
      charge(static_cast<int64_t>(value.fields().fields.size()));
      for (const auto& [key, v] : value.fields().fields) out.emplace_back(key);
      return out;
    default:
      refuse(line, fmt::format("a {} is not something to loop over", value.kind_name()));
  }
}

bool Interpreter::contains(const Value& container, const Value& value, int line) {
  charge(container.weight());
  switch (container.kind()) {
    case Kind::undefined:
      return false;
    case Kind::string:
      if (!value.is(Kind::string)) refuse(line, fmt::format("a {} is looked for in a str", value.kind_name()));
      return find_bytes(container.string(), value.string()) != std::string::npos;
    case Kind::list:
      return std::any_of(container.items().begin(), container.items().end(),
                         [&](const Value& v) { return equal(v, value); });
    case Kind::dict:
      return value.is(Kind::string) && container.fields().find(value.string());
    default:
      refuse(line, fmt::format("\"in\" is asked of a {}", container.kind_name()));
  }
}

bool Interpreter::less(const Value& a, const Value& b, std::string_view op, int line) {
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::real) || b.is(Kind::real)) return a.real() < b.real();
    return a.integer() < b.integer();
  }
  charge(std::min(a.weight(), b.weight()));
  if (a.is(Kind::string) && b.is(Kind::string)) return a.string() < b.string();  // bytes sort as code points do
  if (a.is(Kind::list) && b.is(Kind::list) && a.is_tuple() == b.is_tuple()) {
    const size_t n = std::min(a.items().size(), b.items().size());
    for (size_t i = 0; i < n; ++i)
      if (!equal(a.items()[i], b.items()[i])) return less(a.items()[i], b.items()[i], op, line);
    return a.items().size() < b.items().size();
  }
  refuse(line, fmt::format("\"{}\" is asked of a {} and a {}", op, a.kind_name(), b.kind_name()));
}

Value Interpreter::eval_compare(const Node& node) {
  Value left = eval(*node.children[0]);
  for (size_t i = 1; i < node.children.size(); ++i) {
    const Value right = eval(*node.children[i]);
    const std::string& op = node.names[i];
    bool yes = false;
    if (op == "==" || op == "!=") {
      charge(std::min(left.weight(), right.weight()));
      yes = equal(left, right) == (op == "==");
    } else if (op == "in" || op == "not in") {
      yes = contains(right, left, node.line) == (op == "in");
    } else if (op == "<=" || op == ">=") {
      const bool with_nan =
          (left.is(Kind::real) && std::isnan(left.real())) || (right.is(Kind::real) && std::isnan(right.real()));
      yes = !(op == "<=" ? less(right, left, op, node.line) : less(left, right, op, node.line)) && !with_nan;
    } else {
      yes = op == "<" ? less(left, right, op, node.line) : less(right, left, op, node.line);
    }
    if (!yes) return false;
    left = right;
  }
  return true;
}

Value Interpreter::eval_unary(const Node& node) {
  const Value v = eval(*node.children[0]);
  if (node.text == "not") return !v.truth();
  if (!v.is_number()) refuse(node.line, fmt::format("\"{}\" is applied to a {}", node.text, v.kind_name()));
  const bool negate = node.text == "-";
  if (v.is(Kind::real)) return negate ? -v.real() : v.real();
  if (v.integer() == INT64_MIN && negate) refuse(node.line, "a number passes 64 bits");
  return negate ? -v.integer() : v.integer();
}

Value Interpreter::eval_binary(const Node& node) {
  Value a = eval(*node.children[0]);
  if (node.text == "and") return a.truth() ? eval(*node.children[1]) : a;
  if (node.text == "or") return a.truth() ? a : eval(*node.children[1]);
  Value b = eval(*node.children[1]);
  if (node.text == "~") {
    charge(a.weight() + b.weight());
    return text(to_text(a) + to_text(b));
  }
  if (node.text == "+" && !(a.is_number() && b.is_number())) return eval_add(node, a, b);
  if (node.text == "*" && is_integer(a) && !b.is_number()) std::swap(a, b);
  return eval_arithmetic(node, a, b);
}

Value Interpreter::eval_add(const Node& node, const Value& a, const Value& b) {
  if (a.is(Kind::string) && b.is(Kind::string)) return text(a.string() + b.string());
  if (a.is(Kind::list) && b.is(Kind::list) && a.is_tuple() == b.is_tuple()) {
    charge(static_cast<int64_t>(a.items().size() + b.items().size()));
    Items items = a.items();
    items.insert(items.end(), b.items().begin(), b.items().end());
    return list(std::move(items), a.is_tuple());
  }
  for (const Value* v : {&a, &b})
    if (v->is(Kind::undefined)) refuse(node.line, fmt::format("\"{}\" is undefined and is added", v->undefined_name()));
  refuse(node.line, fmt::format("a {} and a {} cannot be added", a.kind_name(), b.kind_name()));
}

Value Interpreter::eval_arithmetic(const Node& node, const Value& a, const Value& b) {
  const std::string& op = node.text;
  const auto repeated = [&](size_t weight) {
    const auto times = static_cast<size_t>(std::max<int64_t>(0, b.integer()));
    if (weight > 0 && times > static_cast<size_t>(limits_.steps) / weight) charge(limits_.steps + 1);
    charge(static_cast<int64_t>(weight * times));
    return times;
  };
  if (op == "*" && is_integer(b) && a.is(Kind::string)) {
    const size_t times = repeated(1 + a.string().size() / 32);
    std::string out;
    for (size_t i = 0; i < times; ++i) out += a.string();
    return text(std::move(out));
  }
  if (op == "*" && is_integer(b) && a.is(Kind::list)) {
    const size_t times = repeated(a.items().size());
    Items out;
    if (!a.items().empty())
      for (size_t i = 0; i < times; ++i) out.insert(out.end(), a.items().begin(), a.items().end());
    return list(std::move(out), a.is_tuple());
  }
  if (op == "%" && a.is(Kind::string))
    fail(ErrorCode::unsupported, "chat template line {}: \"%\" to format a str is not supported", node.line);
  if (!a.is_number() || !b.is_number())
    refuse(node.line, fmt::format("\"{}\" is asked of a {} and a {}", op, a.kind_name(), b.kind_name()));

  const bool integers = !a.is(Kind::real) && !b.is(Kind::real);
  if ((op == "/" || op == "//" || op == "%") && b.real() == 0) refuse(node.line, "a number is divided by zero");
  if (op == "/") return a.real() / b.real();
  if (integers) {
    const int64_t x = a.integer(), y = b.integer();
    int64_t out = 0;
    bool overflow = false;
    if (op == "+") overflow = __builtin_add_overflow(x, y, &out);
    if (op == "-") overflow = __builtin_sub_overflow(x, y, &out);
    if (op == "*") overflow = __builtin_mul_overflow(x, y, &out);
    if (op == "%") out = floor_mod(x, y);
    if (op == "//") {
      overflow = x == INT64_MIN && y == -1;
      if (!overflow) out = (x - floor_mod(x, y)) / y;
    }
    if (op == "**") {
      if (y < 0) return std::pow(a.real(), b.real());
      out = 1;
      for (int64_t base = x, exponent = y; exponent > 0 && !overflow; exponent >>= 1) {
        if (exponent & 1) overflow = __builtin_mul_overflow(out, base, &out);
        if (exponent > 1) overflow = overflow || __builtin_mul_overflow(base, base, &base);
      }
    }
    if (overflow) refuse(node.line, "a number passes 64 bits");
    return out;
  }
  const double x = a.real(), y = b.real();
  if (op == "+") return x + y;
  if (op == "-") return x - y;
  if (op == "*") return x * y;
  if (op == "**") return std::pow(x, y);
  if (op == "//") return std::floor(x / y);
  const double r = std::fmod(x, y);
  return r != 0 && (r < 0) != (y < 0) ? r + y : r;
}

Value Interpreter::eval_slice(const Node& node) {
  const Value object = eval(*node.children[0]);
  std::optional<int64_t> bounds[3];
  for (size_t i = 0; i < 3; ++i) {
    if (!node.children[i + 1]) continue;
    const Value v = eval(*node.children[i + 1]);
    if (v.is(Kind::none)) continue;
    if (!is_integer(v)) refuse(node.line, fmt::format("a {} is a bound of a slice", v.kind_name()));
    bounds[i] = v.integer();
  }
  const bool is_text = object.is(Kind::string);
  if (!is_text && !object.is(Kind::list))
    refuse(node.line, fmt::format("a slice is taken of a {}", object.kind_name()));

  const int64_t step = bounds[2].value_or(1);
  if (step == 0) refuse(node.line, "the step of a slice is zero");
  charge(object.weight());
  const auto n = static_cast<int64_t>(is_text ? count_code_points(object.string()) : object.items().size());
  const auto clamped = [&](std::optional<int64_t> bound, int64_t otherwise) {
    if (!bound) return otherwise;
    const int64_t at = *bound < 0 ? *bound + n : *bound;
    return std::clamp(at, step > 0 ? int64_t{0} : int64_t{-1}, step > 0 ? n : n - 1);
  };
  const int64_t begin = clamped(bounds[0], step > 0 ? 0 : n - 1), end = clamped(bounds[1], step > 0 ? n : -1);

  if (is_text && step == 1) {
    const std::string& s = object.string();
    size_t from = 0;
    for (int64_t i = 0; i < begin; ++i) next_code_point(s, from);
    size_t to = from;
    for (int64_t i = begin; i < end; ++i) next_code_point(s, to);
    return text(s.substr(from, to - from));
  }
  const Items items = iterate(object, node.line);
  Items taken;
  for (int64_t i = begin; step > 0 ? i < end : i > end;) {
    taken.push_back(items[static_cast<size_t>(i)]);
    if (__builtin_add_overflow(i, step, &i)) break;
  }
  if (!is_text) return list(std::move(taken), object.is_tuple());
  std::string out;
  for (const Value& c : taken) out += c.string();
  return text(std::move(out));
}

}  // namespace sluice::text::jinja
