// SPDX-License-Identifier: Apache-2.0
// Recursive descent with the precedence of Jinja's own parser: condition, or, and, not, comparisons, + -, ~,
// * / // %, **, unary, then postfix and filters.
#include "text/jinja/parser.h"

#include <algorithm>
#include <charconv>
#include <initializer_list>

#include "base/error.h"
#include "text/jinja/lexer.h"

namespace sluice::text::jinja {
namespace {

using Kind = Token::Kind;
using Words = std::initializer_list<std::string_view>;

class Parser {
 public:
  explicit Parser(std::string_view source) : tokens_(tokenize(source)) {}

  NodePtr run() {
    NodePtr all = statements({});
    return all;
  }

 private:
  // ---- tokens
  const Token& now() const { return tokens_[at_]; }
  const Token& peek() const { return tokens_[std::min(at_ + 1, tokens_.size() - 1)]; }
  Token take() { return tokens_[at_ + 1 < tokens_.size() ? at_++ : at_]; }
  bool skip_op(std::string_view op) { return now().is_op(op) && (++at_, true); }
  bool skip_name(std::string_view name) { return now().is_name(name) && (++at_, true); }

  [[noreturn]] void refuse(std::string_view what) const {
    fail(ErrorCode::bad_file, "chat template line {}: {}", now().line, what);
  }
  [[noreturn]] void refuse_unsupported(std::string_view what, int line) const {
    fail(ErrorCode::unsupported, "chat template line {}: {} is not supported", line, what);
  }
  std::string shown() const {
    switch (now().kind) {
      case Kind::end:
        return "the end of the template";
      case Kind::variable_end:
        return "\"}}\"";
      case Kind::block_end:
        return "\"%}\"";
      default:
        return "\"" + now().text + "\"";
    }
  }
  void expect_op(std::string_view op) {
    if (!skip_op(op)) refuse(fmt::format("\"{}\" is expected, not {}", op, shown()));
  }
  void expect_block_end() {
    if (now().kind != Kind::block_end) refuse(fmt::format("\"%}}\" is expected, not {}", shown()));
    take();
  }
  std::string expect_name() {
    if (now().kind != Kind::name) refuse(fmt::format("a name is expected, not {}", shown()));
    return take().text;
  }

  // ---- nodes
  NodePtr node(NodeKind kind, int line, std::string text = "") const {
    auto n = std::make_unique<Node>();
    n->kind = kind;
    n->line = line;
    n->text = std::move(text);
    return n;
  }
  void add(Node& parent, NodePtr child, std::string name = "") const {
    if (child) {
      parent.depth = std::max(parent.depth, child->depth + 1);
      if (parent.depth > kMaxDepth)
        fail(ErrorCode::unsupported, "chat template line {}: the nesting is deeper than {} levels", child->line,
             kMaxDepth);
    }
    parent.children.push_back(std::move(child));
    parent.names.push_back(std::move(name));
  }
  template <class... Children>
  NodePtr node_of(NodeKind kind, int line, std::string text, Children... children) const {
    NodePtr n = node(kind, line, std::move(text));
    (add(*n, std::move(children)), ...);
    return n;
  }
  // Recursion of the parser itself, before there is a node to count: "((((((".
  struct Deeper {
    explicit Deeper(Parser& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth)
        fail(ErrorCode::unsupported, "chat template line {}: the nesting is deeper than {} levels", parser.now().line,
             kMaxDepth);
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    Parser& parser;
  };

  // ---- statements

  // Up to a block that begins with one of `ends`, whose name is the current token then.
  NodePtr statements(Words ends) {
    const Deeper deeper(*this);
    NodePtr out = node(NodeKind::block, now().line);
    const int opened = at_ > 0 ? tokens_[at_ - 1].line : 1;
    while (true) {
      const int line = now().line;
      if (now().kind == Kind::end) {
        if (ends.size() == 0) return out;
        fail(ErrorCode::bad_file, "chat template line {}: the block is not closed with \"{}\"", opened,
             *(ends.end() - 1));
      }
      Token t = take();
      if (t.kind == Kind::data) {
        add(*out, node(NodeKind::data, line, std::move(t.text)));
      } else if (t.kind == Kind::variable_begin) {
        add(*out, node_of(NodeKind::output, line, "", tuple(true)));
        if (now().kind != Kind::variable_end) refuse(fmt::format("\"}}}}\" is expected, not {}", shown()));
        take();
      } else {  // block_begin
        if (std::any_of(ends.begin(), ends.end(), [&](auto e) { return now().is_name(e); })) return out;
        add(*out, statement());
      }
    }
  }

  NodePtr statement() {
    const int line = now().line;
    const std::string tag = expect_name();
    if (tag == "if") return if_statement(line);
    if (tag == "for") return for_statement(line);
    if (tag == "set") return set_statement(line);
    if (tag == "macro") return macro_statement(line);
    if (tag == "break" || tag == "continue") {
      if (loops_ == 0) fail(ErrorCode::bad_file, "chat template line {}: \"{}\" is outside of a loop", line, tag);
      expect_block_end();
      return node(tag == "break" ? NodeKind::loop_break : NodeKind::loop_continue, line);
    }
    if (tag == "generation") {  // transformers' mark around what the assistant says; nothing for inference
      expect_block_end();
      NodePtr body = statements({"endgeneration"});
      take();
      expect_block_end();
      return body;
    }
    if (tag.starts_with("end") || tag == "else" || tag == "elif")
      fail(ErrorCode::bad_file, "chat template line {}: \"{}\" closes nothing", line, tag);
    refuse_unsupported("the tag \"" + tag + "\"", line);
  }

  NodePtr if_statement(int line) {
    NodePtr out = node(NodeKind::if_else, line);
    while (true) {
      add(*out, tuple(false));
      expect_block_end();
      add(*out, statements({"elif", "else", "endif"}));
      if (skip_name("elif")) continue;
      if (skip_name("else")) {
        expect_block_end();
        add(*out, statements({"endif"}));
      }
      take();
      expect_block_end();
      return out;
    }
  }

  NodePtr for_statement(int line) {
    NodePtr out = node(NodeKind::for_loop, line);
    add(*out, target(false));
    if (!skip_name("in")) refuse(fmt::format("\"in\" is expected, not {}", shown()));
    add(*out, tuple(false));
    add(*out, skip_name("if") ? expression() : nullptr);
    if (now().is_name("recursive")) refuse_unsupported("a recursive loop", line);
    expect_block_end();
    ++loops_, ++local_scopes_;
    add(*out, statements({"else", "endfor"}));
    --loops_;
    NodePtr otherwise;
    if (skip_name("else")) {
      expect_block_end();
      otherwise = statements({"endfor"});
    }
    --local_scopes_;
    add(*out, std::move(otherwise));
    take();
    expect_block_end();
    return out;
  }

  NodePtr set_statement(int line) {
    NodePtr to = target(true);
    if (skip_op("=")) {
      NodePtr out = node_of(NodeKind::set, line, "", std::move(to), tuple(true));
      expect_block_end();
      return out;
    }
    // The body's text goes through the filters: parse them around a placeholder.
    NodePtr filters;
    if (now().is_op("|")) filters = postfix_filters(node(NodeKind::name, line, ""));
    expect_block_end();
    NodePtr out = node(NodeKind::set_block, line);
    add(*out, std::move(to));
    add(*out, statements({"endset"}));
    add(*out, std::move(filters));
    take();
    expect_block_end();
    return out;
  }

  NodePtr macro_statement(int line) {
    // A macro sees the template's own variables; those of a loop or another macro would need closures.
    if (local_scopes_ > 0) refuse_unsupported("a macro inside a loop or a macro", line);
    NodePtr out = node(NodeKind::macro, line, expect_name());
    add(*out, nullptr);
    expect_op("(");
    while (!now().is_op(")")) {
      if (out->children.size() > 1) expect_op(",");
      if (now().is_op(")")) break;
      std::string name = expect_name();
      add(*out, skip_op("=") ? expression() : nullptr, std::move(name));
    }
    take();
    expect_block_end();
    const int outer_loops = std::exchange(loops_, 0);
    ++local_scopes_;
    NodePtr body = statements({"endmacro"});
    --local_scopes_;
    loops_ = outer_loops;
    out->depth = std::max(out->depth, body->depth + 1);
    out->children[0] = std::move(body);
    take();
    expect_block_end();
    return out;
  }

  // What may stand left of "=" or "in": a name, names, or (with_attribute) namespace.attribute.
  NodePtr target(bool with_attribute) {
    const int line = now().line;
    const bool parenthesis = skip_op("(");
    NodePtr first = node(NodeKind::name, line, expect_name());
    if (with_attribute && skip_op(".")) return node_of(NodeKind::attribute, line, expect_name(), std::move(first));
    if (!now().is_op(",")) {
      if (parenthesis) expect_op(")");
      return first;
    }
    NodePtr out = node_of(NodeKind::tuple, line, "", std::move(first));
    while (skip_op(","))
      if (now().kind == Kind::name && !now().is_name("in")) add(*out, node(NodeKind::name, line, expect_name()));
    if (parenthesis) expect_op(")");
    return out;
  }

  // ---- expressions

  bool ends_tuple() const {
    return now().kind == Kind::variable_end || now().kind == Kind::block_end || now().is_op(")") || now().is_name("in");
  }

  // An expression, or several with commas.
  NodePtr tuple(bool with_condition) {
    const int line = now().line;
    NodePtr first = with_condition ? expression() : or_expression();
    if (!now().is_op(",")) return first;
    NodePtr out = node_of(NodeKind::tuple, line, "", std::move(first));
    while (skip_op(",") && !ends_tuple()) add(*out, with_condition ? expression() : or_expression());
    return out;
  }

  NodePtr expression() {
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

  template <class Next>
  NodePtr left_associative(Words ops, Kind kind, Next next) {
    NodePtr left = (this->*next)();
    while (now().kind == kind && std::find(ops.begin(), ops.end(), now().text) != ops.end()) {
      const Token op = take();
      NodePtr right = (this->*next)();
      left = node_of(NodeKind::binary, op.line, op.text, std::move(left), std::move(right));
    }
    return left;
  }

  NodePtr or_expression() { return left_associative({"or"}, Kind::name, &Parser::and_expression); }
  NodePtr and_expression() { return left_associative({"and"}, Kind::name, &Parser::not_expression); }

  NodePtr not_expression() {
    if (!now().is_name("not")) return comparison();
    const Deeper deeper(*this);
    const int line = take().line;
    return node_of(NodeKind::unary, line, "not", not_expression());
  }

  NodePtr comparison() {
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

  NodePtr sum() { return left_associative({"+", "-"}, Kind::op, &Parser::concatenation); }
  NodePtr concatenation() { return left_associative({"~"}, Kind::op, &Parser::product); }
  NodePtr product() { return left_associative({"*", "/", "//", "%"}, Kind::op, &Parser::power); }
  NodePtr power() { return left_associative({"**"}, Kind::op, &Parser::filtered_unary); }
  NodePtr filtered_unary() { return unary(true); }

  NodePtr unary(bool with_filters) {
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

  NodePtr constant(int line, Value value) const {
    NodePtr out = node(NodeKind::constant, line);
    out->value = std::move(value);
    return out;
  }

  NodePtr primary() {
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

  NodePtr list(int line) {
    NodePtr out = node(NodeKind::list, line);
    while (!skip_op("]")) {
      if (!out->children.empty()) expect_op(",");
      if (skip_op("]")) break;
      add(*out, expression());
    }
    return out;
  }

  NodePtr dict(int line) {
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

  NodePtr postfix(NodePtr out) {
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

  NodePtr subscript(int line, NodePtr object) {
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

  void arguments(Node& out) {
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
        refuse("a positional argument stands after a named one");
      }
      add(out, expression(), std::move(name));
    }
  }

  NodePtr call(int line, NodePtr callee) {
    NodePtr out = node_of(NodeKind::call, line, "", std::move(callee));
    arguments(*out);
    return out;
  }

  NodePtr postfix_filters(NodePtr out) {
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

  NodePtr test(int line, NodePtr subject) {
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

  bool begins_test_argument() const {
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

  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
  int loops_ = 0;         // loops around the current statement, for break and continue
  int local_scopes_ = 0;  // loops and macros around it
};

}  // namespace

NodePtr parse(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::text::jinja
