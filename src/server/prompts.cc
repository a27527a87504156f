// SPDX-License-Identifier: Apache-2.0
#include "server/prompts.h"

#include "server/api_error.h"

namespace sluice::server {

using io::JsonValue;

void check_bytes(std::string_view field, size_t bytes, const text::Tokenizer& tokenizer, int64_t context) {
  const size_t most = tokenizer.most_bytes_of_an_id();
  if (most == 0 || bytes / most <= static_cast<size_t>(context)) return;
  refuse(
      field,
      fmt::format("{} is longer than the model's context length of {} tokens: it has {} bytes, and a token at most {}",
                  field, context, bytes, most),
      "context_length_exceeded");
}

void check_enough(std::string_view field, size_t ids, int64_t context) {
  if (ids > static_cast<size_t>(context))
    refuse(field, fmt::format("{} is longer than the model's context length of {} tokens", field, context),
           "context_length_exceeded");
}

namespace {
// What makes ids of a text.
struct Encoder {
  const text::Tokenizer& tokenizer;
  bool add_special_tokens;
};

Prompt encode(std::string_view field, std::string text, const Encoder& encoder, int64_t context) {
  check_bytes(field, text.size(), encoder.tokenizer, context);
  Prompt p{encoder.tokenizer.encode(
               text, {.add_special_tokens = encoder.add_special_tokens, .enough = static_cast<size_t>(context)}),
           std::move(text)};
  if (encoder.add_special_tokens) p.before = encoder.tokenizer.prefix_size(), p.after = encoder.tokenizer.suffix_size();
  if (p.ids.empty()) refuse(field, fmt::format("{} is empty; at least one token is needed", field));
  check_enough(field, p.ids.size(), context);
  return p;
}
}  // namespace

namespace {
Prompt read_ids(Fields& fields, std::string_view key, const JsonValue::Array& array, int64_t vocab, bool may_be_empty) {
  Prompt p;
  if (array.empty() && !may_be_empty) fields.refuse(key, "is empty; at least one token is needed");
  p.ids.reserve(array.size());
  for (const JsonValue& item : array) {
    const auto* id = item.as<int64_t>();
    if (id == nullptr || *id < 0 || *id >= vocab)
      fields.refuse(key, fmt::format("holds {}; accepted: token ids from 0 to {}", io::describe(item), vocab - 1));
    p.ids.push_back(static_cast<int32_t>(*id));
  }
  return p;
}

std::vector<Prompt> read_several(Fields& fields, std::string_view key, const JsonValue::Array& array,
                                 const Encoder* encoder, const engine::Limits& limits, bool may_be_empty) {
  if (array.size() > kMaxPrompts)
    fields.refuse(key, fmt::format("has {} prompts; accepted: at most {}", array.size(), kMaxPrompts));
  std::vector<Prompt> out;
  for (const JsonValue& item : array) {
    if (const auto* ids = item.as<JsonValue::Array>())
      out.push_back(read_ids(fields, key, *ids, limits.vocab, may_be_empty));
    else if (const auto* text = item.as<std::string>(); text != nullptr && encoder != nullptr)
      out.push_back(encode(key, *text, *encoder, limits.context_length));
    else
      fields.refuse(key, fmt::format("holds {} beside other prompts", io::describe(item)));
  }
  return out;
}

std::vector<Prompt> read(Fields& fields, std::string_view key, const Encoder* encoder, const engine::Limits& limits,
                         bool may_be_empty = false) {
  const JsonValue* value = fields.find(key);
  const std::string accepted =
      encoder != nullptr ? "a string, an array of strings, or token ids" : "token ids, or an array of arrays of them";
  if (value == nullptr) fields.refuse(key, "is missing; accepted: " + accepted);
  if (const auto* text = value->as<std::string>(); text != nullptr && encoder != nullptr)
    return {encode(key, *text, *encoder, limits.context_length)};
  const auto* array = value->as<JsonValue::Array>();
  if (array == nullptr || array->empty()) fields.refuse_type(key, *value, accepted);
  const JsonValue& first = array->front();
  if (first.as<std::string>() != nullptr || first.as<JsonValue::Array>() != nullptr)
    return read_several(fields, key, *array, encoder, limits, may_be_empty);
  return {read_ids(fields, key, *array, limits.vocab, may_be_empty)};
}
}  // namespace

std::vector<Prompt> read_prompts(Fields& fields, std::string_view key, const text::Tokenizer& tokenizer,
                                 const engine::Limits& limits, bool add_special_tokens) {
  const Encoder encoder{tokenizer, add_special_tokens};
  return read(fields, key, &encoder, limits);
}

std::vector<Prompt> read_id_prompts(Fields& fields, std::string_view key, int64_t vocab, bool may_be_empty) {
  return read(fields, key, nullptr, {.vocab = vocab}, may_be_empty);
}

void check_choices(size_t prompts, int64_t n, std::string_view field) {
  const int64_t choices = static_cast<int64_t>(prompts) * n;
  if (choices > static_cast<int64_t>(kMaxPrompts))
    refuse(field, fmt::format("{} is {} for {} prompts; accepted: at most {} answers to a request", field, n, prompts,
                              kMaxPrompts));
}

}  // namespace sluice::server
