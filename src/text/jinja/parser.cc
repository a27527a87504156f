// SPDX-License-Identifier: Apache-2.0
// Statements: recursive descent over the blocks of a template.
#include "text/jinja/parser.h"

#include <algorithm>
#include <initializer_list>

#include "base/error.h"
#include "text/jinja/expression_parser.h"

namespace sluice::text::jinja {
namespace {

using Words = std::initializer_list<std::string_view>;

class Parser : private ExpressionParser {
 public:
  explicit Parser(std::string_view source) : ExpressionParser(source) {}

  NodePtr run() { return statements({}); }

 private:
  // Parses up to a block that begins with one of `ends`; the current token is then that name.
  NodePtr statements(Words ends) {
    const Deeper deeper(*this);
    NodePtr out = node(NodeKind::block, now().line);
    const int opened = last_line();
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
    if (tag == "generation") {  // transformers' mark around the assistant's text; without effect on inference
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

  // What may be left of "=" or "in": a name, names, or (with_attribute) namespace.attribute.
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

  int loops_ = 0;         // loops around the current statement, for break and continue
  int local_scopes_ = 0;  // loops and macros around it
};

}  // namespace

NodePtr parse(std::string_view source) { return Parser(source).run(); }

}  // namespace sluice::text::jinja
