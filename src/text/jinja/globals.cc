// SPDX-License-Identifier: Apache-2.0
// Functions that every template sees: Jinja's range, dict and namespace, transformers' raise_exception and
// strftime_now.
#include <algorithm>

#include "base/error.h"
#include "text/jinja/call.h"
#include "text/jinja/interpreter.h"
#include "text/jinja/value_text.h"
#include "text/utf8.h"

namespace sluice::text::jinja {
namespace {

using Kind = Value::Kind;

Value range(const Value&, Call& call) {
  call.bind({"start", "stop", "step"});
  const int64_t start = call.has(1) ? call.integer(0) : 0;
  const int64_t stop = call.integer(call.has(1) ? 1 : 0);
  const int64_t step = call.integer_or(2, 1);
  if (step == 0) call.refuse("has a step of zero");
  // 128 bits: stop - start may pass 64.
  const __int128 span = step > 0 ? static_cast<__int128>(stop) - start : static_cast<__int128>(start) - stop;
  const __int128 size = step > 0 ? static_cast<__int128>(step) : -static_cast<__int128>(step);
  const __int128 count = span <= 0 ? 0 : (span + size - 1) / size;
  call.run.charge(static_cast<int64_t>(std::min<__int128>(count, INT64_MAX)));
  Items items;
  items.reserve(static_cast<size_t>(count));
  for (int64_t i = 0; i < static_cast<int64_t>(count); ++i) items.emplace_back(start + i * step);
  return call.run.list(std::move(items));
}

// The named arguments, after those of a dict if there is one.
Fields fields_of(Call& call) {
  Fields fields;
  if (call.positional().size() > 1) call.refuse("takes one dict and named arguments");
  if (!call.positional().empty()) {
    if (!call.positional()[0].is(Kind::dict)) call.refuse_subject(call.positional()[0], "a dict and named arguments");
    fields = call.positional()[0].fields().fields;
  }
  fields.insert(fields.end(), call.named().begin(), call.named().end());
  call.run.charge(static_cast<int64_t>(fields.size()));
  return fields;
}

Value dict(const Value&, Call& call) { return Value::dict(fields_of(call)); }

Value name_space(const Value&, Call& call) {
  auto made = std::make_shared<Namespace>();
  made->fields = Value::dict(fields_of(call)).fields().fields;
  for (const auto& [name, value] : made->fields)
    if (value.is_transient()) call.refuse(fmt::format("cannot hold a {} as \"{}\"", value.kind_name(), name));
  return made;
}

Value raise_exception(const Value&, Call& call) {
  call.bind({"message"});
  fail(ErrorCode::invalid_argument, "the chat template refuses the messages: {}", to_text(call.value(0)));
}

Value strftime_now(const Value&, Call& call) {
  call.bind({"format"});
  if (!call.run.now()) call.refuse("has no date: none was given to the template");
  const std::string& format = call.text(0);
  if (format.size() > 256) call.refuse("takes a format of at most 256 bytes");
  char out[4096];
  const size_t n = std::strftime(out, sizeof out, format.c_str(), &*call.run.now());
  return call.run.text(to_valid_utf8(std::string_view(out, n)));
}

struct Row {
  std::string_view name;
  Function function;
};
constexpr Row kGlobals[] = {{"dict", dict},
                            {"namespace", name_space},
                            {"raise_exception", raise_exception},
                            {"range", range},
                            {"strftime_now", strftime_now}};

}  // namespace

Function find_global(std::string_view name) {
  for (const Row& row : kGlobals)
    if (row.name == name) return row.function;
  return nullptr;
}

}  // namespace sluice::text::jinja
