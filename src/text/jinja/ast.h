// SPDX-License-Identifier: Apache-2.0
// The parsed template. One node type for all, so that depth is counted in one place.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/jinja/value.h"

namespace sluice::text::jinja {

struct Node;
using NodePtr = std::unique_ptr<Node>;

// The comments say what text, value and children mean.
enum class NodeKind {
  // expressions
  constant,   // value
  name,       // text
  list,       // children
  tuple,      // children
  dict,       // children: key, value, key, value, ...
  attribute,  // text; children: object
  index,      // children: object, key
  slice,      // children: object, begin, end, step; null where absent
  call,       // children: callee, arguments; names
  filter,     // text; children: subject, arguments; names
  test,       // text; children: subject, arguments; names
  unary,      // text: "-", "+", "not"
  binary,     // text: the operator, "and", "or"
  compare,    // children: a, b, c, ...; names: the operators between them
  condition,  // children: then, condition, else (null: undefined)
  // statements
  block,      // children, one after the other
  data,       // text as it is
  output,     // children: expression
  if_else,    // children: condition, block, condition, block, ..., [block]
  for_loop,   // children: target, iterable, filter or null, body, else or null
  set,        // children: target, expression
  set_block,  // children: target, block, filter or null (its innermost subject is the block's text)
  macro,      // text; children: body, then defaults (null: required); names: of the parameters, from index 1
  loop_break,
  loop_continue,
};

struct Node {
  NodeKind kind;
  int line = 0;
  int depth = 1;
  std::string text;
  Value value;
  std::vector<NodePtr> children;
  std::vector<std::string> names;  // by child; empty for positional arguments
};

}  // namespace sluice::text::jinja
