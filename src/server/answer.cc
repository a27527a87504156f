// SPDX-License-Identifier: Apache-2.0
#include "server/answer.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>

#include "text/utf8.h"

namespace sluice::server {

void UsageSum::add(const engine::Event& event) {
  if (event.reason == engine::FinishReason::none) return;
  const engine::Usage& u = event.usage;
  if (event.choice == 0) {
    prompt += u.prompt_tokens;
    cached += u.cached_tokens;
  }
  completion += u.completion_tokens;
  drafted += u.drafted;
  accepted += u.accepted;
  queue_seconds = std::max(queue_seconds, u.queue_seconds);
  first_token_seconds = std::max(first_token_seconds, u.first_token_seconds);
  total_seconds = std::max(total_seconds, u.total_seconds);
}

std::string UsageSum::json() const {
  return JsonObject()
      .add("prompt_tokens", prompt)
      .add("completion_tokens", completion)
      .add("total_tokens", prompt + completion)
      .raw("prompt_tokens_details", JsonObject().add("cached_tokens", cached).str())
      .raw("completion_tokens_details", JsonObject()
                                            .add("reasoning_tokens", reasoning)
                                            .add("accepted_prediction_tokens", accepted)
                                            .add("rejected_prediction_tokens", drafted - accepted)
                                            .str())
      .str();
}

std::string usage_json(const engine::Usage& usage, int64_t reasoning_tokens) {
  UsageSum one;
  one.prompt = usage.prompt_tokens;
  one.cached = usage.cached_tokens;
  one.completion = usage.completion_tokens;
  one.drafted = usage.drafted;
  one.accepted = usage.accepted;
  one.reasoning = reasoning_tokens;
  return one.json();
}

std::string UsageSum::timings() const {
  const double prompt_seconds = std::max(0.0, first_token_seconds - queue_seconds);
  const double decode_seconds = std::max(0.0, total_seconds - first_token_seconds);
  const auto rate = [](int64_t tokens, double seconds) {
    return seconds > 0 ? static_cast<double>(tokens) / seconds : 0.0;
  };
  return JsonObject()
      .add("queue_ms", queue_seconds * 1e3)
      .add("cache_n", cached)
      .add("prompt_n", prompt - cached)
      .add("prompt_ms", prompt_seconds * 1e3)
      .add("prompt_per_second", rate(prompt - cached, prompt_seconds))
      .add("predicted_n", completion)
      .add("predicted_ms", decode_seconds * 1e3)
      .add("predicted_per_second", rate(std::max<int64_t>(0, completion - 1), decode_seconds))
      .str();
}

std::string finish_reason_json(engine::FinishReason reason) {
  switch (reason) {
    case engine::FinishReason::none:
      return "null";
    case engine::FinishReason::cancelled:
    case engine::FinishReason::timed_out:
      return "\"abort\"";
    default:
      return json_text(engine::to_string(reason));
  }
}

std::string matched_stop_json(const engine::Event& event) {
  if (event.stop_string) return json_text(*event.stop_string);
  return event.stop_token ? std::to_string(*event.stop_token) : "null";
}

std::string token_text(const ServedModel& model, int32_t id) {
  return text::to_valid_utf8(model.tokenizer.bytes_of(id));
}

std::string token_name(const ServedModel& model, int32_t id, TokenNames names) {
  return names == TokenNames::id ? fmt::format("token_id:{}", id) : token_text(model, id);
}

namespace {
JsonObject likelihood(const ServedModel& model, const sampling::Likelihood& l, TokenNames names) {
  JsonArray bytes;
  for (const char c : model.tokenizer.bytes_of(l.token)) bytes.raw(std::to_string(static_cast<unsigned char>(c)));
  JsonObject out;
  out.add("token", token_name(model, l.token, names));
  out.add("logprob", static_cast<double>(l.logprob)).raw("bytes", bytes.str());
  return out;
}
}  // namespace

std::span<const sampling::Likelihood> alternatives(const sampling::TokenLogprob& token, int top) {
  if (!token.asked.empty()) return token.asked;
  return std::span(token.top).first(std::min(token.top.size(), static_cast<size_t>(top)));
}

std::string token_logprob_json(const ServedModel& model, const sampling::TokenLogprob& token, int top,
                               TokenNames names) {
  JsonArray others;
  for (const sampling::Likelihood& l : alternatives(token, top)) others.raw(likelihood(model, l, names).str());
  return likelihood(model, token.chosen, names).raw("top_logprobs", others.str()).str();
}

std::string prompt_logprobs_json(const ServedModel& model, const std::vector<sampling::TokenLogprob>& tokens, int top) {
  JsonArray out;
  out.raw("null");
  for (const sampling::TokenLogprob& token : tokens) {
    JsonObject position;
    const auto add = [&](const sampling::Likelihood& l, std::optional<size_t> rank) {
      position.raw(std::to_string(l.token), JsonObject()
                                                .add("logprob", static_cast<double>(l.logprob))
                                                .raw("rank", rank ? std::to_string(*rank) : "null")
                                                .add("decoded_token", token_text(model, l.token))
                                                .str());
    };
    const auto is_chosen = [&](const sampling::Likelihood& l) { return l.token == token.chosen.token; };
    const auto place = std::find_if(token.top.begin(), token.top.end(), is_chosen);
    add(token.chosen, place == token.top.end() ? std::nullopt : std::optional<size_t>(place - token.top.begin() + 1));
    for (size_t i = 0; i < std::min(token.top.size(), static_cast<size_t>(top)); ++i)
      if (!is_chosen(token.top[i])) add(token.top[i], i + 1);
    out.raw(position.str());
  }
  return out.str();
}

std::string ids_json(std::span<const int32_t> ids) {
  JsonArray out;
  for (const int32_t id : ids) out.raw(std::to_string(id));
  return out.str();
}

int64_t unix_time() {
  using namespace std::chrono;
  return duration_cast<seconds>(system_clock::now().time_since_epoch()).count();
}

}  // namespace sluice::server
