// SPDX-License-Identifier: Apache-2.0
// Expressions, with the precedence of Jinja's own parser: condition, or, and, not, comparisons, + -, ~, * / // %, **,
// unary, then postfix and filters.
#pragma once

#include <initializer_list>
#include <string_view>

#include "text/jinja/token_reader.h"

namespace sluice::text::jinja {

class ExpressionParser : protected TokenReader {
 protected:
  using TokenReader::TokenReader;

  NodePtr expression();
  // An expression, or several with commas; without conditions where "if" belongs to the statement.
  NodePtr tuple(bool with_condition);
  // Filters, tests and calls after `out`.
  NodePtr postfix_filters(NodePtr out);

 private:
  using Rule = NodePtr (ExpressionParser::*)();
  NodePtr left_associative(std::initializer_list<std::string_view> ops, Kind kind, Rule next);
  NodePtr or_expression();
  NodePtr and_expression();
  NodePtr not_expression();
  NodePtr comparison();
  NodePtr sum();
  NodePtr concatenation();
  NodePtr product();
  NodePtr power();
  NodePtr filtered_unary();
  NodePtr unary(bool with_filters);
  NodePtr primary();
  NodePtr constant(int line, Value value) const;
  NodePtr list(int line);
  NodePtr dict(int line);
  NodePtr postfix(NodePtr out);
  NodePtr subscript(int line, NodePtr object);
  NodePtr call(int line, NodePtr callee);
  void arguments(Node& out);
  NodePtr test(int line, NodePtr subject);
  bool begins_test_argument() const;
  bool ends_tuple() const;
};

}  // namespace sluice::text::jinja
