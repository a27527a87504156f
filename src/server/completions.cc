// SPDX-License-Identifier: Apache-2.0
// POST /v1/completions
#include <fmt/format.h>

#include <set>
#include <utility>

#include "server/answer.h"
#include "server/api_error.h"
#include "server/constraint.h"
#include "server/endpoints.h"
#include "server/generation.h"
#include "server/openai_fields.h"
#include "server/prompt_scores.h"
#include "server/prompts.h"
#include "server/request_options.h"
#include "text/utf8.h"

namespace sluice::server {

namespace {
// The four parallel lists of OpenAI's old form.
class LogprobLists {
 public:
  explicit LogprobLists(TokenNames names) : names_(names) {}

  // in_text: false for a token that was put around a prompt, whose bytes are not in the text.
  void add(const ServedModel& model, const sampling::TokenLogprob& token, int top, bool in_text = true) {
    const std::string chosen = name_of(model, token.chosen.token);
    add_token(model, token.chosen.token, json_number(static_cast<double>(token.chosen.logprob)), in_text);
    // Several tokens can have one name, and an object has each once: the chosen token's is its own, of others the most
    // likely one's.
    JsonObject object;
    std::set<std::string> names;
    for (const sampling::Likelihood& l : alternatives(token, top))
      if (const std::string name = name_of(model, l.token);
          (name != chosen || l.token == token.chosen.token) && names.insert(name).second)
        object.add(name, static_cast<double>(l.logprob));
    if (names.count(chosen) == 0) object.add(chosen, static_cast<double>(token.chosen.logprob));
    top_.raw(object.str());
  }
  // The first token of a prompt has no log probability: nothing comes before it.
  void add_first(const ServedModel& model, int32_t id, bool in_text) {
    add_token(model, id, "null", in_text);
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
  // Parts of characters as OpenAI named them, "bytes:\xe6\x97": as text they would all be U+FFFD.
  std::string name_of(const ServedModel& model, int32_t id) const {
    std::string name = token_name(model, id, names_);
    const std::string_view bytes = model.tokenizer.bytes_of(id);
    if (names_ != TokenNames::text || name == bytes) return name;
    name = "bytes:";
    for (const char c : bytes)
      if (static_cast<unsigned char>(c) < 0x80)
        name += c;
      else
        name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
    return name;
  }

  void add_token(const ServedModel& model, int32_t id, const std::string& logprob, bool in_text) {
    tokens_.raw(json_text(name_of(model, id)));
    logprobs_.raw(logprob);
    offsets_.raw(std::to_string(offset_));
    empty_ = false;
    if (!in_text) return;
    // The characters that the token completes.
    begun_ += model.tokenizer.bytes_of(id);
    std::string whole;
    const size_t held_back = text::append_utf8(whole, begun_, false);
    begun_.erase(0, begun_.size() - held_back);
    offset_ += text::count_code_points(whole);
  }

  TokenNames names_;
  JsonArray tokens_, logprobs_, top_, offsets_;
  size_t offset_ = 0;
  std::string begun_;  // the bytes of a character that is not complete
  bool empty_ = true;
};

struct Form {
  bool logprobs = false, echo = false;
  int top = 0;
  StreamOptions stream;
  MoreLogprobs more;
};

class CompletionWriter final : public AnswerWriter {
 public:
  CompletionWriter(std::shared_ptr<const ServedModel> model, std::string id, const std::vector<Prompt>& prompts,
                   int64_t n, const Form& form)
      : model_(std::move(model)), id_(std::move(id)), form_(form), n_(static_cast<size_t>(n)) {
    choices_.assign(prompts.size() * n_, Choice(form.more.names));
    for (const Prompt& p : prompts) {
      EchoedPrompt& known = prompts_.emplace_back(scores_prompts());
      known.first_token = p.ids.front();
      known.text_begin = p.before;
      known.text_end = p.ids.size() - p.after;
      known.no_usage.prompt_tokens = static_cast<int64_t>(p.ids.size());
      if (form.more.token_ids) known.ids = p.ids;
      if (form.echo) known.text = p.text ? *p.text : model_->tokenizer.decode(p.ids);
    }
  }

  std::string begin_stream() override {
    std::string out;
    if (!form_.echo || form_.logprobs) return out;  // with log probabilities the prompt's text comes with theirs
    for (size_t i = 0; i < choices_.size(); ++i) out += chunk(i, prompts_[i / n_].text, nullptr);
    return out;
  }

  std::string stream_event(size_t prompt, const engine::Event& event) override {
    std::string out;
    prompts_[prompt].scores.in_order(event, weight_version(),
                                     [&](const engine::Event& e, const std::string&) { out += stream_one(prompt, e); });
    return out;
  }

  std::string end_stream() override {
    std::string out;
    if (form_.stream.usage)
      out = sse(head().raw("choices", "[]").raw("usage", usage_.json()).raw("timings", usage_.timings()).str());
    return out.append(kStreamDone);
  }

  void add(size_t prompt, const engine::Event& event) override {
    prompts_[prompt].scores.in_order(event, weight_version(),
                                     [&](const engine::Event& e, const std::string&) { take(prompt, e); });
  }

  std::string whole() override {
    JsonArray choices;
    for (size_t i = 0; i < choices_.size(); ++i) {
      // Without log probabilities of the prompt no event has put its text there.
      if (form_.echo && !form_.logprobs) choices_[i].text.insert(0, prompts_[i / n_].text);
      choices.raw(choice_json(i, choices_[i].text, true));
    }
    return head()
        .raw("choices", choices.str())
        .raw("usage", usage_.json())
        .raw("timings", usage_.timings())
        .raw("metadata", metadata_json())
        .str();
  }

 private:
  struct EchoedPrompt {
    explicit EchoedPrompt(bool scored) : scores(scored) {}

    bool in_text(size_t position) const { return position >= text_begin && position < text_end; }

    int32_t first_token = 0;
    size_t text_begin = 0, text_end = 0;  // of the ids that the text became
    std::string text;
    std::vector<int32_t> ids;  // when they are wanted
    engine::Usage no_usage;    // before the first event
    PromptScores scores;
  };
  struct Choice {
    explicit Choice(TokenNames names) : logprobs(names) {}

    std::string text, finish_reason = "null", matched_stop = "null";
    LogprobLists logprobs;
    std::vector<int32_t> ids;  // of the answer, of a chunk in a stream
    bool echoed = false, begun = false;
  };

  std::string stream_one(size_t prompt, const engine::Event& event) {
    const size_t index = take(prompt, event);
    Choice& c = choices_[index];
    std::string out;
    if (!c.text.empty() || !c.logprobs.empty() || !c.ids.empty() || event.reason != engine::FinishReason::none)
      out = chunk(index, c.text, &event);
    c.text.clear();
    c.ids.clear();
    c.logprobs.restart();
    return out;
  }

  size_t take(size_t prompt, const engine::Event& event) {
    usage_.add(event);
    const size_t index = prompt * n_ + static_cast<size_t>(event.choice);
    Choice& c = choices_[index];
    if (echoes_logprobs() && !std::exchange(c.echoed, true)) {
      const EchoedPrompt& known = prompts_[prompt];
      c.text = known.text;
      size_t position = 0;
      c.logprobs.add_first(*model_, known.first_token, known.in_text(position));
      for (const auto& token : known.scores.tokens())
        c.logprobs.add(*model_, token, form_.top, known.in_text(++position));
    }
    c.text += event.text;
    if (form_.logprobs)
      for (const auto& token : event.logprobs) c.logprobs.add(*model_, token, form_.top);
    if (form_.more.token_ids) c.ids.insert(c.ids.end(), event.tokens.begin(), event.tokens.end());
    if (event.reason != engine::FinishReason::none) {
      c.finish_reason = finish_reason_json(event.reason);
      c.matched_stop = matched_stop_json(event);
    }
    return index;
  }

  bool echoes_logprobs() const { return form_.echo && form_.logprobs; }
  bool scores_prompts() const { return echoes_logprobs() || form_.more.prompt; }

  JsonObject head() const {
    JsonObject out;
    out.add("id", id_).add("object", "text_completion").add("created", created_).add("model", model_->names[0]);
    return out;
  }

  std::string choice_json(size_t index, const std::string& text, bool with_prompt) const {
    const Choice& c = choices_[index];
    const EchoedPrompt& prompt = prompts_[index / n_];
    JsonObject out;
    out.add("text", text)
        .add("index", index)
        .raw("logprobs", form_.logprobs && !c.logprobs.empty() ? c.logprobs.json() : "null")
        .raw("finish_reason", c.finish_reason)
        .raw("matched_stop", c.matched_stop);
    if (form_.more.token_ids) out.raw("token_ids", ids_json(c.ids));
    if (form_.more.token_ids && with_prompt) out.raw("prompt_token_ids", ids_json(prompt.ids));
    if (form_.more.prompt)
      out.raw("prompt_logprobs", prompt_logprobs_json(*model_, prompt.scores.tokens(), *form_.more.prompt));
    return out.str();
  }

  // The first chunk of a choice shows its prompt's ids.
  std::string chunk(size_t index, const std::string& text, const engine::Event* event) {
    JsonObject out = head();
    const bool first = !std::exchange(choices_[index].begun, true);
    out.raw("choices", JsonArray().raw(choice_json(index, text, first)).str());
    if (event != nullptr && event->reason != engine::FinishReason::none) out.raw("metadata", metadata_json());
    if (form_.stream.continuous)
      out.raw("usage", usage_json(event != nullptr ? event->usage : prompts_[index / n_].no_usage));
    else if (form_.stream.usage)
      out.raw("usage", "null");
    return sse(out.str());
  }

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  int64_t created_ = unix_time();
  Form form_;
  size_t n_;
  std::vector<EchoedPrompt> prompts_;
  std::vector<Choice> choices_;
  UsageSum usage_;
};
}  // namespace

void completions(Service& service, const ExchangePtr& exchange) {
  AnswerRequest given(service, *exchange);
  auto& [model, limits, body, fields] = given;
  check_model_name(fields, *model);

  Job job = name_job(fields, service, "cmpl-");
  Form form;
  form.stream = read_stream_options(fields, service.unknown_fields());
  job.stream = form.stream.stream;
  engine::Params params = read_params(fields, kCompletionNames, *model, limits.vocab, service.next_seed());

  form.echo = fields.boolean("echo").value_or(false);
  // A number asks for log probabilities with that number of alternatives; the chosen token is always among them.
  if (const auto top = fields.integer("logprobs", 0, engine::kMaxTopLogprobs)) {
    form.logprobs = params.logprobs = true;
    params.top_logprobs = static_cast<int>(*top);
    form.top = params.top_logprobs;
  }
  form.more = read_more_logprobs(fields, limits.vocab, job.stream, params);
  if (const auto best = fields.integer("best_of", 1, engine::kMaxChoices); best && *best != params.n)
    fields.refuse("best_of", fmt::format("is {}; accepted: the value of n, {}", *best, params.n),
                  "unsupported_parameter");
  fields.refuse_unless_empty({"suffix"});
  engine::Request options;
  read_request_options(fields, service.config(), options);
  const bool special = fields.boolean("add_special_tokens").value_or(true);
  std::vector<Prompt> prompts = read_prompts(fields, "prompt", model->tokenizer, limits, special);
  const auto constraint = read_constraint(fields, service.unknown_fields());
  refuse_tools(fields);
  refuse_what_is_not_there(fields);
  fields.finish(service.unknown_fields());
  check_choices(prompts.size(), params.n);
  if (constraint) apply_constraint(*constraint, *model, std::nullopt, params);

  for (const Prompt& prompt : prompts) {
    engine::Request request = options;
    request.prompt = prompt.ids;
    request.params = params;
    if (form.echo && form.logprobs) request.params.prompt_logprobs_from = 0;
    fit_to_context(request, kCompletionNames, limits.context_length, "prompt");
    job.requests.push_back(std::move(request));
  }
  job.writer = std::make_unique<CompletionWriter>(model, job.id, prompts, params.n, form);
  start_generation(service, exchange, std::move(job));
}

}  // namespace sluice::server
