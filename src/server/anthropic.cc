// SPDX-License-Identifier: Apache-2.0
// POST /v1/messages, /v1/messages/count_tokens: Anthropic's Messages API.
#include <algorithm>
#include <utility>

#include "io/quote.h"
#include "server/anthropic_request.h"
#include "server/anthropic_writer.h"
#include "server/api_error.h"
#include "server/chat_job.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/params.h"
#include "server/refusal_reasons.h"
#include "server/request_options.h"

namespace sluice::server {

namespace {
// What the two endpoints share.
ChatPrompt read_chat(Fields& fields, const Service& service, const ServedModel& model) {
  check_model_name(fields, model);
  fields.refuse_unless_empty({"mcp_servers", "container"});
  const io::JsonValue* thread = fields.find("thread");
  if (thread != nullptr && (thread->as<bool>() == nullptr || *thread->as<bool>()))
    fields.refuse("thread", "asks for a conversation that the server keeps; accepted: false, with all messages",
                  kNoThreads);
  ToolRequest tools = read_tools(fields, model, service.formats().calls, anthropic_tools());
  const io::JsonValue chat = read_anthropic_chat(fields);
  return render_translated(model, chat, std::move(tools), "messages");
}

// {"edits": [...]}: what to drop of a long conversation. Its thoughts may be told to stay.
void read_context_management(Fields& fields, UnknownFields& unknown) {
  const io::JsonValue* given = fields.find("context_management");
  if (given == nullptr) return;
  if (given->as<io::JsonValue::Object>() == nullptr)
    fields.refuse_type("context_management", *given, "an object with edits");
  Fields inner(*given, "context_management.");
  const io::JsonValue* edits = inner.find("edits");
  inner.finish(unknown);
  if (edits == nullptr) return;
  const auto* list = edits->as<io::JsonValue::Array>();
  if (list == nullptr) inner.refuse_type("edits", *edits, "an array");
  const auto drops_nothing = [](const io::JsonValue& edit) {
    const io::JsonValue *type = edit.find("type"), *keep = edit.find("keep");
    return type != nullptr && keep != nullptr && *type == io::JsonValue{"clear_thinking_20251015"} &&
           *keep == io::JsonValue{"all"};
  };
  if (!std::all_of(list->begin(), list->end(), drops_nothing))
    unknown.meet("context_management.edits", refusal_reason("context_management"));
}

// What the answer must be: in "output_config", and in "output_format", as betas had it.
void read_output(Fields& fields, UnknownFields& unknown, ChatDemand& demand) {
  const auto take = [&](const io::JsonValue& format, const std::string& path) {
    auto constraint = read_format(format, path, anthropic_format(), unknown);
    if (demand.constraint)
      refuse(path, fmt::format("{} is given beside {}; accepted: one of them", path, demand.constraint->field));
    demand.constraint = std::move(constraint);
  };
  if (const io::JsonValue* config = fields.find("output_config")) {
    if (config->as<io::JsonValue::Object>() == nullptr)
      fields.refuse_type("output_config", *config, "an object with a format");
    Fields inner(*config, "output_config.");
    inner.ignore({"effort"});  // which read_anthropic_chat() has read
    if (const io::JsonValue* format = inner.find("format")) take(*format, "output_config.format");
    inner.finish(unknown);
  }
  if (const io::JsonValue* format = fields.find("output_format")) take(*format, "output_format");
}

constexpr ParamNames kNames{"max_tokens", "", "min_tokens", "seed", std::nullopt, "", 1};

}  // namespace

void anthropic_messages(Service& service, const ExchangePtr& exchange) {
  AnswerRequest given(service, *exchange);
  auto& [model, limits, body, fields] = given;
  const ChatPrompt prompt = read_chat(fields, service, *model);
  Job job = name_job(fields, service, "msg_");
  job.stream = fields.boolean("stream").value_or(false);
  engine::Request request;
  request.params = read_params(fields, kNames, *model, limits.vocab, service.next_seed());
  if (!request.params.max_tokens || *request.params.max_tokens < 1)
    fields.refuse("max_tokens", "is missing or 0; accepted: 1 or more");
  for (std::string& stop : fields.string_or_strings("stop_sequences", engine::kMaxStopStrings)) {
    if (stop.empty() || stop.size() > engine::kMaxStopBytes)
      fields.refuse("stop_sequences",
                    fmt::format("has a string of {} bytes; accepted: 1 to {}", stop.size(), engine::kMaxStopBytes));
    request.params.stop.push_back(std::move(stop));
  }
  if (request.params.stop.size() > engine::kMaxStopStrings)
    fields.refuse("stop_sequences", fmt::format("and stop have {} strings; accepted: at most {}",
                                                request.params.stop.size(), engine::kMaxStopStrings));
  read_request_options(fields, service.config(), request);
  fields.accept_only("service_tier", {"auto", "standard_only"});
  fields.ignore({"metadata", "cache_control"});  // what can be cached is
  read_context_management(fields, service.unknown_fields());
  ChatDemand demand{.call_ids = "toolu_"};
  read_output(fields, service.unknown_fields(), demand);
  fields.finish(service.unknown_fields());

  PreparedChat prepared = prepare_chat(service, *model, limits, prompt, std::move(request), demand);
  job.writer = std::make_unique<MessageWriter>(model, job.id, prepared.reading);
  job.requests.push_back(std::move(prepared.request));
  start_generation(service, exchange, std::move(job));
}

void anthropic_count_tokens(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  const ChatPrompt prompt = read_chat(fields, service, *model);
  read_context_management(fields, service.unknown_fields());
  fields.ignore({"cache_control"});
  ChatDemand demand;  // changes no prompt
  read_output(fields, service.unknown_fields(), demand);
  fields.finish(service.unknown_fields());
  const auto ids = chat_prompt_ids(*model, service.engine()->limits(), prompt, "messages");
  exchange->reply({.body = JsonObject().add("input_tokens", ids.size()).str()});
}

}  // namespace sluice::server
