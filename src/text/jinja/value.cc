// SPDX-License-Identifier: Apache-2.0
#include "text/jinja/value.h"

#include <algorithm>

#include "base/error.h"

namespace sluice::text::jinja {
namespace {

constexpr size_t kIndexFrom = 16;  // smaller dictionaries are quicker to walk

// Takes the value in: what its container has to know about it.
template <class Container>
void account(Container& c, const Value& v) {
  c.nesting = std::max(c.nesting, 1 + v.nesting());
  check(c.nesting <= kMaxNesting, "a value of the chat template is nested more than {} levels deep", kMaxNesting);
  c.weight += v.weight();
  check(c.weight <= kMaxWeight, "a value of the chat template is made of more than {} parts", kMaxWeight);
  c.transient = c.transient || v.is_transient();
}

}  // namespace

Value Value::list(Items items, bool is_tuple) {
  auto list = std::make_shared<List>();
  for (const Value& v : items) account(*list, v);
  list->items = std::move(items);
  list->is_tuple = is_tuple;
  Value out;
  out.data_ = std::shared_ptr<const List>(std::move(list));
  return out;
}

Value Value::dict(Fields fields) {
  auto dict = std::make_shared<Dict>();
  std::unordered_map<std::string, size_t> seen;
  for (auto& [key, value] : fields) {
    account(*dict, value);
    const auto [it, is_new] = seen.try_emplace(key, dict->fields.size());
    if (is_new) {
      dict->fields.emplace_back(std::move(key), std::move(value));
    } else {
      dict->fields[it->second].second = std::move(value);
    }
  }
  if (dict->fields.size() >= kIndexFrom)
    for (size_t i = 0; i < dict->fields.size(); ++i) dict->index.emplace(dict->fields[i].first, i);
  Value out;
  out.data_ = std::shared_ptr<const Dict>(std::move(dict));
  return out;
}

Value Value::undefined(std::string_view name) {
  Value out;
  out.data_ = Undefined{std::make_shared<const std::string>(name)};
  return out;
}

const Items& Value::items() const { return std::get<std::shared_ptr<const List>>(data_)->items; }
bool Value::is_tuple() const { return is(Kind::list) && std::get<std::shared_ptr<const List>>(data_)->is_tuple; }
const Dict& Value::fields() const { return *std::get<std::shared_ptr<const Dict>>(data_); }

std::string_view Value::undefined_name() const {
  const auto& name = std::get<Undefined>(data_).name;
  return name ? std::string_view(*name) : "a value";
}

int64_t Value::integer() const { return is(Kind::boolean) ? boolean() : std::get<int64_t>(data_); }

double Value::real() const { return is(Kind::real) ? std::get<double>(data_) : static_cast<double>(integer()); }

bool Value::truth() const {
  switch (kind()) {
    case Kind::undefined:
    case Kind::none:
      return false;
    case Kind::boolean:
    case Kind::integer:
      return integer() != 0;
    case Kind::real:
      return real() != 0;
    case Kind::string:
      return !string().empty();
    case Kind::list:
      return !items().empty();
    case Kind::dict:
      return !fields().fields.empty();
    case Kind::name_space:
    case Kind::loop:
    case Kind::callable:
      return true;
  }
  return false;
}

std::string_view Value::kind_name() const {
  switch (kind()) {
    case Kind::undefined:
      return "undefined";
    case Kind::none:
      return "None";
    case Kind::boolean:
      return "bool";
    case Kind::integer:
      return "int";
    case Kind::real:
      return "float";
    case Kind::string:
      return "str";
    case Kind::list:
      return is_tuple() ? "tuple" : "list";
    case Kind::dict:
      return "dict";
    case Kind::name_space:
      return "namespace";
    case Kind::loop:
      return "loop";
    case Kind::callable:
      return "function";
  }
  return "?";
}

int Value::nesting() const {
  if (is(Kind::list)) return std::get<std::shared_ptr<const List>>(data_)->nesting;
  return is(Kind::dict) ? fields().nesting : 0;
}

int64_t Value::weight() const {
  if (is(Kind::list)) return std::get<std::shared_ptr<const List>>(data_)->weight;
  if (is(Kind::dict)) return fields().weight;
  return is(Kind::string) ? 1 + static_cast<int64_t>(string().size() / 32) : 1;
}

bool Value::is_transient() const {
  switch (kind()) {
    case Kind::name_space:
    case Kind::loop:
      return true;
    case Kind::callable:
      return callable().self.is_transient();
    case Kind::list:
      return std::get<std::shared_ptr<const List>>(data_)->transient;
    case Kind::dict:
      return fields().transient;
    default:
      return false;
  }
}

const Value* Dict::find(std::string_view key) const {
  if (!index.empty()) {
    const auto it = index.find(key);
    return it == index.end() ? nullptr : &fields[it->second].second;
  }
  for (const auto& [name, value] : fields)
    if (name == key) return &value;
  return nullptr;
}

bool equal(const Value& a, const Value& b) {
  using Kind = Value::Kind;
  if (a.is_number() && b.is_number()) {
    if (a.is(Kind::real) || b.is(Kind::real)) return a.real() == b.real();
    return a.integer() == b.integer();
  }
  if (a.kind() != b.kind()) return false;
  switch (a.kind()) {
    case Kind::undefined:
    case Kind::none:
      return true;
    case Kind::string:
      return a.string() == b.string();
    case Kind::list:
      return a.is_tuple() == b.is_tuple() &&
             std::equal(a.items().begin(), a.items().end(), b.items().begin(), b.items().end(), equal);
    case Kind::dict: {
      if (a.fields().fields.size() != b.fields().fields.size()) return false;
      return std::all_of(a.fields().fields.begin(), a.fields().fields.end(), [&](const auto& f) {
        const Value* other = b.fields().find(f.first);
        return other && equal(f.second, *other);
      });
    }
    case Kind::name_space:
      return &a.name_space() == &b.name_space();
    case Kind::loop:
      return &a.loop() == &b.loop();
    default:
      return &a.callable() == &b.callable();
  }
}

}  // namespace sluice::text::jinja
