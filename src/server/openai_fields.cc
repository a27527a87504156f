// SPDX-License-Identifier: Apache-2.0
#include "server/openai_fields.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

void check_model_name(Fields& fields, const ServedModel& model) {
  const auto name = fields.string("model");
  if (!name || model.has_name(*name)) return;
  throw ApiError(404, "invalid_request_error",
                 fmt::format("model is {}; this server has {}", io::quote(*name), fmt::join(model.names, ", ")),
                 "model", "model_not_found");
}

std::optional<std::string> read_rid(Fields& fields, std::string_view key) {
  auto rid = fields.string(key);
  if (rid && (rid->empty() || rid->size() > 256))
    fields.refuse(key, fmt::format("has {} bytes; accepted: 1 to 256", rid->size()));
  return rid;
}

Job name_job(Fields& fields, Service& service, std::string_view prefix, RequestIdIn id) {
  const auto rid = read_rid(fields, "rid"), request_id = read_rid(fields, "request_id");
  if (rid && request_id && *rid != *request_id) fields.refuse("request_id", "and rid differ; accepted: one of them");
  Job job;
  job.id =
      request_id ? std::string(id == RequestIdIn::alone ? "" : prefix).append(*request_id) : service.new_id(prefix);
  const std::string name = rid ? *rid : request_id.value_or("");
  if (!name.empty()) job.names.push_back({name, true});
  if (name != job.id) job.names.push_back({job.id});
  return job;
}

StreamOptions read_stream_options(Fields& fields, UnknownFields& unknown) {
  StreamOptions out;
  out.stream = fields.boolean("stream").value_or(false);
  const io::JsonValue* options = fields.find("stream_options");
  if (options == nullptr) return out;
  if (options->as<io::JsonValue::Object>() == nullptr)
    fields.refuse_type("stream_options", *options, "an object with include_usage");
  if (!out.stream) fields.refuse("stream_options", "is given, but stream is not true");
  Fields inner(*options, "stream_options.");
  out.usage = inner.boolean("include_usage").value_or(false);
  out.continuous = inner.boolean("continuous_usage_stats").value_or(false);
  inner.ignore({"include_obfuscation"});  // pads chunks against eavesdroppers; a local server has none to pad for
  inner.finish(unknown);
  return out;
}

MoreLogprobs read_more_logprobs(Fields& fields, int64_t vocab, bool stream, engine::Params& params) {
  MoreLogprobs out;
  if (const auto top = fields.integer("prompt_logprobs", 0, engine::kMaxTopLogprobs)) {
    if (stream) fields.refuse("prompt_logprobs", "is given with stream true; accepted: whole answers only");
    out.prompt = static_cast<int>(*top);
    params.prompt_logprobs_from = 0;
    params.top_logprobs = std::max(params.top_logprobs, *out.prompt);
  }
  params.logprob_tokens = fields.token_ids("logprob_token_ids", engine::kMaxLogprobTokens, vocab);
  out.named = !params.logprob_tokens.empty();
  if (out.named && !params.logprobs) fields.refuse("logprob_token_ids", "is given, but logprobs is not");
  out.token_ids = fields.boolean("return_token_ids").value_or(false);
  if (fields.boolean("return_tokens_as_token_ids").value_or(false)) out.names = TokenNames::id;
  return out;
}

void pass_over_metadata(Fields& fields) {
  fields.ignore(
      {"user", "metadata", "store", "safety_identifier", "prompt_cache_key", "prompt_cache_retention", "log_metrics"});
  fields.accept_only("service_tier", {"auto", "default"});
}

void refuse_tools(Fields& fields) {
  fields.refuse_unless_empty({"tools"});                // before what says how to use them
  fields.accept_only("tool_choice", {"none", "auto"});  // without tools both say nothing
  fields.ignore({"parallel_tool_calls"});
}

void refuse_what_is_not_there(Fields& fields) {
  fields.refuse_unless_empty({"functions"});  // before what says how to use them
  pass_over_metadata(fields);
  fields.accept_only("function_call", {"none", "auto"});
  if (const io::JsonValue* m = fields.find("modalities")) {
    const auto* list = m->as<io::JsonValue::Array>();
    const auto* only = list != nullptr && list->size() == 1 ? list->front().as<std::string>() : nullptr;
    if (only == nullptr || *only != "text")
      fields.refuse("modalities", "has more than \"text\"", "unsupported_parameter");
  }
  fields.refuse_unless_empty({"audio", "prediction", "web_search_options", "chat_template", "stop_regex",
                              "custom_logit_processor", "return_hidden_states", "return_routed_experts", "lora_path",
                              "session_params", "use_beam_search", "truncate_prompt_tokens"});
  fields.refuse_unless_neutral("verbosity", io::JsonValue{"medium"});
  fields.refuse_unless_neutral("length_penalty", io::JsonValue{1.0});
}

}  // namespace sluice::server
