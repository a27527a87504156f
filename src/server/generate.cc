// SPDX-License-Identifier: Apache-2.0
// POST /generate, SGLang's own form.
#include <algorithm>
#include <limits>
#include <optional>
#include <span>
#include <utility>

#include "io/quote.h"
#include "server/answer.h"
#include "server/api_error.h"
#include "server/base64.h"
#include "server/constraint.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/prompt_scores.h"
#include "server/prompts.h"
#include "server/request_options.h"

namespace sluice::server {

namespace {
// The log probabilities that a prompt's answers show.
struct Shown {
  bool logprobs = false, named = false;  // named: token_ids_logprob
  int top = 0;
  std::optional<int64_t> prompt_from;
};

struct Form {
  bool texts = false, list = false;  // list: the answer is an array
  std::vector<Shown> shown;          // by prompt
  std::vector<std::string> ids;      // by answer
};

class GenerateWriter final : public AnswerWriter {
 public:
  GenerateWriter(std::shared_ptr<const ServedModel> model, Form form, const std::vector<engine::Request>& requests)
      : model_(std::move(model)), form_(std::move(form)) {
    for (size_t p = 0; p < requests.size(); ++p) {
      first_.push_back(answers_.size());
      scores_.emplace_back(form_.shown[p].prompt_from.has_value());
      for (int64_t i = 0; i < requests[p].params.n; ++i) {
        Answer& a = answers_.emplace_back();
        a.prompt = p;
        a.prompt_tokens = static_cast<int64_t>(requests[p].prompt.size());
        a.first_token = requests[p].prompt[static_cast<size_t>(form_.shown[p].prompt_from.value_or(0))];
      }
    }
  }

  std::string stream_event(size_t prompt, const engine::Event& event) override {
    std::string out;
    scores_[prompt].in_order(event, weight_version(), [&](const engine::Event& e, const std::string& version) {
      const size_t index = take(prompt, e, version);
      if (!e.tokens.empty() || e.reason != engine::FinishReason::none) out += sse(answer_json(index));
    });
    return out;
  }
  std::string end_stream() override { return std::string(kStreamDone); }

  void add(size_t prompt, const engine::Event& event) override {
    scores_[prompt].in_order(event, weight_version(),
                             [&](const engine::Event& e, const std::string& version) { take(prompt, e, version); });
  }

  std::string whole() override {
    if (!form_.list) return answer_json(0);
    JsonArray all;
    for (size_t i = 0; i < answers_.size(); ++i) all.raw(answer_json(i));
    return all.str();
  }

 private:
  struct Answer {
    std::string text, reason = "null", weight_version;
    std::vector<int32_t> ids, routed;
    std::vector<sampling::TokenLogprob> logprobs;
    size_t prompt = 0;
    int32_t first_token = 0;
    int64_t prompt_tokens = 0;
    engine::Usage usage;
    engine::Clock::time_point began = engine::Clock::now();
  };

  size_t take(size_t prompt, const engine::Event& event, const std::string& version) {
    const size_t index = first_[prompt] + static_cast<size_t>(event.choice);
    Answer& a = answers_[index];
    a.text += event.text;
    a.ids.insert(a.ids.end(), event.tokens.begin(), event.tokens.end());
    a.logprobs.insert(a.logprobs.end(), event.logprobs.begin(), event.logprobs.end());
    a.usage = event.usage;
    a.routed = event.routed_experts;
    a.weight_version = version;
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

  // `which`: "input" or "output". first: a token that is listed without a log probability, before the others.
  void add_logprobs(JsonObject& meta, const std::string& which, const Shown& shown,
                    std::span<const sampling::TokenLogprob> tokens, const std::optional<int32_t>& first) const {
    JsonArray chosen, top, named;
    const auto row = [&](std::span<const sampling::Likelihood> all) {
      JsonArray out;
      for (const sampling::Likelihood& l : all) out.raw(triple(l));
      return out.str();
    };
    if (first) {
      chosen.raw(triple("null", *first));
      top.raw("null");
      named.raw("null");
    }
    for (const auto& token : tokens) {
      chosen.raw(triple(token.chosen));
      top.raw(row(token.top));
      named.raw(row(token.asked));
    }
    meta.raw(which + "_token_logprobs", chosen.str());
    if (shown.top > 0) meta.raw(which + "_top_logprobs", top.str());
    if (shown.named) meta.raw(which + "_token_ids_logprobs", named.str());
  }

  std::string answer_json(size_t index) const {
    const Answer& a = answers_[index];
    JsonObject meta;
    meta.add("id", form_.ids[index])
        .raw("finish_reason", a.reason)
        .add("prompt_tokens", a.prompt_tokens)
        .add("completion_tokens", a.ids.size())
        .add("cached_tokens", a.usage.cached_tokens)
        .add("weight_version", a.weight_version)
        .add("e2e_latency", std::chrono::duration<double>(engine::Clock::now() - a.began).count());
    if (a.usage.verify_rounds > 0) {
      const engine::Usage& u = a.usage;
      meta.add("spec_verify_ct", u.verify_rounds)
          .add("spec_draft_token_num", u.drafted)
          .add("spec_accept_token_num", u.accepted)
          .add("spec_accept_rate", static_cast<double>(u.accepted) / static_cast<double>(u.drafted))
          .add("spec_accept_length", 1 + static_cast<double>(u.accepted) / static_cast<double>(u.verify_rounds));
    }
    // int32, little-endian, [tokens - 1, layers, K], as SGLang gives them.
    if (!a.routed.empty()) meta.add("routed_experts", base64(std::as_bytes(std::span(a.routed))));
    if (const Shown& shown = form_.shown[a.prompt]; shown.logprobs) {
      // Lists without elements where the prompt is not scored: SGLang has the keys in every answer. Its other lists
      // begin with null wherever they start. The engine has a score there, but for the prompt's first token, as nothing
      // comes before it.
      const std::span<const sampling::TokenLogprob> all = scores_[a.prompt].tokens();
      const bool scored = shown.prompt_from.value_or(0) > 0 && !all.empty();
      add_logprobs(meta, "input", shown, all.subspan(scored ? 1 : 0),
                   shown.prompt_from ? std::optional(a.first_token) : std::nullopt);
      add_logprobs(meta, "output", shown, a.logprobs, std::nullopt);
      meta.add("output_token_logprobs_length", a.logprobs.size());
    }
    JsonObject out;
    out.add("text", a.text).raw("output_ids", ids_json(a.ids)).raw("meta_info", meta.str());
    if (form_.list) out.add("index", index);
    return out.str();
  }

  std::shared_ptr<const ServedModel> model_;
  Form form_;
  std::vector<size_t> first_;         // answer of each prompt
  std::vector<PromptScores> scores_;  // of each prompt
  std::vector<Answer> answers_;
};

std::vector<Prompt> read_inputs(Fields& fields, const ServedModel& model, const engine::Limits& limits, bool& several) {
  const bool text = fields.has("text"), ids = fields.has("input_ids");
  if (text == ids) fields.refuse("text", "and input_ids: exactly one of them must be given");
  const io::JsonValue& given = *fields.find(text ? "text" : "input_ids");
  const auto* array = given.as<io::JsonValue::Array>();
  several = array != nullptr && !array->empty() && array->front().as<int64_t>() == nullptr;
  return text ? read_prompts(fields, "text", model.tokenizer, limits)
              : read_id_prompts(fields, "input_ids", limits.vocab);
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
    out.push_back(read_params(inner, kGenerateNames, model, vocab, service.next_seed()));
    const auto constraint = read_sampling_constraint(inner, "sampling_params.");
    inner.refuse_unless_empty({"stop_regex", "custom_params"});
    inner.finish(service.unknown_fields());
    if (constraint) apply_constraint(*constraint, model, std::nullopt, out.back());
  }
  return out;
}

// The position from which on experts are shown: tokens before it are of a prompt whose experts the caller has.
int64_t read_routed_from(Fields& fields, const std::vector<Prompt>& prompts) {
  size_t shortest = prompts[0].ids.size();
  for (const Prompt& prompt : prompts) shortest = std::min(shortest, prompt.ids.size());
  const auto from = fields.integer("routed_experts_start_len", 0, std::numeric_limits<int64_t>::max());
  if (from && *from > static_cast<int64_t>(shortest))
    fields.refuse("routed_experts_start_len",
                  fmt::format("is {}; accepted: at most the tokens of the prompt, {}", *from, shortest));
  return from.value_or(0);
}

// What SGLang takes as one value for all prompts, or as an array with one for each: this prompt's, in an object.
io::JsonValue of_prompt(Fields& fields, size_t index, size_t prompts, bool list) {
  io::JsonValue::Object own;
  for (const char* key :
       {"model", "rid", "return_logprob", "logprob_start_len", "top_logprobs_num", "token_ids_logprob"}) {
    const io::JsonValue* value = fields.find(key);
    if (value == nullptr) continue;
    const auto* array = value->as<io::JsonValue::Array>();
    const bool ids = std::string_view(key) == "token_ids_logprob";
    // An array of ids is one value.
    if (array != nullptr && (!ids || (!array->empty() && array->front().as<int64_t>() == nullptr))) {
      if (ids && !list) fields.refuse(key, "holds an array; accepted: a flat list of integers, as there is one prompt");
      if (array->size() != prompts)
        fields.refuse(key, fmt::format("has {} values for {} prompts; accepted: one for all, or one for each",
                                       array->size(), prompts));
      value = &(*array)[index];
    }
    own.push_back({key, *value});
  }
  return {std::move(own)};
}

Shown read_logprobs(Fields& fields, const Prompt& prompt, int64_t vocab, engine::Params& params) {
  Shown shown;
  shown.logprobs = fields.boolean("return_logprob").value_or(false);
  shown.top = static_cast<int>(fields.integer("top_logprobs_num", 0, engine::kMaxTopLogprobs).value_or(0));
  const auto length = static_cast<int64_t>(prompt.ids.size());
  const int64_t start = fields.integer("logprob_start_len", -1, length).value_or(-1);
  std::vector<int32_t> named = fields.token_ids("token_ids_logprob", engine::kMaxLogprobTokens, vocab);
  if (!shown.logprobs) return shown;
  params.logprobs = true;
  params.top_logprobs = shown.top;
  shown.named = !named.empty();
  params.logprob_tokens = std::move(named);
  if (start >= 0 && start < length) params.prompt_logprobs_from = shown.prompt_from = start;  // at its end: none
  return shown;
}

// Each answer's id, and what /abort_request may call the request: the client's names (by prompt, "" where it has none;
// for_each: each is that prompt's, else they are one name of the whole request) and these ids. An answer's id stands
// for its prompt, whose choices are one request of the engine.
void name_answers(const std::vector<std::string>& names, bool for_each, Form& form, Job& job) {
  for (size_t i = 0; i < names.size(); ++i) {
    const bool chosen = !names[i].empty();
    if (chosen && (for_each || i == 0))
      job.names.push_back({names[i], true, for_each ? std::optional(i) : std::nullopt});
    const int64_t n = job.requests[i].params.n;
    for (int64_t k = 0; k < n; ++k) {
      std::string id = chosen ? names[i] : job.id;
      if (chosen && for_each && n > 1) id += fmt::format("-{}", k);
      if (!(chosen && for_each) && form.list) id += fmt::format("-{}", form.ids.size());
      job.names.push_back({id, false, i});
      form.ids.push_back(std::move(id));
    }
  }
}

// Of one request; whether another that runs has one of them is seen when they are registered.
void check_names_differ(std::vector<std::string> names) {
  std::sort(names.begin(), names.end());
  names.erase(names.begin(), std::upper_bound(names.begin(), names.end(), ""));
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end())
    refuse("rid", fmt::format("rid holds {} twice; accepted: a name of its own for each prompt", io::quote(*twice)));
}
}  // namespace

void generate(Service& service, const ExchangePtr& exchange) {
  AnswerRequest given(service, *exchange);
  auto& [model, limits, body, fields] = given;
  Form form;
  const std::vector<Prompt> prompts = read_inputs(fields, *model, limits, form.list);
  std::vector<engine::Params> params = read_sampling_params(fields, prompts.size(), *model, limits.vocab, service);

  Job job;
  job.id = service.new_id("gen-");
  job.stream = fields.boolean("stream").value_or(false);
  form.texts = fields.boolean("return_text_in_logprobs").value_or(false);
  const bool rids = fields.has("rid") && fields.find("rid")->as<io::JsonValue::Array>() != nullptr;
  engine::Request options;
  read_request_options(fields, service.config(), options);
  options.routed_experts = fields.boolean("return_routed_experts").value_or(false);
  if (options.routed_experts && !limits.routed_experts)
    fields.refuse("return_routed_experts",
                  "is true, but this model has no experts, or they run on "
                  "another device than "
                  "the cpu",
                  "unsupported_parameter");
  options.routed_from = read_routed_from(fields, prompts);
  int64_t answers = 0;
  std::vector<std::string> names;  // by prompt
  for (size_t i = 0; i < prompts.size(); ++i) {
    check_choices(prompts.size(), params[i].n, "sampling_params.n");
    answers += params[i].n;
    const io::JsonValue own = of_prompt(fields, i, prompts.size(), form.list);
    Fields one(own);
    check_model_name(one, *model);
    names.push_back(read_rid(one, "rid").value_or(""));
    engine::Request request = options;
    request.prompt = prompts[i].ids;
    request.params = std::move(params[i]);
    form.shown.push_back(read_logprobs(one, prompts[i], limits.vocab, request.params));
    fit_to_context(request, kGenerateNames, limits.context_length, fields.has("text") ? "text" : "input_ids");
    job.requests.push_back(std::move(request));
  }
  fields.ignore({"log_metrics", "no_logs"});
  // SGLang's gateway sends many of these, as false.
  fields.refuse_unless_empty({"return_hidden_states", "background", "return_bytes", "return_entropy",
                              "return_sampling_mask", "return_prompt_token_ids", "image_data", "audio_data",
                              "video_data", "input_embeds", "lora_path", "session_params", "custom_logit_processor",
                              "bootstrap_host", "bootstrap_port", "bootstrap_room"});
  fields.finish(service.unknown_fields());

  if (rids) check_names_differ(names);
  form.list = form.list || answers > 1;
  name_answers(names, rids, form, job);
  job.writer = std::make_unique<GenerateWriter>(model, std::move(form), job.requests);
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
