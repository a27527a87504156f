// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions
#include <algorithm>
#include <utility>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/chat_job.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/request_options.h"

namespace sluice::server {

namespace {
struct Form {
  bool logprobs = false;
  int top = 0;
  StreamOptions stream;
  MoreLogprobs more;
};

class ChatWriter final : public AnswerWriter {
 public:
  ChatWriter(std::shared_ptr<const ServedModel> model, std::string id, const engine::Request& request, Form form,
             const AnswerReading& reading)
      : model_(std::move(model)), id_(std::move(id)), form_(form) {
    if (form_.more.token_ids) prompt_ids_ = request.prompt;
    no_usage_.prompt_tokens = static_cast<int64_t>(request.prompt.size());
    for (int i = 0; i < request.params.n; ++i) choices_.emplace_back(reading);
  }

  std::string begin_stream() override {
    std::string out;
    for (size_t i = 0; i < choices_.size(); ++i)
      out += chunk(i, JsonObject().add("role", "assistant").add("content", "").raw("reasoning_content", "null").str(),
                   nullptr, Place::opening);
    return out;
  }

  std::string stream_event(size_t, const engine::Event& event) override {
    usage_.add(event);
    const auto index = static_cast<size_t>(event.choice);
    Choice& c = choices_[index];
    const std::vector<AnswerPart> parts = parts_of(c, event);
    std::vector<std::string> deltas;
    JsonObject first;
    size_t next = 0;
    const bool thinks = !parts.empty() && parts[0].kind == Kind::thought;
    first.raw("reasoning_content", thinks ? json_text(parts[next++].text) : "null");
    const bool says = next < parts.size() && parts[next].kind == Kind::content;
    if (says || parts.empty()) first.add("content", says ? parts[next++].text : "");
    const bool tokens = form_.more.token_ids && !event.tokens.empty();
    if (thinks || says || (parts.empty() && (!event.logprobs.empty() || tokens))) deltas.push_back(first.str());
    for (; next < parts.size(); ++next) deltas.push_back(delta_of(c, parts[next]));
    std::string out;
    for (size_t i = 0; i < deltas.size(); ++i)
      out += chunk(index, deltas[i], &event, i == 0 ? Place::first : Place::further);
    if (event.reason != engine::FinishReason::none)
      out += chunk(index, R"({"reasoning_content":null})", &event, Place::last);
    return out;
  }

  std::string end_stream() override {
    std::string out;
    if (form_.stream.usage)
      out = sse(head("chat.completion.chunk")
                    .raw("choices", "[]")
                    .raw("usage", usage_.json())
                    .raw("timings", usage_.timings())
                    .str());
    return out.append(kStreamDone);
  }

  void add(size_t, const engine::Event& event) override {
    usage_.add(event);
    Choice& c = choices_[static_cast<size_t>(event.choice)];
    for (AnswerPart& part : parts_of(c, event)) {
      if (part.kind == Kind::call)
        c.calls.push_back({std::move(part.call), ""});
      else
        (part.kind == Kind::thought   ? c.reasoning
         : part.kind == Kind::content ? c.text
                                      : c.calls.back().arguments) += part.text;
    }
    for (const auto& token : event.logprobs)
      c.logprobs.raw(token_logprob_json(*model_, token, form_.top, form_.more.names));
    if (form_.more.token_ids) c.ids.insert(c.ids.end(), event.tokens.begin(), event.tokens.end());
    prompt_logprobs_.insert(prompt_logprobs_.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    if (event.reason == engine::FinishReason::none) return;
    c.finish_reason = finish_reason(c, event);
    c.matched_stop = matched_stop_json(event);
  }

  std::string whole() override {
    JsonArray choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& c = choices_[i];
      JsonObject message;
      message.add("role", "assistant");
      message.raw("content", c.text.empty() && !c.calls.empty() ? "null" : json_text(c.text)).raw("refusal", "null");
      message.raw("reasoning_content", text_or_null(c.reasoning));  // there for clients that read it unasked
      if (!c.calls.empty()) {
        JsonArray calls;
        for (const WrittenCall& call : c.calls)
          calls.raw(JsonObject()
                        .add("id", call.id)
                        .add("type", "function")
                        .raw("function", JsonObject().add("name", call.name).add("arguments", call.arguments).str())
                        .str());
        message.raw("tool_calls", calls.str());
      }
      JsonObject choice;
      choice.add("index", i).raw("message", message.str());
      choice.raw("logprobs",
                 form_.logprobs ? JsonObject().raw("content", c.logprobs.str()).raw("refusal", "null").str() : "null");
      choice.raw("finish_reason", c.finish_reason).raw("matched_stop", c.matched_stop);
      if (form_.more.token_ids) choice.raw("token_ids", ids_json(c.ids));
      choices.raw(choice.str());
    }
    JsonObject out = head("chat.completion");
    out.raw("choices", choices.str()).raw("usage", usage_.json()).raw("timings", usage_.timings());
    out.raw("metadata", metadata_json());
    if (form_.more.token_ids) out.raw("prompt_token_ids", ids_json(prompt_ids_));
    if (form_.more.prompt)
      out.raw("prompt_logprobs", prompt_logprobs_json(*model_, prompt_logprobs_, *form_.more.prompt));
    return out.str();
  }

 private:
  using Kind = AnswerPart::Kind;
  struct Choice {
    explicit Choice(const AnswerReading& reading) : parser(reading) {}

    AnswerParser parser;
    std::string text, reasoning, finish_reason = "null", matched_stop = "null";
    std::vector<WrittenCall> calls;
    int64_t calls_sent = 0;
    JsonArray logprobs;
    std::vector<int32_t> ids;
  };
  // The place of a chunk among those of one event. What belongs to the event's tokens goes with the first.
  enum class Place : uint8_t { opening, first, further, last };

  static std::string text_or_null(const std::string& text) { return text.empty() ? "null" : json_text(text); }

  std::vector<AnswerPart> parts_of(Choice& c, const engine::Event& event) {
    const int64_t before = c.parser.thought_tokens();
    std::vector<AnswerPart> parts = c.parser.push(event);
    usage_.reasoning += c.parser.thought_tokens() - before;
    return parts;
  }

  // OpenAI's way of a call: what it is, then its arguments.
  static std::string delta_of(Choice& c, const AnswerPart& part) {
    JsonObject delta, entry, function;
    if (part.kind == Kind::thought) return delta.add("reasoning_content", part.text).str();
    delta.raw("reasoning_content", "null");
    if (part.kind == Kind::content) return delta.add("content", part.text).str();
    if (part.kind == Kind::call) {
      entry.add("index", c.calls_sent++).add("id", part.call.id).add("type", "function");
      function.add("name", part.call.name).add("arguments", "");
    } else {
      entry.add("index", c.calls_sent - 1);
      function.add("arguments", part.text);
    }
    return delta.raw("tool_calls", JsonArray().raw(entry.raw("function", function.str()).str()).str()).str();
  }

  // An answer that ended by itself and has calls waits for their results. One that was cut says so: a call may miss.
  static std::string finish_reason(const Choice& c, const engine::Event& event) {
    return c.parser.calls() > 0 && event.reason == engine::FinishReason::stop ? "\"tool_calls\""
                                                                              : finish_reason_json(event.reason);
  }

  JsonObject head(const char* object) const {
    JsonObject out;
    out.add("id", id_).add("object", object).add("created", created_).add("model", model_->names[0]);
    return out;
  }

  std::string logprobs_json(const std::vector<sampling::TokenLogprob>& tokens) const {
    if (!form_.logprobs || tokens.empty()) return "null";
    JsonArray content;
    for (const auto& token : tokens) content.raw(token_logprob_json(*model_, token, form_.top, form_.more.names));
    return JsonObject().raw("content", content.str()).raw("refusal", "null").str();
  }

  // event: nullptr for the opening. The last chunk says why it is the last; what the event brought came before it.
  std::string chunk(size_t index, const std::string& delta, const engine::Event* event, Place place) const {
    const bool first = place == Place::first, last = place == Place::last;
    JsonObject choice;
    choice.add("index", index).raw("delta", delta);
    choice.raw("logprobs", first ? logprobs_json(event->logprobs) : "null");
    choice.raw("finish_reason", last ? finish_reason(choices_[index], *event) : "null");
    if (last) choice.raw("matched_stop", matched_stop_json(*event));
    if (form_.more.token_ids && first) choice.raw("token_ids", ids_json(event->tokens));
    JsonObject out = head("chat.completion.chunk");
    out.raw("choices", JsonArray().raw(choice.str()).str());
    if (last) out.raw("metadata", metadata_json());
    if (form_.more.token_ids && place == Place::opening) out.raw("prompt_token_ids", ids_json(prompt_ids_));
    if (form_.stream.continuous)
      out.raw("usage",
              usage_json(event != nullptr ? event->usage : no_usage_, choices_[index].parser.thought_tokens()));
    else if (form_.stream.usage)
      out.raw("usage", "null");
    return sse(out.str());
  }

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  int64_t created_ = unix_time();
  Form form_;
  std::vector<int32_t> prompt_ids_;
  std::vector<sampling::TokenLogprob> prompt_logprobs_;
  engine::Usage no_usage_;  // before the first event
  std::vector<Choice> choices_;
  UsageSum usage_;
};

void read_logprobs(Fields& fields, engine::Params& params) {
  params.logprobs = fields.boolean("logprobs").value_or(false);
  const auto top = fields.integer("top_logprobs", 0, engine::kMaxTopLogprobs);
  if (top.value_or(0) > 0 && !params.logprobs)
    fields.refuse("top_logprobs", fmt::format("is {}, but logprobs is not true", *top));
  params.top_logprobs = static_cast<int>(top.value_or(0));
}

// SGLang's fields: separate_reasoning false leaves the thoughts in the text. Either way a call inside of a thought is
// text.
bool read_separate_reasoning(Fields& fields) {
  const bool separate = fields.boolean("separate_reasoning").value_or(true);
  for (const char* key : {"stream_reasoning", "include_reasoning"})
    if (!fields.boolean(key).value_or(true)) fields.refuse(key, "is false; accepted: true", "unsupported_parameter");
  return separate;
}
}  // namespace

void chat_completions(Service& service, const ExchangePtr& exchange) {
  AnswerRequest given(service, *exchange);
  auto& [model, limits, body, fields] = given;
  check_model_name(fields, *model);

  Job job = name_job(fields, service, "chatcmpl-");
  Form form;
  form.stream = read_stream_options(fields, service.unknown_fields());
  job.stream = form.stream.stream;
  engine::Request request;
  request.params = read_params(fields, kChatNames, *model, limits.vocab, service.next_seed());
  read_logprobs(fields, request.params);
  form.logprobs = request.params.logprobs;
  form.top = request.params.top_logprobs;
  form.more = read_more_logprobs(fields, limits.vocab, job.stream, request.params);
  const ChatPrompt prompt =
      render_chat(fields, *model, read_tools(fields, *model, service.formats().calls, chat_tools()));
  read_request_options(fields, service.config(), request);
  ChatDemand demand;
  demand.separate_reasoning = read_separate_reasoning(fields);
  demand.constraint = read_constraint(fields, service.unknown_fields());
  fields.refuse_unless_empty({"echo", "add_special_tokens"});
  refuse_what_is_not_there(fields);
  fields.finish(service.unknown_fields());

  PreparedChat prepared = prepare_chat(service, *model, limits, prompt, std::move(request), demand);
  job.writer = std::make_unique<ChatWriter>(model, job.id, prepared.request, form, prepared.reading);
  job.requests.push_back(std::move(prepared.request));
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
