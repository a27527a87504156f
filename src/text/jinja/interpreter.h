// SPDX-License-Identifier: Apache-2.0
// Runs a parsed template. It reaches nothing but its variables: no files, no environment, no clock.
// Written by hand: a template comes with a checkpoint and is as little trusted. The C++ engines for chat templates
// (minja, llama.cpp's) bound neither depth, steps nor output, and none is packaged; the texts here equal transformers'
// (Python's Jinja) on recorded vectors.
#pragma once

#include <ctime>
#include <optional>
#include <string>
#include <string_view>

#include "text/jinja/ast.h"
#include "text/jinja/call.h"
#include "text/jinja/value.h"

namespace sluice::text::jinja {

struct Limits {
  int64_t steps = 10'000'000;  // nodes evaluated, values made, and 32 bytes of text each
  int depth = 1000;            // nodes below each other, through macro calls
  size_t output_bytes = size_t{64} << 20;
};

class Interpreter {
 public:
  // `variables` are what the template sees; `now` is for strftime_now, which is undefined without it.
  Interpreter(const Fields& variables, const Limits& limits, const std::optional<std::tm>& now);

  // Throws invalid_argument: "chat template line N: ..." for what goes wrong in the template or passes a limit,
  // and the template's own sentence when it calls raise_exception.
  std::string render(const Node& root);

  // ---- for filters, tests and functions
  void charge(int64_t steps);
  Value text(std::string s);  // a new string, charged
  Value list(Items items, bool is_tuple = false);
  Value apply_filter(const std::string& name, const Value& subject, std::vector<Value> positional,
                     std::vector<std::pair<std::string, Value>> named, int line);
  bool apply_test(const std::string& name, const Value& subject, std::vector<Value> positional,
                  std::vector<std::pair<std::string, Value>> named, int line);
  // value.name and value[name] of Jinja: undefined when there is none.
  Value attribute(const Value& object, const std::string& name, int line);
  Value item(const Value& object, const Value& key, int line);
  // What a loop over it gives. Throws for what is not iterable.
  Items iterate(const Value& value, int line);
  bool contains(const Value& container, const Value& value, int line);
  bool less(const Value& a, const Value& b, std::string_view op, int line);
  const std::optional<std::tm>& now() const { return now_; }

 private:
  struct Scope {
    Scope* parent;
    Fields names;
  };
  enum class Flow { normal, loop_break, loop_continue };
  // Counts one level of nesting while it lives.
  class Deeper {
   public:
    Deeper(Interpreter& run, int line);
    ~Deeper();
    Deeper(const Deeper&) = delete;
    Deeper& operator=(const Deeper&) = delete;

   private:
    Interpreter& run_;
  };

  [[noreturn]] void refuse(int line, std::string_view why) const;
  void write(std::string_view text, int line);
  std::string captured(const Node& body);

  Flow run(const Node& node);
  Flow run_block(const Node& node);
  Flow run_if(const Node& node);
  Flow run_for(const Node& node);
  void assign(const Node& target, Value value);

  Value eval(const Node& node);
  Value eval_name(const Node& node) const;
  Value eval_binary(const Node& node);
  Value eval_arithmetic(const Node& node, const Value& a, const Value& b);
  Value eval_add(const Node& node, const Value& a, const Value& b);
  Value eval_compare(const Node& node);
  Value eval_unary(const Node& node);
  Value eval_slice(const Node& node);
  Value eval_call(const Node& node);
  Value eval_dict(const Node& node);
  Items eval_all(const Node& node);
  Call arguments(const Node& node, std::string what);
  Value call_macro(const Node& macro, Call& call);

  Limits limits_;
  int64_t steps_left_;
  int depth_ = 0;
  int line_ = 1;  // of the statement or expression at hand, for sentences about limits
  std::optional<std::tm> now_;
  Scope globals_;
  Scope* scope_;
  std::string* out_ = nullptr;
};

}  // namespace sluice::text::jinja
