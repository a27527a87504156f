// SPDX-License-Identifier: Apache-2.0
#include "server/openai_fields.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

void check_model_name(Fields& fields, const ServedModel& model) {
  const auto name = fields.string("model");
  if (!name || std::find(model.names.begin(), model.names.end(), *name) != model.names.end()) return;
  throw ApiError(404, "invalid_request_error",
                 fmt::format("model is {}; this server has {}", io::quote(*name), fmt::join(model.names, ", ")),
                 "model", "model_not_found");
}

std::string read_rid(Fields& fields, const std::string& otherwise) {
  const auto rid = fields.string("rid");
  if (!rid) return otherwise;
  if (rid->empty() || rid->size() > 256)
    fields.refuse("rid", fmt::format("has {} bytes; accepted: 1 to 256", rid->size()));
  return *rid;
}

StreamOptions read_stream_options(Fields& fields) {
  StreamOptions out;
  out.stream = fields.boolean("stream").value_or(false);
  const io::JsonValue* options = fields.find("stream_options");
  if (options == nullptr) return out;
  if (options->as<io::JsonValue::Object>() == nullptr)
    fields.refuse_type("stream_options", *options, "an object with include_usage");
  if (!out.stream) fields.refuse("stream_options", "is given, but stream is not true");
  Fields inner(*options, "stream_options.");
  out.usage = inner.boolean("include_usage").value_or(false);
  inner.ignore({"include_obfuscation"});  // pads chunks against eavesdroppers; a local server has none to pad for
  inner.finish();
  return out;
}

namespace {
void read_response_format(Fields& fields) {
  const io::JsonValue* format = fields.find("response_format");
  if (format == nullptr) return;
  const io::JsonValue* type = format->find("type");
  const auto* name = type == nullptr ? nullptr : type->as<std::string>();
  if (name == nullptr || *name != "text")
    fields.refuse("response_format",
                  fmt::format("has the type {}; accepted: \"text\", constrained output is not supported",
                              type == nullptr ? "null" : io::describe(*type)),
                  "unsupported_parameter");
}

void accept_only(Fields& fields, std::string_view key, std::initializer_list<std::string_view> values) {
  const auto value = fields.string(key);
  if (value && std::find(values.begin(), values.end(), *value) == values.end())
    fields.refuse(key, fmt::format("is {}; accepted: {}", io::quote(*value), fmt::join(values, ", ")),
                  "unsupported_parameter");
}
}  // namespace

void refuse_what_is_not_there(Fields& fields) {
  fields.ignore({"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                 "parallel_tool_calls", "log_metrics", "priority"});
  accept_only(fields, "service_tier", {"auto", "default"});
  accept_only(fields, "tool_choice", {"none", "auto"});  // without tools both say nothing
  accept_only(fields, "function_call", {"none", "auto"});
  read_response_format(fields);
  if (const io::JsonValue* m = fields.find("modalities")) {
    const auto* list = m->as<io::JsonValue::Array>();
    const auto* only = list != nullptr && list->size() == 1 ? list->front().as<std::string>() : nullptr;
    if (only == nullptr || *only != "text")
      fields.refuse("modalities", "has more than \"text\"", "unsupported_parameter");
  }
  fields.refuse_unless_empty({"tools",
                              "functions",
                              "audio",
                              "prediction",
                              "web_search_options",
                              "reasoning_effort",
                              "verbosity",
                              "chat_template",
                              "regex",
                              "ebnf",
                              "json_schema",
                              "structural_tag",
                              "stop_regex",
                              "guided_json",
                              "guided_regex",
                              "guided_choice",
                              "guided_grammar",
                              "structured_outputs",
                              "bad_words",
                              "allowed_token_ids",
                              "custom_logit_processor",
                              "return_hidden_states",
                              "return_routed_experts",
                              "lora_path",
                              "session_params",
                              "continue_final_message",
                              "use_beam_search",
                              "truncate_prompt_tokens"});
}

}  // namespace sluice::server
