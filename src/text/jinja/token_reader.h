// SPDX-License-Identifier: Apache-2.0
// The common base of the expression and the statement parser: the tokens, and nodes whose depth is counted.
#pragma once

#include <algorithm>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/error.h"
#include "text/jinja/ast.h"
#include "text/jinja/lexer.h"
#include "text/jinja/parser.h"

namespace sluice::text::jinja {

class TokenReader {
 protected:
  using Kind = Token::Kind;

  explicit TokenReader(std::string_view source) : tokens_(tokenize(source)) {}

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
    explicit Deeper(TokenReader& p) : parser(p) {
      if (++parser.depth_ > kMaxDepth)
        fail(ErrorCode::unsupported, "chat template line {}: the nesting is deeper than {} levels", parser.now().line,
             kMaxDepth);
    }
    ~Deeper() { --parser.depth_; }
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;
    TokenReader& parser;
  };

  // The line of the token before the current one.
  int last_line() const { return at_ > 0 ? tokens_[at_ - 1].line : 1; }

 private:
  std::vector<Token> tokens_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace sluice::text::jinja
