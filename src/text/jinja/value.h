// SPDX-License-Identifier: Apache-2.0
// What a template computes with. Lists and dictionaries never change once they are made (templates run in
// transformers' *immutable* sandbox), so values share them, and cannot form cycles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>
#include <vector>

namespace sluice::text::jinja {

struct Node;
class Value;

using Items = std::vector<Value>;
using Fields = std::vector<std::pair<std::string, Value>>;

struct List;
struct Dict;
struct Namespace;
struct Loop;
struct Callable;

class Value {
 public:
  // In the order of the alternatives of data_.
  enum class Kind { undefined, none, boolean, integer, real, string, list, dict, name_space, loop, callable };

  Value() = default;  // undefined
  Value(std::nullptr_t) : data_(nullptr) {}
  Value(bool b) : data_(b) {}
  Value(int64_t i) : data_(i) {}
  Value(int i) : data_(int64_t{i}) {}
  Value(double d) : data_(d) {}
  Value(std::string s) : data_(std::make_shared<const std::string>(std::move(s))) {}
  Value(std::string_view s) : Value(std::string(s)) {}
  Value(const char* s) : Value(std::string(s)) {}
  Value(std::shared_ptr<Namespace> n) : data_(std::move(n)) {}
  Value(std::shared_ptr<Loop> l) : data_(std::move(l)) {}
  Value(std::shared_ptr<const Callable> c) : data_(std::move(c)) {}

  // Throw invalid_argument when the nesting passes kMaxNesting or the weight kMaxWeight. Of equal keys the last one
  // stays, in the place of the first, as in Python.
  static Value list(Items items, bool is_tuple = false);
  static Value dict(Fields fields);
  static Value undefined(std::string_view name);  // the name is for error sentences

  Kind kind() const { return static_cast<Kind>(data_.index()); }
  bool is(Kind k) const { return kind() == k; }
  bool is_number() const { return is(Kind::boolean) || is(Kind::integer) || is(Kind::real); }

  // Each needs its kind.
  bool boolean() const { return std::get<bool>(data_); }
  const std::string& string() const { return *std::get<std::shared_ptr<const std::string>>(data_); }
  const Items& items() const;
  bool is_tuple() const;
  const Dict& fields() const;
  Namespace& name_space() const { return *std::get<std::shared_ptr<Namespace>>(data_); }
  const Loop& loop() const { return *std::get<std::shared_ptr<Loop>>(data_); }
  const Callable& callable() const { return *std::get<std::shared_ptr<const Callable>>(data_); }
  std::string_view undefined_name() const;

  // bool counts as an integer, as in Python. The first needs boolean or integer, the second is_number().
  int64_t integer() const;
  double real() const;

  bool truth() const;
  std::string_view kind_name() const;  // as Python calls it: "str", "dict", ...

  int nesting() const;        // 0 for what is not a container
  int64_t weight() const;     // values in it all, counting shared ones each time, and a byte as 1/32
  bool is_transient() const;  // is or holds something that changes: a namespace may not hold it

 private:
  struct Undefined {
    std::shared_ptr<const std::string> name;
  };
  std::variant<Undefined, std::nullptr_t, bool, int64_t, double, std::shared_ptr<const std::string>,
               std::shared_ptr<const List>, std::shared_ptr<const Dict>, std::shared_ptr<Namespace>,
               std::shared_ptr<Loop>, std::shared_ptr<const Callable>>
      data_;
};

inline constexpr int kMaxNesting = 100;
// [x, x] of [x, x] of ... takes little memory but 2^100 steps to compare or print.
inline constexpr int64_t kMaxWeight = 10'000'000;

struct List {
  Items items;
  bool is_tuple = false;
  int nesting = 1;
  int64_t weight = 1;
  bool transient = false;
};

struct Dict {
  Fields fields;
  std::unordered_map<std::string_view, size_t> index;  // for large ones only
  int nesting = 1;
  int64_t weight = 1;
  bool transient = false;
  const Value* find(std::string_view key) const;
};

struct Namespace {
  Fields fields;
};

struct Loop {
  Value items;  // a list
  int64_t index0 = 0;
};

// A macro, a global function ("range") or a method bound to its object ("x".split).
struct Callable {
  std::string name;
  const Node* macro = nullptr;  // owned by the template
  Value self;                   // undefined: not a method
};

// Python's ==. Numbers compare across types; bool equals 0 and 1.
bool equal(const Value& a, const Value& b);

}  // namespace sluice::text::jinja
