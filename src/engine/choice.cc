// SPDX-License-Identifier: Apache-2.0
#include "engine/choice.h"

#include <algorithm>

namespace sluice::engine {

namespace {
sampling::SamplingOptions options_of_choice(sampling::SamplingOptions options, int index) {
  // The golden ratio's odd multiples: no two indexes share a seed, and the first keeps the request's.
  options.seed += static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;
  return options;
}
}  // namespace

Choice::Choice(RequestId id, int index, const Request& request, const Setup& setup)
    : params_(request.params),
      tokens_(request.prompt),
      stops_(request.params.stop_tokens),
      prompt_length_(static_cast<int64_t>(request.prompt.size())),
      max_length_(setup.max_length),
      sampler_(options_of_choice(request.params.sampling, index)),
      matcher_(request.params.stop, request.params.include_stop),
      hashes_(setup.hashes),
      key_(setup.key),
      block_size_(static_cast<size_t>(setup.block_size)) {
  if (index == 0) scored_from_ = params_.prompt_logprobs_from;
  if (scored_from_) scored_to_ = std::max<int64_t>(*scored_from_, 1);  // nothing comes before the first token
  if (!params_.ignore_eos) stops_.insert(stops_.end(), setup.model_stops.begin(), setup.model_stops.end());
  if (setup.tokenizer != nullptr) detokenizer_.emplace(*setup.tokenizer, params_.skip_special_tokens);
  sampler_.see_prompt(tokens_);
  event_.request = id;
  event_.choice = index;
  event_.usage.prompt_tokens = prompt_length_;
}

int32_t Choice::advance(std::span<float> logits) {
  if (params_.logprobs) raw_.assign(logits.begin(), logits.end());
  const bool may_stop = answer_length() >= params_.min_tokens;
  const int32_t token = sampler_.sample(logits, static_cast<int64_t>(tokens_.size()),
                                        may_stop ? std::span<const int32_t>() : std::span<const int32_t>(stops_));
  tokens_.push_back(token);
  sampler_.see(token);
  event_.tokens.push_back(token);
  ++event_.usage.completion_tokens;
  if (params_.logprobs) event_.logprobs.push_back(sampling::logprob_of(raw_, token, params_.top_logprobs));
  if (is_stop(token)) {
    event_.stop_token = token;
    if (params_.include_stop) add_text(token);
    finish(FinishReason::stop);
    return token;
  }
  add_text(token);
  if (!finished() && static_cast<int64_t>(tokens_.size()) == max_length_) finish(FinishReason::length);
  return token;
}

bool Choice::is_stop(int32_t token) const { return std::find(stops_.begin(), stops_.end(), token) != stops_.end(); }

void Choice::add_text(int32_t token) {
  if (!detokenizer_) return;
  const std::string piece = detokenizer_->push(token);
  if (answer_length() <= params_.min_tokens) {
    event_.text += piece;
  } else if (matcher_.push(piece, event_.text)) {
    event_.stop_string = matcher_.matched();
    event_.reason = FinishReason::stop;
  }
}

void Choice::score_prompt(int64_t position, std::span<const float> logits) {
  if (position < scored_to_) return;  // computed again after a pre-emption
  event_.prompt_logprobs.push_back(
      sampling::logprob_of(logits, tokens_[static_cast<size_t>(position)], params_.top_logprobs));
  scored_to_ = position + 1;
}

void Choice::finish(FinishReason reason, std::string error) {
  event_.reason = reason;
  event_.error = std::move(error);
  if (!detokenizer_) return;
  const std::string rest = detokenizer_->finish();
  if (reason == FinishReason::length && matcher_.push(rest, event_.text)) {  // completed by U+FFFD
    event_.reason = FinishReason::stop;
    event_.stop_string = matcher_.matched();
    return;
  }
  matcher_.finish(event_.text);
  if (reason != FinishReason::length) event_.text += rest;
}

void Choice::take_hashes(std::vector<BlockHash>& out) {
  if (!hashes_) return;
  for (; hashed_ + block_size_ <= tokens_.size(); hashed_ += block_size_) {
    last_hash_ = hash_block(key_, last_hash_, std::span<const int32_t>(tokens_).subspan(hashed_, block_size_));
    out.push_back(last_hash_);
  }
}

void Choice::clear_event() {
  event_.tokens.clear();
  event_.text.clear();
  event_.logprobs.clear();
  event_.prompt_logprobs.clear();
}

}  // namespace sluice::engine
