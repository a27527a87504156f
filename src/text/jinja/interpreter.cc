// SPDX-License-Identifier: Apache-2.0
// Statements, calls and limits. Expressions are in expressions.cc.
#include "text/jinja/interpreter.h"

#include "base/error.h"
#include "text/jinja/py_string.h"
#include "text/jinja/value_text.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

template <class T>
class Restored {
 public:
  Restored(T& variable, T value) : variable_(variable), old_(variable) { variable = value; }
  ~Restored() { variable_ = old_; }
  Restored(const Restored&) = delete;
  Restored& operator=(const Restored&) = delete;

 private:
  T& variable_;
  T old_;
};

void set_field(Fields& fields, const std::string& name, Value value) {
  for (auto& [key, old] : fields)
    if (key == name) {
      old = std::move(value);
      return;
    }
  fields.emplace_back(name, std::move(value));
}

}  // namespace

Interpreter::Deeper::Deeper(Interpreter& run, int line) : run_(run) {
  run_.line_ = line;
  if (++run_.depth_ > run_.limits_.depth) {
    --run_.depth_;
    run_.refuse(line, fmt::format("calls are nested more than {} levels deep", run_.limits_.depth));
  }
  run_.charge(1);
}
Interpreter::Deeper::~Deeper() { --run_.depth_; }

Interpreter::Interpreter(const Fields& variables, const Limits& limits, const std::optional<std::tm>& now)
    : limits_(limits), steps_left_(limits.steps), now_(now), globals_{nullptr, variables}, scope_(&globals_) {}

void Interpreter::refuse(int line, std::string_view why) const {
  fail(ErrorCode::invalid_argument, "chat template line {}: {}", line, why);
}

void Interpreter::charge(int64_t steps) {
  if (steps > steps_left_) refuse(line_, fmt::format("the template takes more than {} steps", limits_.steps));
  steps_left_ -= steps;
}

Value Interpreter::text(std::string s) {
  charge(1 + static_cast<int64_t>(s.size() / 32));
  return Value(std::move(s));
}

Value Interpreter::list(Items items, bool is_tuple) {
  charge(1 + static_cast<int64_t>(items.size()));
  return Value::list(std::move(items), is_tuple);
}

void Interpreter::write(std::string_view text, int line) {
  charge(static_cast<int64_t>(text.size() / 32));
  if (text.size() > limits_.output_bytes - out_->size())
    refuse(line, fmt::format("the output is longer than {} bytes", limits_.output_bytes));
  *out_ += text;
}

std::string Interpreter::render(const Node& root) {
  std::string out;
  const Restored<std::string*> restore(out_, &out);
  run(root);
  return out;
}

std::string Interpreter::captured(const Node& body) {
  std::string out;
  const Restored<std::string*> restore(out_, &out);
  run(body);
  return out;
}

Interpreter::Flow Interpreter::run(const Node& node) {
  const Deeper deeper(*this, node.line);
  switch (node.kind) {
    case NodeKind::block:
      return run_block(node);
    case NodeKind::if_else:
      return run_if(node);
    case NodeKind::for_loop:
      return run_for(node);
    case NodeKind::data:
      write(node.text, node.line);
      return Flow::normal;
    case NodeKind::output: {
      const Value v = eval(*node.children[0]);
      if (v.is(Kind::string)) {
        write(v.string(), node.line);
      } else {
        charge(v.weight());
        write(to_text(v), node.line);
      }
      return Flow::normal;
    }
    case NodeKind::set:
      assign(*node.children[0], eval(*node.children[1]));
      return Flow::normal;
    case NodeKind::set_block: {
      Value body = text(captured(*node.children[1]));
      if (node.children[2]) {
        Scope scope{scope_, {{"", std::move(body)}}};  // the name that the filters begin with
        const Restored<Scope*> restore(scope_, &scope);
        body = eval(*node.children[2]);
      }
      assign(*node.children[0], std::move(body));
      return Flow::normal;
    }
    case NodeKind::macro:
      set_field(scope_->names, node.text, std::make_shared<const Callable>(Callable{node.text, &node, Value()}));
      return Flow::normal;
    case NodeKind::loop_break:
      return Flow::loop_break;
    case NodeKind::loop_continue:
      return Flow::loop_continue;
    default:
      fail(ErrorCode::internal, "chat template line {}: an expression in place of a statement", node.line);
  }
}

Interpreter::Flow Interpreter::run_block(const Node& node) {
  for (const NodePtr& child : node.children)
    if (const Flow flow = run(*child); flow != Flow::normal) return flow;
  return Flow::normal;
}

Interpreter::Flow Interpreter::run_if(const Node& node) {
  size_t i = 0;
  for (; i + 1 < node.children.size(); i += 2)
    if (eval(*node.children[i]).truth()) return run(*node.children[i + 1]);
  return i < node.children.size() ? run(*node.children[i]) : Flow::normal;
}

Interpreter::Flow Interpreter::run_for(const Node& node) {
  const Node& target = *node.children[0];
  Items items = iterate(eval(*node.children[1]), node.line);
  charge(static_cast<int64_t>(items.size()));
  if (node.children[2]) {
    Items kept;
    for (Value& item : items) {
      Scope scope{scope_, {}};
      const Restored<Scope*> restore(scope_, &scope);
      assign(target, item);
      if (eval(*node.children[2]).truth()) kept.push_back(std::move(item));
    }
    items = std::move(kept);
  }
  if (items.empty() && node.children[4]) {
    Scope scope{scope_, {}};
    const Restored<Scope*> restore(scope_, &scope);
    return run(*node.children[4]);
  }
  const auto loop = std::make_shared<Loop>();
  loop->items = Value::list(std::move(items));
  for (const Value& item : loop->items.items()) {
    Scope scope{scope_, {}};
    const Restored<Scope*> restore(scope_, &scope);
    assign(target, item);
    set_field(scope.names, "loop", loop);
    if (run(*node.children[3]) == Flow::loop_break) break;
    ++loop->index0;
  }
  return Flow::normal;
}

void Interpreter::assign(const Node& target, Value value) {
  if (target.kind == NodeKind::name) {
    set_field(scope_->names, target.text, std::move(value));
  } else if (target.kind == NodeKind::tuple) {
    const Items parts = iterate(value, target.line);
    if (parts.size() != target.children.size())
      refuse(target.line, fmt::format("{} values are unpacked into {} names", parts.size(), target.children.size()));
    for (size_t i = 0; i < parts.size(); ++i) assign(*target.children[i], parts[i]);
  } else {
    const Value object = eval(*target.children[0]);
    const std::string& name = target.children[0]->text;
    if (!object.is(Kind::name_space))
      refuse(target.line, fmt::format("\"{}.{}\" is set, but \"{}\" is not a namespace", name, target.text, name));
    // With a namespace inside itself, values would form cycles and never be freed.
    if (value.is_transient())
      refuse(target.line, fmt::format("\"{}.{}\" is set to a {}", name, target.text, value.kind_name()));
    charge(static_cast<int64_t>(object.name_space().fields.size()));
    set_field(object.name_space().fields, target.text, std::move(value));
  }
}

Call Interpreter::arguments(const Node& node, std::string what) {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;
  for (size_t i = 1; i < node.children.size(); ++i) {
    Value v = eval(*node.children[i]);
    if (node.names[i].empty()) {
      positional.push_back(std::move(v));
    } else {
      named.emplace_back(node.names[i], std::move(v));
    }
  }
  return Call(*this, node.line, std::move(what), std::move(positional), std::move(named));
}

Value Interpreter::eval_call(const Node& node) {
  const Value callee = eval(*node.children[0]);
  if (callee.is(Kind::undefined))
    refuse(node.line, fmt::format("\"{}\" is called, but there is no such function", callee.undefined_name()));
  if (!callee.is(Kind::callable)) refuse(node.line, fmt::format("a {} is called", callee.kind_name()));
  const Callable& f = callee.callable();
  Call call = arguments(node, fmt::format("\"{}\"", f.name));
  if (f.macro) return call_macro(*f.macro, call);
  switch (f.self.kind()) {
    case Kind::string:
      return find_string_method(f.name)(f.self, call);
    case Kind::dict:
      return find_dict_method(f.name)(f.self, call);
    case Kind::list:
      return find_list_method(f.name)(f.self, call);
    case Kind::loop: {  // cycle
      if (call.positional().empty()) call.refuse("needs an argument");
      return call.positional()[static_cast<size_t>(f.self.loop().index0) % call.positional().size()];
    }
    default:
      return find_global(f.name)(Value(), call);
  }
}

Value Interpreter::call_macro(const Node& macro, Call& call) {
  Scope scope{&globals_, {}};
  const size_t parameters = macro.children.size() - 1;
  if (call.positional().size() > parameters)
    call.refuse(fmt::format("is given {} arguments; it takes {}", call.positional().size(), parameters));
  for (size_t i = 0; i < call.positional().size(); ++i)
    scope.names.emplace_back(macro.names[i + 1], call.positional()[i]);
  for (const auto& [name, value] : call.named()) {
    size_t i = 1;
    while (i < macro.names.size() && macro.names[i] != name) ++i;
    if (i == macro.names.size()) call.refuse(fmt::format("has no parameter \"{}\"", name));
    if (i <= call.positional().size()) call.refuse(fmt::format("is given \"{}\" twice", name));
    set_field(scope.names, name, value);
  }
  const Restored<Scope*> restore(scope_, &scope);
  for (size_t i = call.positional().size() + 1; i < macro.children.size(); ++i) {
    bool given = false;
    for (const auto& [name, value] : call.named()) given = given || name == macro.names[i];
    if (given) continue;
    Value v = macro.children[i] ? eval(*macro.children[i]) : Value::undefined(macro.names[i]);
    scope.names.emplace_back(macro.names[i], std::move(v));
  }
  return text(captured(*macro.children[0]));
}

Value Interpreter::apply_filter(const std::string& name, const Value& subject, std::vector<Value> positional,
                                std::vector<std::pair<std::string, Value>> named, int line) {
  const Function f = find_filter(name);
  if (!f) fail(ErrorCode::unsupported, "chat template line {}: the filter \"{}\" is not supported", line, name);
  Call call(*this, line, fmt::format("the filter \"{}\"", name), std::move(positional), std::move(named));
  return f(subject, call);
}

bool Interpreter::apply_test(const std::string& name, const Value& subject, std::vector<Value> positional,
                             std::vector<std::pair<std::string, Value>> named, int line) {
  const Test t = find_test(name);
  if (!t) fail(ErrorCode::unsupported, "chat template line {}: the test \"{}\" is not supported", line, name);
  Call call(*this, line, fmt::format("the test \"{}\"", name), std::move(positional), std::move(named));
  return t(subject, call);
}

}  // namespace sluice::text::jinja
