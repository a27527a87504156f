// SPDX-License-Identifier: Apache-2.0
#include "io/template_value.h"

namespace sluice::io {

using text::jinja::Value;

Value to_template_value(const JsonValue& json, const text::SpecialGuard& guard) {
  if (const auto* b = json.as<bool>()) return *b;
  if (const auto* i = json.as<int64_t>()) return *i;
  if (const auto* d = json.as<double>()) return *d;
  if (const auto* s = json.as<std::string>()) return guard.guard(*s);
  if (const auto* a = json.as<JsonValue::Array>()) {
    text::jinja::Items items;
    for (const JsonValue& v : *a) items.push_back(to_template_value(v, guard));
    return Value::list(std::move(items));
  }
  if (const auto* o = json.as<JsonValue::Object>()) {
    text::jinja::Fields fields;
    for (const JsonMember& m : *o) fields.emplace_back(guard.guard(m.key), to_template_value(m.value, guard));
    return Value::dict(std::move(fields));
  }
  return nullptr;
}

}  // namespace sluice::io
