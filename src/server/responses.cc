// SPDX-License-Identifier: Apache-2.0
// POST /v1/responses: OpenAI's Responses API, without a memory: nothing is stored, nothing can be fetched later.
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
// {"format": {"type": "text" | "json_object" | "json_schema", "schema"}}
void read_text(Fields& fields, UnknownFields& unknown, ChatDemand& demand, ResponseEcho& echo) {
  const io::JsonValue* text = fields.find("text");
  if (text == nullptr) return;
  if (text->as<io::JsonValue::Object>() == nullptr) fields.refuse_type("text", *text, "an object with a format");
  Fields inner(*text, "text.");
  inner.refuse_unless_neutral("verbosity", io::JsonValue{"medium"});
  const io::JsonValue* format = inner.find("format");
  inner.finish(unknown);
  if (format == nullptr) return;
  demand.constraint = read_format(*format, "text.format", responses_format(), unknown);
  echo.format = io::to_json_line(*format);
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

constexpr ParamNames kNames{"max_output_tokens", "", "min_tokens", "seed", std::nullopt, "", 1};
}  // namespace

void responses(Service& service, const ExchangePtr& exchange) {
  AnswerRequest given(service, *exchange);
  auto& [model, limits, body, fields] = given;
  check_model_name(fields, *model);
  fields.refuse_unless_empty(
      {"previous_response_id", "conversation", "background", "prompt", "max_tool_calls", "context_management"});
  const ResponseLogprobs logprobs = read_include(fields);
  fields.accept_only("truncation", {"disabled"});
  ToolRequest tools = read_tools(fields, *model, service.formats().calls, responses_tools());
  io::JsonValue chat = read_responses_chat(fields);
  const std::optional<std::string> effort = read_effort(fields, service.unknown_fields());
  if (effort) std::get<io::JsonValue::Object>(chat.value).push_back(text_member("reasoning_effort", *effort));
  const ChatPrompt prompt = render_translated(*model, chat, std::move(tools), "input");
  Job job = name_job(fields, service, "resp_", RequestIdIn::alone);
  job.stream = fields.boolean("stream").value_or(false);
  engine::Request request;
  request.params = read_params(fields, kNames, *model, limits.vocab, service.next_seed());
  request.params.logprobs = logprobs.wanted;
  request.params.top_logprobs = logprobs.top;
  ResponseEcho echo = read_echo(fields, request.params);
  if (effort) echo.effort = io::quote(*effort);
  ChatDemand demand{.field = "input"};
  read_request_options(fields, service.config(), request);
  read_text(fields, service.unknown_fields(), demand, echo);
  pass_over_metadata(fields);  // nothing is stored, whatever "store" says
  fields.ignore({"stream_options"});
  fields.finish(service.unknown_fields());

  PreparedChat prepared = prepare_chat(service, *model, limits, prompt, std::move(request), demand);
  job.writer = std::make_unique<ResponseWriter>(model, job.id, std::move(echo), logprobs, prepared.reading);
  job.requests.push_back(std::move(prepared.request));
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
