// SPDX-License-Identifier: Apache-2.0
// Jinja's tests: value is name(argument).
#include "text/jinja/call.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/py_string.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

template <Kind... kKinds>
bool is_kind(const Value& v, Call& call) {
  call.bind({});
  return (v.is(kKinds) || ...);
}

bool is_defined(const Value& v, Call& call) { return !is_kind<Kind::undefined>(v, call); }

template <bool kValue>
bool is_boolean(const Value& v, Call& call) {
  call.bind({});
  return v.is(Kind::boolean) && v.boolean() == kValue;
}

template <int64_t kRemainder>
bool has_remainder(const Value& v, Call& call) {
  call.bind({});
  if (!v.is(Kind::integer) && !v.is(Kind::boolean)) call.refuse_subject(v, "an int");
  return (v.integer() % 2 != 0) == (kRemainder != 0);
}

bool divisible_by(const Value& v, Call& call) {
  call.bind({"num"});
  if (!v.is(Kind::integer) && !v.is(Kind::boolean)) call.refuse_subject(v, "an int");
  const int64_t by = call.integer(0);
  if (by == 0) call.refuse("divides by zero");
  return by == -1 || v.integer() % by == 0;  // INT64_MIN % -1 traps
}

template <bool kEqual>
bool is_equal(const Value& v, Call& call) {
  call.bind({"other"});
  call.run.charge(v.weight());
  return equal(v, call.value(0)) == kEqual;
}

// Identity of Python's objects is not modelled: this is for constants ("is sameas true").
bool is_same(const Value& v, Call& call) {
  call.bind({"other"});
  call.run.charge(v.weight());
  return v.kind() == call.value(0).kind() && equal(v, call.value(0));
}

// a < b with kSwap false; the rest by exchanging and negating.
template <bool kSwap, bool kNegate>
bool compares(const Value& v, Call& call) {
  call.bind({"other"});
  const Value& other = call.value(0);
  return call.run.less(kSwap ? other : v, kSwap ? v : other, kSwap != kNegate ? ">" : "<", call.line()) != kNegate;
}

bool is_in(const Value& v, Call& call) {
  call.bind({"seq"});
  return call.run.contains(call.value(0), v, call.line());
}

template <std::string (*kMap)(std::string_view)>
bool is_case(const Value& v, Call& call) {
  call.bind({});
  if (!v.is(Kind::string)) call.refuse_subject(v, "a str");
  return v.string() != (kMap == &upper ? lower : upper)(v.string()) && v.string() == kMap(v.string());
}

struct Row {
  std::string_view name;
  Test test;
};
constexpr Row kTests[] = {
    {"!=", is_equal<false>},
    {"<", compares<false, false>},
    {"<=", compares<true, true>},
    {"==", is_equal<true>},
    {">", compares<true, false>},
    {">=", compares<false, true>},
    {"boolean", is_kind<Kind::boolean>},
    {"callable", is_kind<Kind::callable, Kind::undefined>},
    {"defined", is_defined},
    {"divisibleby", divisible_by},
    {"eq", is_equal<true>},
    {"equalto", is_equal<true>},
    {"even", has_remainder<0>},
    {"false", is_boolean<false>},
    {"float", is_kind<Kind::real>},
    {"ge", compares<false, true>},
    {"greaterthan", compares<true, false>},
    {"gt", compares<true, false>},
    {"in", is_in},
    {"integer", is_kind<Kind::integer>},
    {"iterable", is_kind<Kind::string, Kind::list, Kind::dict, Kind::undefined, Kind::loop>},
    {"le", compares<true, true>},
    {"lessthan", compares<false, false>},
    {"lower", is_case<lower>},
    {"lt", compares<false, false>},
    {"mapping", is_kind<Kind::dict>},
    {"ne", is_equal<false>},
    {"none", is_kind<Kind::none>},
    {"number", is_kind<Kind::integer, Kind::real, Kind::boolean>},
    {"odd", has_remainder<1>},
    {"sameas", is_same},
    // "sequence" asks for a length and an index: strings and dictionaries have both.
    {"sequence", is_kind<Kind::string, Kind::list, Kind::dict, Kind::undefined>},
    {"string", is_kind<Kind::string>},
    {"true", is_boolean<true>},
    {"undefined", is_kind<Kind::undefined>},
    {"upper", is_case<upper>},
};

}  // namespace

Test find_test(std::string_view name) {
  for (const Row& row : kTests)
    if (row.name == name) return row.test;
  return nullptr;
}

}  // namespace sluice::text::jinja
