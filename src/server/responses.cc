// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses: OpenAI's Responses API, without a memory: nothing is stored, nothing can be fetched later.
#include <algorithm>
#include <utility>

#include "io/json_text.h"
#include "io/quote.h"
#include "server/api_error.h"
#include "server/chat_job.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/params.h"
#include "server/request_options.h"
#include "server/responses_request.h"
#include "server/responses_writer.h"

namespace sluice::server {

namespace {
void accept_only(Fields& fields, const char* key, std::initializer_list<std::string_view> values) {
  const auto value = fields.string(key);
  if (value && std::find(values.begin(), values.end(), *value) == values.end())
    fields.refuse(key, fmt::format("is {}, which is not supported by this server", io::quote(*value)),
                  "unsupported_parameter");
}

// {"format": {"type": "text" | "json_object" | "json_schema", "schema"}}
void read_text_format(Fields& fields, UnknownFields& unknown, ChatDemand& demand, ResponseEcho& echo) {
  const io::JsonValue* text = fields.find("text");
  if (text == nullptr) return;
  if (text->as<io::JsonValue::Object>() == nullptr) fields.refuse_type("text", *text, "an object with a format");
  Fields inner(*text, "text.");
  inner.refuse_unless_neutral("verbosity", io::JsonValue{"medium"});
  const io::JsonValue* given = inner.find("format");
  inner.finish(unknown);
  if (given == nullptr) return;
  if (given->as<io::JsonValue::Object>() == nullptr) inner.refuse_type("format", *given, "an object with a type");
  Fields format(*given, "text.format.");
  const std::string type = format.string("type").value_or("");
  if (type == "json_object") {
    demand.constraint = any_object_constraint("text.format");
  } else if (type == "json_schema") {
    format.ignore({"name", "description"});
    format.boolean("strict");  // the schema is kept either way
    const io::JsonValue* schema = format.find("schema");
    if (schema == nullptr) format.refuse("schema", "is missing; accepted: a JSON schema");
    demand.constraint = schema_constraint(*schema, "text.format.schema");
  } else if (type != "text") {
    format.refuse("type", fmt::format("is {}; accepted: text, json_object, json_schema", io::quote(type)),
                  "unsupported_parameter");
  }
  format.finish(unknown);
  echo.format = io::to_json_line(*given);
}

// {"effort", "summary"}. A summary says nothing here: thoughts come as they are.
std::optional<std::string> read_effort(Fields& fields, UnknownFields& unknown) {
  const io::JsonValue* reasoning = fields.find("reasoning");
  if (reasoning == nullptr) return std::nullopt;
  if (reasoning->as<io::JsonValue::Object>() == nullptr) fields.refuse_type("reasoning", *reasoning, "an object");
  Fields inner(*reasoning, "reasoning.");
  const std::optional<std::string> effort = inner.string("effort");
  if (effort) check_effort(inner, "effort", *effort);
  inner.ignore({"summary", "generate_summary"});
  inner.finish(unknown);
  return effort;
}

ResponseEcho read_echo(Fields& fields, const engine::Params& params) {
  ResponseEcho echo;
  if (const io::JsonValue* v = fields.find("instructions")) echo.instructions = io::to_json_line(*v);
  if (const io::JsonValue* v = fields.find("metadata")) echo.metadata = io::to_json_line(*v);
  if (const io::JsonValue* v = fields.find("user")) echo.user = io::to_json_line(*v);
  if (const io::JsonValue* v = fields.find("tools")) echo.tools = io::to_json_line(*v);
  if (const io::JsonValue* v = fields.find("tool_choice")) echo.tool_choice = io::to_json_line(*v);
  echo.max_output_tokens = params.max_tokens;
  echo.temperature = params.sampling.temperature;
  echo.top_p = params.sampling.top_p;
  echo.parallel_tool_calls = fields.boolean("parallel_tool_calls").value_or(true);
  return echo;
}

// What an answer is to have in addition. Thoughts come in plain text, and are taken back as such: nothing needs to be
// encrypted for a client that keeps the conversation itself.
ResponseLogprobs read_include(Fields& fields) {
  ResponseLogprobs out;
  for (const std::string& what : fields.string_or_strings("include", 16)) {
    if (what == "message.output_text.logprobs")
      out.wanted = true;
    else if (what != "reasoning.encrypted_content")
      fields.refuse(
          "include",
          fmt::format("has {}; accepted: message.output_text.logprobs, reasoning.encrypted_content", io::quote(what)),
          "unsupported_parameter");
  }
  out.top = static_cast<int>(fields.integer("top_logprobs", 0, engine::kMaxTopLogprobs).value_or(0));
  if (out.top > 0 && !out.wanted)
    fields.refuse("top_logprobs",
                  fmt::format("is {}, but include does not have \"message.output_text.logprobs\"", out.top));
  return out;
}

constexpr ParamNames kNames{"max_output_tokens", "", "min_tokens", "seed", std::nullopt};
}  // namespace

void responses(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const engine::Limits limits = service.engine()->limits();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);
  fields.refuse_unless_empty(
      {"previous_response_id", "conversation", "background", "prompt", "max_tool_calls", "context_management"});
  const ResponseLogprobs logprobs = read_include(fields);
  accept_only(fields, "truncation", {"disabled"});
  accept_only(fields, "service_tier", {"auto", "default"});
  ToolRequest tools = read_tools(fields, *model, service.formats().calls, responses_tools());
  io::JsonValue chat = read_responses_chat(fields);
  const std::optional<std::string> effort = read_effort(fields, service.unknown_fields());
  if (effort) std::get<io::JsonValue::Object>(chat.value).push_back(text_member("reasoning_effort", *effort));
  const ChatPrompt prompt = render_translated(*model, chat, std::move(tools), "input");
  Job job = name_job(fields, service, "resp_", RequestIdIn::alone);
  job.stream = fields.boolean("stream").value_or(false);
  engine::Request request;
  request.params = read_params(fields, kNames, *model, limits.vocab, service.next_seed());
  if (request.params.n != 1) fields.refuse("n", "is not 1; accepted: 1");
  request.params.logprobs = logprobs.wanted;
  request.params.top_logprobs = logprobs.top;
  ResponseEcho echo = read_echo(fields, request.params);
  if (effort) echo.effort = io::quote(*effort);
  ChatDemand demand{.field = "input"};
  read_request_options(fields, service.config(), request);
  read_text_format(fields, service.unknown_fields(), demand, echo);
  // Nothing is stored, whatever it says; the rest says nothing about the answer.
  fields.ignore({"store", "metadata", "user", "safety_identifier", "prompt_cache_key", "prompt_cache_retention",
                 "stream_options"});
  fields.finish(service.unknown_fields());

  PreparedChat prepared = prepare_chat(service, *model, limits, prompt, std::move(request), demand);
  job.writer = std::make_unique<ResponseWriter>(model, job.id, std::move(echo), logprobs, prepared.reading);
  job.requests.push_back(std::move(prepared.request));
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
