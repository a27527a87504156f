// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions
#include <utility>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/prompts.h"
#include "text/utf8.h"

namespace sluice::server {

namespace {
// The four parallel lists of OpenAI's old form.
class LogprobLists {
 public:
  void add(const ServedModel& model, const sampling::TokenLogprob& token, bool with_top) {
    add_token(model, token.chosen.token, json_number(static_cast<double>(token.chosen.logprob)));
    if (!with_top) return top_.raw("null"), void();
    JsonObject object;
    bool chosen = false;
    for (const sampling::Likelihood& l : token.top) {
      object.add(token_text(model, l.token), static_cast<double>(l.logprob));
      chosen = chosen || l.token == token.chosen.token;
    }
    if (!chosen) object.add(token_text(model, token.chosen.token), static_cast<double>(token.chosen.logprob));
    top_.raw(object.str());
  }
  // The first token of a prompt stands on nothing.
  void add_first(const ServedModel& model, int32_t id) {
    add_token(model, id, "null");
    top_.raw("null");
  }
  std::string json() const {
    return JsonObject()
        .raw("tokens", tokens_.str())
        .raw("token_logprobs", logprobs_.str())
        .raw("top_logprobs", top_.str())
        .raw("text_offset", offsets_.str())
        .str();
  }
  bool empty() const { return empty_; }
  void restart() {  // a stream's next chunk; offsets go on
    tokens_ = logprobs_ = top_ = offsets_ = {};
    empty_ = true;
  }

 private:
  void add_token(const ServedModel& model, int32_t id, const std::string& logprob) {
    const std::string text = token_text(model, id);
    tokens_.raw(json_text(text));
    logprobs_.raw(logprob);
    offsets_.raw(std::to_string(offset_));
    offset_ += text::count_code_points(text);
    empty_ = false;
  }

  JsonArray tokens_, logprobs_, top_, offsets_;
  size_t offset_ = 0;
  bool empty_ = true;
};

struct Form {
  bool logprobs = false, top = false, echo = false, usage = false;
};

class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(std::shared_ptr<const ServedModel> model, std::string id, const std::vector<Prompt>& prompts,
                   int64_t n, const Form& form)
      : model_(std::move(model)), id_(std::move(id)), form_(form), n_(static_cast<size_t>(n)) {
    choices_.resize(prompts.size() * n_);
    for (const Prompt& p : prompts) {
      PromptLogprobs& known = prompts_.emplace_back();
      known.first_token = p.ids.front();
      if (form.echo) known.text = p.text ? *p.text : model_->tokenizer.decode(p.ids);
    }
  }

  std::string begin_stream() override {
    std::string out;
    if (!form_.echo || form_.logprobs) return out;  // with log probabilities the prompt's text comes with theirs
    for (size_t i = 0; i < choices_.size(); ++i) out += chunk(i, prompts_[i / n_].text);
    return out;
  }

  std::string stream_event(size_t prompt, const engine::Event& event) override {
    std::string out;
    in_order(prompt, event, [&](const engine::Event& e) { out += stream_one(prompt, e); });
    return out;
  }

  std::string end_stream() override {
    std::string out;
    if (form_.usage)
      out = sse(head().raw("choices", "[]").raw("usage", usage_.json()).raw("timings", usage_.timings()).str());
    return out.append(kStreamDone);
  }

  void add(size_t prompt, const engine::Event& event) override {
    in_order(prompt, event, [&](const engine::Event& e) { take(prompt, e); });
  }

  std::string whole() override {
    JsonArray choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      // Without log probabilities of the prompt no event has put its text there.
      if (form_.echo && !form_.logprobs) choices_[i].text.insert(0, prompts_[i / n_].text);
      choices.raw(choice_json(i, choices_[i].text));
    }
    return head().raw("choices", choices.str()).raw("usage", usage_.json()).raw("timings", usage_.timings()).str();
  }

 private:
  struct PromptLogprobs {
    int32_t first_token = 0;
    std::string text;  // echoed
    std::vector<sampling::TokenLogprob> tokens;
    bool complete = false;
    std::vector<engine::Event> held;
  };
  struct Choice {
    std::string text, finish_reason = "null", matched_stop = "null";
    LogprobLists logprobs;
    bool echoed = false;
  };

  // The prompt's log probabilities come with the first choice alone, so the others' events wait for the last of them.
  template <class F>
  void in_order(size_t prompt, const engine::Event& event, const F& use) {
    PromptLogprobs& p = prompts_[prompt];
    if (!echoes_logprobs() || p.complete) return use(event);
    if (event.choice != 0) return p.held.push_back(event), void();
    p.tokens.insert(p.tokens.end(), event.prompt_logprobs.begin(), event.prompt_logprobs.end());
    p.complete = !event.tokens.empty() || event.reason != engine::FinishReason::none;
    if (!p.complete) return;
    use(event);
    for (const engine::Event& e : std::exchange(p.held, {})) use(e);
  }

  std::string stream_one(size_t prompt, const engine::Event& event) {
    const size_t index = take(prompt, event);
    Choice& c = choices_[index];
    std::string out;
    if (!c.text.empty() || !c.logprobs.empty() || event.reason != engine::FinishReason::none)
      out = chunk(index, c.text);
    c.text.clear();
    c.logprobs.restart();
    return out;
  }

  size_t take(size_t prompt, const engine::Event& event) {
    usage_.add(event);
    const size_t index = prompt * n_ + static_cast<size_t>(event.choice);
    Choice& c = choices_[index];
    if (echoes_logprobs() && !std::exchange(c.echoed, true)) {
      c.text = prompts_[prompt].text;
      c.logprobs.add_first(*model_, prompts_[prompt].first_token);
      for (const auto& token : prompts_[prompt].tokens) c.logprobs.add(*model_, token, form_.top);
    }
    c.text += event.text;
    if (form_.logprobs)
      for (const auto& token : event.logprobs) c.logprobs.add(*model_, token, form_.top);
    if (event.reason != engine::FinishReason::none) {
      c.finish_reason = finish_reason_json(event.reason);
      c.matched_stop = matched_stop_json(event);
    }
    return index;
  }

  bool echoes_logprobs() const { return form_.echo && form_.logprobs; }

  JsonObject head() const {
    JsonObject out;
    out.add("id", id_).add("object", "text_completion").add("created", created_).add("model", model_->names[0]);
    return out;
  }

  std::string choice_json(size_t index, const std::string& text) const {
    const Choice& c = choices_[index];
    return JsonObject()
        .add("text", text)
        .add("index", index)
        .raw("logprobs", form_.logprobs && !c.logprobs.empty() ? c.logprobs.json() : "null")
        .raw("finish_reason", c.finish_reason)
        .raw("matched_stop", c.matched_stop)
        .str();
  }

  std::string chunk(size_t index, const std::string& text) const {
    JsonObject out = head();
    out.raw("choices", JsonArray().raw(choice_json(index, text)).str());
    if (form_.usage) out.raw("usage", "null");
    return sse(out.str());
  }

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  int64_t created_ = unix_time();
  Form form_;
  size_t n_;
  std::vector<PromptLogprobs> prompts_;
  std::vector<Choice> choices_;
  UsageSum usage_;
};
}  // namespace

void completions(Service& service, const ExchangePtr& exchange) {
  service.require_ready();
  const auto model = service.model();
  const engine::Limits limits = service.backend()->limits();
  const io::JsonValue body = parse_body(exchange->request().body);
  Fields fields(body);
  check_model_name(fields, *model);

  Job job;
  job.id = service.new_id("cmpl");
  job.rid = read_rid(fields, job.id);
  const StreamOptions stream = read_stream_options(fields);
  job.stream = stream.stream;
  engine::Params params = read_params(fields, kCompletionNames, model->defaults, limits.vocab, service.next_seed());

  Form form;
  form.usage = stream.usage;
  form.echo = fields.boolean("echo").value_or(false);
  // A number asks for them, with so many alternatives; 0 is none of those.
  if (const auto top = fields.integer("logprobs", 0, engine::kMaxTopLogprobs)) {
    form.logprobs = params.logprobs = true;
    params.top_logprobs = static_cast<int>(*top);
    form.top = *top > 0;
  }
  if (const auto best = fields.integer("best_of", 1, engine::kMaxChoices); best && *best != params.n)
    fields.refuse("best_of", fmt::format("is {}; accepted: the value of n, {}", *best, params.n),
                  "unsupported_parameter");
  fields.refuse_unless_empty({"suffix"});
  std::vector<Prompt> prompts = read_prompts(fields, "prompt", model->tokenizer, limits.vocab);
  refuse_what_is_not_there(fields);
  fields.finish();
  check_choices(prompts.size(), params.n);

  for (const Prompt& prompt : prompts) {
    engine::Request request{prompt.ids, params};
    const bool only_the_prompt = form.echo && params.max_tokens == 0;
    if (form.echo && form.logprobs)
      request.params.prompt_logprobs_from = 0;
    else if (only_the_prompt && !prompt.ids.empty())
      request.params.prompt_logprobs_from = static_cast<int64_t>(prompt.ids.size()) - 1;
    fit_to_context(request, kCompletionNames, limits.context_length, "prompt");
    job.requests.push_back(std::move(request));
  }
  job.writer = std::make_unique<CompletionWriter>(model, job.id, prompts, params.n, form);
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
