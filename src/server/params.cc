// SPDX-License-Identifier: Apache-2.0
#include "server/params.h"

#include <algorithm>
#include <charconv>
#include <limits>

#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

namespace {
constexpr int64_t kMany = std::numeric_limits<int32_t>::max();

void read_sampling(Fields& fields, const SamplingDefaults& defaults, sampling::SamplingOptions& s) {
  s.temperature = fields.number("temperature", {.min = 0}).value_or(defaults.temperature);
  s.top_p = fields.number("top_p", {0, 1, true}).value_or(defaults.top_p);
  s.min_p = fields.number("min_p", {0, 1}).value_or(defaults.min_p);
  s.top_k = fields.integer("top_k", -1, kMany).value_or(defaults.top_k);
  if (s.top_k < 0) s.top_k = 0;  // SGLang's "all"
  s.presence_penalty = fields.number("presence_penalty", {-2, 2}).value_or(0);
  s.frequency_penalty = fields.number("frequency_penalty", {-2, 2}).value_or(0);
  s.repetition_penalty =
      fields.number("repetition_penalty", {sampling::kLeastRepetitionPenalty, 2}).value_or(defaults.repetition_penalty);
}

void read_logit_bias(Fields& fields, int64_t vocab, sampling::SamplingOptions& s) {
  const io::JsonValue* value = fields.find("logit_bias");
  if (value == nullptr) return;
  const auto* object = value->as<io::JsonValue::Object>();
  if (object == nullptr || object->size() > engine::kMaxLogitBias)
    fields.refuse_type("logit_bias", *value,
                       fmt::format("an object of at most {} token ids with a bias each", engine::kMaxLogitBias));
  for (const io::JsonMember& member : *object) {
    int32_t id = -1;
    const char* end = member.key.data() + member.key.size();
    const auto [stop, error] = std::from_chars(member.key.data(), end, id);
    if (error != std::errc() || stop != end || id < 0 || id >= vocab)
      fields.refuse("logit_bias",
                    fmt::format("has the key {}; accepted: token ids from 0 to {}", io::quote(member.key), vocab - 1));
    Fields bias(*value, "logit_bias.");
    s.logit_bias.emplace_back(id, static_cast<float>(bias.number(member.key, {-100, 100}).value_or(0)));
  }
}

void read_stops(Fields& fields, int64_t vocab, engine::Params& p) {
  p.stop = fields.string_or_strings("stop", engine::kMaxStopStrings);
  for (const std::string& s : p.stop)
    if (s.empty() || s.size() > engine::kMaxStopBytes)
      fields.refuse("stop",
                    fmt::format("has a string of {} bytes; accepted: 1 to {}", s.size(), engine::kMaxStopBytes));
  p.stop_tokens = fields.token_ids("stop_token_ids", engine::kMaxStopTokens, vocab);
  p.ignore_eos = fields.boolean("ignore_eos").value_or(false);
  p.skip_special_tokens = fields.boolean("skip_special_tokens").value_or(true);
  p.include_stop = fields.boolean("no_stop_trim").value_or(false);
  if (fields.boolean("include_stop_str_in_output").value_or(false)) p.include_stop = true;  // vLLM's name for it
}

// vLLM's allowed_token_ids and bad_words. A word is banned as it is tokenized at the beginning of a text and after a
// space; other cuts of the same letters into tokens are not found.
void read_token_constraints(Fields& fields, const text::Tokenizer& tokenizer, int64_t vocab, engine::Params& p) {
  p.sampling.allowed_tokens = fields.token_ids("allowed_token_ids", static_cast<size_t>(vocab), vocab);
  if (fields.has("allowed_token_ids") && p.sampling.allowed_tokens.empty())
    fields.refuse("allowed_token_ids", "is empty; accepted: at least one token id");
  for (const std::string& word : fields.string_or_strings("bad_words", engine::kMaxBadWords / 2)) {
    const size_t first = word.find_first_not_of(' ');
    if (first == word.npos) fields.refuse("bad_words", "has a string without a word");
    for (const char* before : {"", " "}) {
      std::vector<int32_t> ids = tokenizer.encode(before + word.substr(first), {.add_special_tokens = false});
      if (ids.empty() || ids.size() > engine::kMaxBadWordTokens)
        fields.refuse("bad_words", fmt::format("has a string of {} tokens; accepted: 1 to {}", ids.size(),
                                               engine::kMaxBadWordTokens));
      if (p.bad_words.empty() || p.bad_words.back() != ids) p.bad_words.push_back(std::move(ids));
    }
  }
}
}  // namespace

engine::Params read_params(Fields& fields, const ParamNames& names, const ServedModel& model, int64_t vocab,
                           uint64_t seed) {
  engine::Params p;
  p.n = fields.integer("n", 1, names.most_choices).value_or(1);
  p.max_tokens = fields.integer(names.max_tokens, 0, kMany);
  if (!names.max_tokens_also.empty()) {
    const auto also = fields.integer(names.max_tokens_also, 0, kMany);
    if (!p.max_tokens) p.max_tokens = also;
  }
  p.min_tokens = fields.integer(names.min_tokens, 0, kMany).value_or(0);
  read_sampling(fields, model.defaults, p.sampling);
  read_logit_bias(fields, vocab, p.sampling);
  const auto given =
      fields.integer(names.seed, std::numeric_limits<int64_t>::min(), std::numeric_limits<int64_t>::max());
  p.sampling.seed = given ? static_cast<uint64_t>(*given) : seed;
  read_stops(fields, vocab, p);
  read_token_constraints(fields, model.tokenizer, vocab, p);
  fields.ignore({"spaces_between_special_tokens"});  // byte-level text has its spaces in the tokens
  return p;
}

void fit_to_context(engine::Request& request, const ParamNames& names, int64_t context_length,
                    std::string_view prompt_field) {
  engine::Params& p = request.params;
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  if (prompt == 0) refuse(prompt_field, fmt::format("{} has no tokens; at least one is needed", prompt_field));
  const bool scores = p.prompt_logprobs_from.has_value();
  const int64_t wanted = p.max_tokens.value_or(scores ? 0 : 1);
  // LiteLLM and others know this error by the words "is longer than the model's context length".
  if (prompt > context_length)
    refuse(prompt_field,
           fmt::format("{} is longer than the model's context length of {} tokens: it has {}", prompt_field,
                       context_length, prompt),
           "context_length_exceeded");
  if (wanted > context_length - prompt)
    refuse(prompt_field,
           fmt::format("{} and answer are too long: the context length is {} tokens, the prompt has {}, and {} more "
                       "are asked for",
                       prompt_field, context_length, prompt, wanted),
           "context_length_exceeded");
  if (!p.max_tokens && names.default_max_tokens)
    p.max_tokens = std::min(*names.default_max_tokens, context_length - prompt);
  const int64_t most = p.max_tokens.value_or(context_length - prompt);
  const auto name = [&](std::string_view field) { return std::string(names.path).append(field); };
  if (p.min_tokens > most)
    refuse(name(names.min_tokens), fmt::format("{} is {}; accepted: 0 to {}, the most tokens of the answer",
                                               name(names.min_tokens), p.min_tokens, most));
  // A request without new tokens must score its prompt. If nobody asked for scores, the last token is scored.
  if (p.max_tokens == 0 && !scores) p.prompt_logprobs_from = prompt - 1;
}

}  // namespace sluice::server
