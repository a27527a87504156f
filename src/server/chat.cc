// SPDX-License-Identifier: Apache-2.0
// POST /v1/chat/completions
#include "server/answer.h"
#include "server/api_error.h"
#include "server/chat_prompt.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/reasoning.h"

namespace sluice::server {

namespace {
class ChatWriter final : public AnswerWriter {
 public:
  // begin: nothing when thoughts stay in the text.
  ChatWriter(std::shared_ptr<const ServedModel> model, std::string id, const engine::Params& params, bool usage,
             std::optional<ReasoningSplitter::Begin> begin)
      : model_(std::move(model)), id_(std::move(id)), logprobs_(params.logprobs), usage_wanted_(usage) {
    choices_.resize(static_cast<size_t>(params.n));
    for (Choice& c : choices_)
      if (begin) c.splitter.emplace(*begin);
  }

  std::string begin_stream() override {
    std::string out;
    for (size_t i = 0; i < choices_.size(); ++i)
      out += chunk(i, JsonObject().add("role", "assistant").add("content", "").str(), "null", {});
    return out;
  }

  std::string stream_event(size_t, const engine::Event& event) override {
    usage_.add(event);
    const auto index = static_cast<size_t>(event.choice);
    const ReasoningSplitter::Pieces pieces = pieces_of(choices_[index], event);
    std::string out;
    if (!pieces.reasoning.empty() || !pieces.content.empty() || !event.logprobs.empty()) {
      JsonObject delta;
      if (!pieces.reasoning.empty()) delta.add("reasoning_content", pieces.reasoning);
      if (!pieces.content.empty() || pieces.reasoning.empty()) delta.add("content", pieces.content);
      out = chunk(index, delta.str(), logprobs_json(event.logprobs), {});
    }
    if (event.reason != engine::FinishReason::none) out += chunk(index, "{}", "null", event);
    return out;
  }

  std::string end_stream() override {
    std::string out;
    if (usage_wanted_)
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
    const ReasoningSplitter::Pieces pieces = pieces_of(c, event);
    c.reasoning += pieces.reasoning;
    c.text += pieces.content;
    for (const auto& token : event.logprobs) c.logprobs.raw(token_logprob_json(*model_, token));
    if (event.reason == engine::FinishReason::none) return;
    c.finish_reason = finish_reason_json(event.reason);
    c.matched_stop = matched_stop_json(event);
  }

  std::string whole() override {
    JsonArray choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      const Choice& c = choices_[i];
      JsonObject message;
      message.add("role", "assistant").add("content", c.text).raw("refusal", "null");
      if (c.splitter) message.raw("reasoning_content", c.reasoning.empty() ? "null" : json_text(c.reasoning));
      choices.raw(JsonObject()
                      .add("index", i)
                      .raw("message", message.str())
                      .raw("logprobs", logprobs_
                                           ? JsonObject().raw("content", c.logprobs.str()).raw("refusal", "null").str()
                                           : "null")
                      .raw("finish_reason", c.finish_reason)
                      .raw("matched_stop", c.matched_stop)
                      .str());
    }
    return head("chat.completion")
        .raw("choices", choices.str())
        .raw("usage", usage_.json())
        .raw("timings", usage_.timings())
        .str();
  }

 private:
  struct Choice {
    std::string text, reasoning, finish_reason = "null", matched_stop = "null";
    JsonArray logprobs;
    std::optional<ReasoningSplitter> splitter;
  };

  static ReasoningSplitter::Pieces pieces_of(Choice& c, const engine::Event& event) {
    if (!c.splitter) return {"", event.text};
    ReasoningSplitter::Pieces out = c.splitter->push(event.text);
    if (event.reason == engine::FinishReason::none) return out;
    const ReasoningSplitter::Pieces rest = c.splitter->finish();
    out.reasoning += rest.reasoning;
    out.content += rest.content;
    return out;
  }

  JsonObject head(const char* object) const {
    JsonObject out;
    out.add("id", id_).add("object", object).add("created", created_).add("model", model_->names[0]);
    return out;
  }

  std::string logprobs_json(const std::vector<sampling::TokenLogprob>& tokens) const {
    if (!logprobs_ || tokens.empty()) return "null";
    JsonArray content;
    for (const auto& token : tokens) content.raw(token_logprob_json(*model_, token));
    return JsonObject().raw("content", content.str()).raw("refusal", "null").str();
  }

  std::string chunk(size_t index, const std::string& delta, const std::string& logprobs,
                    const std::optional<engine::Event>& last) const {
    JsonObject choice;
    choice.add("index", index).raw("delta", delta).raw("logprobs", logprobs);
    choice.raw("finish_reason", last ? finish_reason_json(last->reason) : "null");
    if (last) choice.raw("matched_stop", matched_stop_json(*last));
    JsonObject out = head("chat.completion.chunk");
    out.raw("choices", JsonArray().raw(choice.str()).str());
    if (usage_wanted_) out.raw("usage", "null");
    return sse(out.str());
  }

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  int64_t created_ = unix_time();
  bool logprobs_, usage_wanted_;
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
// SGLang's fields: separate_reasoning false leaves the thoughts in the text.
std::optional<ReasoningSplitter::Begin> read_reasoning(Fields& fields, const std::string& parser,
                                                       std::string_view prompt) {
  const bool separate = fields.boolean("separate_reasoning").value_or(true);
  if (!fields.boolean("stream_reasoning").value_or(true))
    fields.refuse("stream_reasoning", "is false; accepted: true", "unsupported_parameter");
  if (parser.empty() || !separate) return std::nullopt;
  const ReasoningSplitter::Begin begin = beginning_of_answer(prompt);
  // DeepSeek-R1 thinks without saying so.
  return parser == "deepseek-r1" && begin == ReasoningSplitter::Begin::unknown ? ReasoningSplitter::Begin::thinking
                                                                               : begin;
}
}  // namespace

void chat_completions(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const engine::Limits limits = service.backend()->limits();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);

  Job job;
  job.id = service.new_id("chatcmpl");
  job.rid = read_rid(fields, job.id);
  const StreamOptions stream = read_stream_options(fields);
  job.stream = stream.stream;
  engine::Request request;
  request.params = read_params(fields, kChatNames, model->defaults, limits.vocab, service.next_seed());
  read_logprobs(fields, request.params);
  const std::string text = render_chat(fields, *model);
  const auto reasoning = read_reasoning(fields, service.config().reasoning_parser, text);
  refuse_what_is_not_there(fields);
  fields.finish();

  request.prompt = model->encode_chat(text);
  fit_to_context(request, kChatNames, limits.context_length, "messages");
  job.writer = std::make_unique<ChatWriter>(model, job.id, request.params, stream.usage, reasoning);
  job.requests.push_back(std::move(request));
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
