// SPDX-License-Identifier: Apache-2.0
// POST /generate, SGLang's own form.
#include <optional>
#include <utility>

#include "io/quote.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/prompts.h"

namespace sluice::server {

namespace {
struct Form {
  bool logprobs = false, texts = false, list = false;  // list: the answer is an array
  int top = 0;
  std::vector<std::string> ids;  // by answer
};

class GenerateWriter final : public AnswerWriter {
 public:
  GenerateWriter(std::shared_ptr<const ServedModel> model, Form form, const std::vector<engine::Request>& requests,
                 int64_t weight_version)
      : model_(std::move(model)), form_(std::move(form)), weight_version_(weight_version) {
    for (const engine::Request& r : requests) {
      first_.push_back(answers_.size());
      for (int64_t i = 0; i < r.params.n; ++i) {
        Answer& a = answers_.emplace_back();
        a.prompt_tokens = static_cast<int64_t>(r.prompt.size());
        if (r.params.prompt_logprobs_from && i == 0)
          a.prompt_starts = *r.params.prompt_logprobs_from, a.first_token = r.prompt.front();
      }
    }
  }

  std::string stream_event(size_t prompt, const engine::Event& event) override {
    const size_t index = take(prompt, event);
    if (event.tokens.empty() && event.reason == engine::FinishReason::none) return {};
    return sse(answer_json(index));
  }
  std::string end_stream() override { return std::string(kStreamDone); }

  void add(size_t prompt, const engine::Event& event) override { take(prompt, event); }

  std::string whole() override {
    if (!form_.list) return answer_json(0);
    JsonArray all;
    for (size_t i = 0; i < answers_.size(); ++i) all.raw(answer_json(i));
    return all.str();
  }

 private:
  struct Answer {
    std::string text, reason = "null";
    std::vector<int32_t> ids;
    std::vector<sampling::TokenLogprob> logprobs, prompt_logprobs;
    std::optional<int64_t> prompt_starts;
    int32_t first_token = 0;
    int64_t prompt_tokens = 0;
    engine::Usage usage;
    engine::Clock::time_point began = engine::Clock::now();
  };

  size_t take(size_t prompt, const engine::Event& event) {
    const size_t index = first_[prompt] + static_cast<size_t>(event.choice);
    Answer& a = answers_[index];
    a.text += event.text;
    a.ids.insert(a.ids.end(), event.tokens.begin(), event.tokens.end());
    a.logprobs.insert(a.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    a.prompt_logprobs.insert(a.prompt_logprobs.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    a.usage = event.usage;
    if (event.reason != engine::FinishReason::none) a.reason = reason_json(event, a);
    return index;
  }

  static std::string reason_json(const engine::Event& event, const Answer& a) {
    switch (event.reason) {
      case engine::FinishReason::stop:
        return JsonObject().add("type", "stop").raw("matched", matched_stop_json(event)).str();
      case engine::FinishReason::length:
        return JsonObject().add("type", "length").add("length", a.ids.size()).str();
      default:
        return JsonObject().add("type", "abort").add("message", "the request was aborted").str();
    }
  }

  // [logprob, id, text or null]
  std::string triple(const std::string& logprob, int32_t id) const {
    return JsonArray()
        .raw(logprob)
        .raw(std::to_string(id))
        .raw(form_.texts ? json_text(token_text(*model_, id)) : "null")
        .str();
  }
  std::string triple(const sampling::Likelihood& l) const {
    return triple(json_number(static_cast<double>(l.logprob)), l.token);
  }

  void add_logprobs(JsonObject& meta, const char* name, const char* top_name,
                    const std::vector<sampling::TokenLogprob>& tokens, const std::optional<int32_t>& first) const {
    JsonArray chosen, top;
    if (first) {  // of a prompt: it stands on nothing
      chosen.raw(triple("null", *first));
      top.raw("null");
    }
    for (const auto& token : tokens) {
      chosen.raw(triple(token.chosen));
      JsonArray row;
      for (const sampling::Likelihood& l : token.top) row.raw(triple(l));
      top.raw(row.str());
    }
    meta.raw(name, chosen.str());
    if (form_.top > 0) meta.raw(top_name, top.str());
  }

  std::string answer_json(size_t index) const {
    const Answer& a = answers_[index];
    JsonObject meta;
    meta.add("id", form_.ids[index])
        .raw("finish_reason", a.reason)
        .add("prompt_tokens", a.prompt_tokens)
        .add("completion_tokens", a.ids.size())
        .add("cached_tokens", a.usage.cached_tokens)
        .add("weight_version", std::to_string(weight_version_))
        .add("e2e_latency", std::chrono::duration<double>(engine::Clock::now() - a.began).count());
    if (a.usage.verify_rounds > 0) {
      const engine::Usage& u = a.usage;
      meta.add("spec_verify_ct", u.verify_rounds)
          .add("spec_draft_token_num", u.drafted)
          .add("spec_accept_token_num", u.accepted)
          .add("spec_accept_rate", static_cast<double>(u.accepted) / static_cast<double>(u.drafted))
          .add("spec_accept_length", 1 + static_cast<double>(u.accepted) / static_cast<double>(u.verify_rounds));
    }
    if (form_.logprobs) {
      if (a.prompt_starts)
        add_logprobs(meta, "input_token_logprobs", "input_top_logprobs", a.prompt_logprobs,
                     *a.prompt_starts == 0 ? std::optional(a.first_token) : std::nullopt);
      add_logprobs(meta, "output_token_logprobs", "output_top_logprobs", a.logprobs, std::nullopt);
    }
    JsonArray ids;
    for (const int32_t id : a.ids) ids.raw(std::to_string(id));
    JsonObject out;
    out.add("text", a.text).raw("output_ids", ids.str()).raw("meta_info", meta.str());
    if (form_.list) out.add("index", index);
    return out.str();
  }

  std::shared_ptr<const ServedModel> model_;
  Form form_;
  int64_t weight_version_;
  std::vector<size_t> first_;  // answer of each prompt
  std::vector<Answer> answers_;
};

std::vector<Prompt> read_inputs(Fields& fields, const ServedModel& model, int64_t vocab, bool& several) {
  const bool text = fields.has("text"), ids = fields.has("input_ids");
  if (text == ids) fields.refuse("text", "and input_ids: exactly one of them must be given");
  const io::JsonValue& given = *fields.find(text ? "text" : "input_ids");
  const auto* array = given.as<io::JsonValue::Array>();
  several = array != nullptr && !array->empty() && array->front().as<int64_t>() == nullptr;
  return text ? read_prompts(fields, "text", model.tokenizer, vocab) : read_id_prompts(fields, "input_ids", vocab);
}

// One object for all prompts, or one for each.
std::vector<engine::Params> read_sampling_params(Fields& fields, size_t prompts, const ServedModel& model,
                                                 int64_t vocab, Service& service) {
  static const io::JsonValue kNone{io::JsonValue::Object()};
  const io::JsonValue* value = fields.find("sampling_params");
  if (value == nullptr) value = &kNone;
  const auto* array = value->as<io::JsonValue::Array>();
  if (array != nullptr && array->size() != prompts)
    fields.refuse("sampling_params", fmt::format("has {} objects for {} prompts", array->size(), prompts));
  std::vector<engine::Params> out;
  for (size_t i = 0; i < prompts; ++i) {
    const io::JsonValue& one = array != nullptr ? (*array)[i] : *value;
    if (one.as<io::JsonValue::Object>() == nullptr) fields.refuse_type("sampling_params", one, "an object");
    Fields inner(one, "sampling_params.");
    out.push_back(read_params(inner, kGenerateNames, model.defaults, vocab, service.next_seed()));
    inner.refuse_unless_empty({"stop_regex", "json_schema", "regex", "ebnf", "structural_tag", "custom_params"});
    inner.ignore({"spaces_between_special_tokens"});  // byte-level text has its spaces in the tokens
    inner.finish();
  }
  return out;
}

void read_logprobs(Fields& fields, const Prompt& prompt, Form& form, engine::Params& params) {
  form.logprobs = fields.boolean("return_logprob").value_or(false);
  form.texts = fields.boolean("return_text_in_logprobs").value_or(false);
  form.top = static_cast<int>(fields.integer("top_logprobs_num", 0, engine::kMaxTopLogprobs).value_or(0));
  const auto length = static_cast<int64_t>(prompt.ids.size());
  const int64_t start = fields.integer("logprob_start_len", -1, length - 1).value_or(-1);
  if (!form.logprobs) return;
  params.logprobs = true;
  params.top_logprobs = form.top;
  if (start >= 0) params.prompt_logprobs_from = start;
}
}  // namespace

void generate(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const engine::Limits limits = service.backend()->limits();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  Form form;
  const std::vector<Prompt> prompts = read_inputs(fields, *model, limits.vocab, form.list);
  std::vector<engine::Params> params = read_sampling_params(fields, prompts.size(), *model, limits.vocab, service);

  Job job;
  job.id = service.new_id("gen");
  job.rid = read_rid(fields, job.id);
  job.stream = fields.boolean("stream").value_or(false);
  int64_t answers = 0;
  for (size_t i = 0; i < prompts.size(); ++i) {
    check_choices(prompts.size(), params[i].n);
    answers += params[i].n;
    engine::Request request{prompts[i].ids, std::move(params[i])};
    read_logprobs(fields, prompts[i], form, request.params);
    fit_to_context(request, kGenerateNames, limits.context_length, "text");
    job.requests.push_back(std::move(request));
  }
  fields.ignore({"log_metrics", "priority"});
  fields.refuse_unless_empty({"token_ids_logprob", "return_hidden_states", "return_routed_experts", "image_data",
                              "audio_data", "video_data", "input_embeds", "lora_path", "session_params",
                              "custom_logit_processor", "bootstrap_host", "bootstrap_port", "bootstrap_room"});
  fields.finish();

  form.list = form.list || answers > 1;
  for (int64_t i = 0; i < answers; ++i) form.ids.push_back(form.list ? fmt::format("{}-{}", job.rid, i) : job.rid);
  job.writer = std::make_unique<GenerateWriter>(model, std::move(form), job.requests, service.weight_version.load());
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
