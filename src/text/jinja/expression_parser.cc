// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/expression_parser.h"

#include <charconv>

namespace sluice::text::jinja {

bool ExpressionParser::ends_tuple() const {
  return now().kind == Kind::variable_end || now().kind == Kind::block_end || now().is_op(")") || now().is_name("in");
}

NodePtr ExpressionParser::tuple(bool with_condition) {
  const int line = now().line;
  NodePtr first = with_condition ? expression() : or_expression();
  if (!now().is_op(",")) return first;
  NodePtr out = node_of(NodeKind::tuple, line, "", std::move(first));
  while (skip_op(",") && !ends_tuple()) add(*out, with_condition ? expression() : or_expression());
  return out;
}

NodePtr ExpressionParser::expression() {
  const Deeper deeper(*this);
  NodePtr out = or_expression();
  while (now().is_name("if")) {
    const int line = take().line;
    NodePtr condition = or_expression();
    NodePtr otherwise = skip_name("else") ? expression() : nullptr;
    out = node_of(NodeKind::condition, line, "", std::move(out), std::move(condition), std::move(otherwise));
  }
  return out;
}

NodePtr ExpressionParser::left_associative(std::initializer_list<std::string_view> ops, Kind kind, Rule next) {
  NodePtr left = (this->*next)();
  while (now().kind == kind && std::find(ops.begin(), ops.end(), now().text) != ops.end()) {
    const Token op = take();
    NodePtr right = (this->*next)();
    left = node_of(NodeKind::binary, op.line, op.text, std::move(left), std::move(right));
  }
  return left;
}

NodePtr ExpressionParser::or_expression() {
  return left_associative({"or"}, Kind::name, &ExpressionParser::and_expression);
}

NodePtr ExpressionParser::and_expression() {
  return left_associative({"and"}, Kind::name, &ExpressionParser::not_expression);
}

NodePtr ExpressionParser::not_expression() {
  if (!now().is_name("not")) return comparison();
  const Deeper deeper(*this);
  const int line = take().line;
  return node_of(NodeKind::unary, line, "not", not_expression());
}

NodePtr ExpressionParser::comparison() {
  const int line = now().line;
  NodePtr first = sum();
  NodePtr out;
  while (true) {
    std::string op;
    if (now().kind == Kind::op) {
      for (const auto candidate : {"==", "!=", "<=", ">=", "<", ">"})
        if (now().text == candidate) op = candidate;
    } else if (now().is_name("in")) {
      op = "in";
    } else if (now().is_name("not") && peek().is_name("in")) {
      op = "not in";
      take();
    }
    if (op.empty()) return out ? std::move(out) : std::move(first);
    take();
    if (!out) out = node_of(NodeKind::compare, line, "", std::move(first));
    add(*out, sum(), op);
  }
}

NodePtr ExpressionParser::sum() { return left_associative({"+", "-"}, Kind::op, &ExpressionParser::concatenation); }

NodePtr ExpressionParser::concatenation() { return left_associative({"~"}, Kind::op, &ExpressionParser::product); }

NodePtr ExpressionParser::product() {
  return left_associative({"*", "/", "//", "%"}, Kind::op, &ExpressionParser::power);
}

NodePtr ExpressionParser::power() { return left_associative({"**"}, Kind::op, &ExpressionParser::filtered_unary); }

NodePtr ExpressionParser::filtered_unary() { return unary(true); }

NodePtr ExpressionParser::unary(bool with_filters) {
  const Deeper deeper(*this);
  NodePtr out;
  if (now().is_op("-") || now().is_op("+")) {
    const Token op = take();
    out = node_of(NodeKind::unary, op.line, op.text, unary(false));
  } else {
    out = primary();
  }
  out = postfix(std::move(out));
  return with_filters ? postfix_filters(std::move(out)) : std::move(out);
}

NodePtr ExpressionParser::constant(int line, Value value) const {
  NodePtr out = node(NodeKind::constant, line);
  out->value = std::move(value);
  return out;
}

NodePtr ExpressionParser::primary() {
  const Token t = now();
  switch (t.kind) {
    case Kind::name:
      take();
      if (t.text == "true" || t.text == "True") return constant(t.line, true);
      if (t.text == "false" || t.text == "False") return constant(t.line, false);
      if (t.text == "none" || t.text == "None") return constant(t.line, nullptr);
      return node(NodeKind::name, t.line, t.text);
    case Kind::string: {
      std::string all;
      while (now().kind == Kind::string) all += take().text;
      return constant(t.line, std::move(all));
    }
    case Kind::integer: {
      int64_t i = 0;
      const auto r = std::from_chars(t.text.data(), t.text.data() + t.text.size(), i);
      if (r.ec != std::errc()) refuse(fmt::format("{} does not fit into 64 bits", t.text));
      take();
      return constant(t.line, i);
    }
    case Kind::real: {
      double d = 0;
      const auto r = std::from_chars(t.text.data(), t.text.data() + t.text.size(), d);
      if (r.ec != std::errc()) refuse(fmt::format("{} does not fit into a float", t.text));
      take();
      return constant(t.line, d);
    }
    default:
      break;
  }
  if (skip_op("(")) {
    if (skip_op(")")) return node(NodeKind::tuple, t.line);
    NodePtr inner = tuple(true);
    expect_op(")");
    return inner;
  }
  if (skip_op("[")) return list(t.line);
  if (skip_op("{")) return dict(t.line);
  refuse(fmt::format("an expression is expected, not {}", shown()));
}

NodePtr ExpressionParser::list(int line) {
  NodePtr out = node(NodeKind::list, line);
  while (!skip_op("]")) {
    if (!out->children.empty()) expect_op(",");
    if (skip_op("]")) break;
    add(*out, expression());
  }
  return out;
}

NodePtr ExpressionParser::dict(int line) {
  NodePtr out = node(NodeKind::dict, line);
  while (!skip_op("}")) {
    if (!out->children.empty()) expect_op(",");
    if (skip_op("}")) break;
    add(*out, expression());
    expect_op(":");
    add(*out, expression());
  }
  return out;
}

NodePtr ExpressionParser::postfix(NodePtr out) {
  while (true) {
    const int line = now().line;
    if (skip_op(".")) {
      if (now().kind == Kind::integer) {
        out = node_of(NodeKind::index, line, "", std::move(out), primary());
      } else {
        std::string name = expect_name();
        out = node_of(NodeKind::attribute, line, std::move(name), std::move(out));
      }
    } else if (skip_op("[")) {
      out = subscript(line, std::move(out));
    } else if (skip_op("(")) {
      out = call(line, std::move(out));
    } else {
      return out;
    }
  }
}

NodePtr ExpressionParser::subscript(int line, NodePtr object) {
  NodePtr parts[3];
  bool slice = false;
  for (size_t i = 0; i < 3; ++i) {
    if (!now().is_op(":") && !now().is_op("]")) parts[i] = expression();
    if (!skip_op(":")) break;
    slice = true;
  }
  if (!slice && !parts[0]) refuse("an index is missing");
  expect_op("]");
  if (!slice) return node_of(NodeKind::index, line, "", std::move(object), std::move(parts[0]));
  return node_of(NodeKind::slice, line, "", std::move(object), std::move(parts[0]), std::move(parts[1]),
                 std::move(parts[2]));
}

void ExpressionParser::arguments(Node& out) {
  const size_t before = out.children.size();
  while (!skip_op(")")) {
    if (out.children.size() > before) expect_op(",");
    if (skip_op(")")) break;
    if (now().is_op("*") || now().is_op("**")) refuse_unsupported("\"*\" before an argument", now().line);
    std::string name;
    if (now().kind == Kind::name && peek().is_op("=")) {
      name = take().text;
      take();
    } else if (!out.names.back().empty() && out.children.size() > before) {
      refuse("a positional argument follows a named one");
    }
    add(out, expression(), std::move(name));
  }
}

NodePtr ExpressionParser::call(int line, NodePtr callee) {
  NodePtr out = node_of(NodeKind::call, line, "", std::move(callee));
  arguments(*out);
  return out;
}

NodePtr ExpressionParser::postfix_filters(NodePtr out) {
  while (true) {
    const int line = now().line;
    if (skip_op("|")) {
      std::string name = expect_name();
      out = node_of(NodeKind::filter, line, std::move(name), std::move(out));
      if (skip_op("(")) arguments(*out);
    } else if (skip_name("is")) {
      out = test(line, std::move(out));
    } else if (skip_op("(")) {
      out = call(line, std::move(out));
    } else {
      return out;
    }
  }
}

NodePtr ExpressionParser::test(int line, NodePtr subject) {
  const bool negated = skip_name("not");
  std::string name = expect_name();
  NodePtr out = node_of(NodeKind::test, line, std::move(name), std::move(subject));
  if (skip_op("(")) {
    arguments(*out);
  } else if (begins_test_argument()) {
    add(*out, postfix(primary()));
  }
  return negated ? node_of(NodeKind::unary, line, "not", std::move(out)) : std::move(out);
}

bool ExpressionParser::begins_test_argument() const {
  switch (now().kind) {
    case Kind::string:
    case Kind::integer:
    case Kind::real:
      return true;
    case Kind::op:
      return now().text == "[" || now().text == "{";
    case Kind::name:
      for (const auto word : {"else", "or", "and", "if", "is", "in", "not", "recursive"})
        if (now().text == word) return false;
      return true;
    default:
      return false;
  }
}

}  // namespace sluice::text::jinja
