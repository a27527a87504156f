// SPDX-License-Identifier: Apache-2.0
#include "engine/output_sequence.h"

#include <algorithm>
#include <cmath>
#include <utility>

namespace sluice::engine {

namespace {
sampling::SamplingOptions options_of_index(sampling::SamplingOptions options, int index) {
  // The golden ratio's odd multiples: no two indexes share a seed, and the first keeps the request's.
  options.seed += static_cast<uint64_t>(index) * 0x9e3779b97f4a7c15u;
  return options;
}
}  // namespace

OutputSequence::OutputSequence(RequestId id, int index, const Request& request, const Setup& setup)
    : params_(request.params),
      tokens_(request.prompt),
      stops_(request.params.stop_tokens),
      prompt_length_(static_cast<int64_t>(request.prompt.size())),
      max_length_(setup.max_length),
      sampler_(options_of_index(request.params.sampling, index), setup.vocab),
      matcher_(request.params.stop, request.params.include_stop),
      hashes_(setup.hashes),
      key_(setup.key),
      block_size_(static_cast<size_t>(setup.block_size)) {
  if (index == 0) scored_from_ = params_.prompt_logprobs_from;
  restart_scores();
  if (!params_.ignore_eos) stops_.insert(stops_.end(), setup.model_stops.begin(), setup.model_stops.end());
  if (params_.grammar) constraint_.emplace(params_.grammar, params_.thoughts, stops_, setup.vocab);
  if (setup.tokenizer != nullptr) detokenizer_.emplace(*setup.tokenizer, params_.skip_special_tokens);
  sampler_.see_prompt(tokens_);
  routed_experts = request.routed_experts;
  routed_from_ = static_cast<size_t>(request.routed_from);
  queue_timeout = request.queue_timeout;
  timeout = request.timeout;
  if (!request.cache_salt.empty()) last_hash_ = hash_salt(key_, request.cache_salt);
  if (setup.names) names_.emplace(request.cache_salt);
  event_.request = id;
  event_.choice = index;
  event_.usage.prompt_tokens = prompt_length_;
}

sampling::SampleRow OutputSequence::next_row(int32_t logits, std::span<const int32_t> drafts,
                                             std::vector<sampling::LogitEdit>& edits) {
  const auto position = static_cast<int64_t>(tokens_.size() + drafts.size());
  sampling::SampleRow row = sampler_.row(logits, position, banned(drafts), drafts, edits);
  if (params_.logprobs) row.top_logprobs = params_.top_logprobs;
  return row;
}

bool OutputSequence::independent() const {
  return !masked() && !sampler_.needs_history() && params_.bad_words.empty() && !params_.logprobs && !scored_from_ &&
         !routed_experts && !prompt_only();
}

size_t OutputSequence::fill_masks(std::span<const int32_t> drafts, std::span<uint32_t> masks) {
  const std::span<const uint32_t> allowed = sampler_.allowed_mask();
  const size_t words = masks.size() / (drafts.size() + 1);
  if (!constraint_) {
    for (size_t at = 0; at < masks.size(); at += words)
      std::copy(allowed.begin(), allowed.end(), masks.begin() + static_cast<std::ptrdiff_t>(at));
    return drafts.size() + 1;
  }
  const size_t rows = constraint_->fill(drafts, masks);
  for (size_t i = 0; !allowed.empty() && i < rows * words; ++i) masks[i] &= allowed[i % words];
  return rows;
}

// The tokens that must not follow `drafts`: stop tokens before min_tokens, and the last token of a bad word whose
// others end the answer. `drafts` count as the answer's.
std::span<const int32_t> OutputSequence::banned(std::span<const int32_t> drafts) {
  banned_.clear();
  const auto length = answer_length() + static_cast<int64_t>(drafts.size());
  if (length < params_.min_tokens) banned_ = stops_;
  const auto at = [&](int64_t i) {  // of the answer
    return i < answer_length() ? tokens_[static_cast<size_t>(prompt_length_ + i)]
                               : drafts[static_cast<size_t>(i - answer_length())];
  };
  for (const std::vector<int32_t>& word : params_.bad_words) {
    const auto before = static_cast<int64_t>(word.size()) - 1;
    bool matches = before <= length;
    for (int64_t i = 0; matches && i < before; ++i) matches = at(length - before + i) == word[static_cast<size_t>(i)];
    if (matches) banned_.push_back(word.back());
  }
  return banned_;
}

int32_t OutputSequence::advance(const sampling::Sampled& sampled) {
  const bool constrained = masked() || !params_.bad_words.empty() || answer_length() < params_.min_tokens;
  if (constrained && sampled.problem == sampling::Sampled::Problem::not_finite && sampled.largest < 0) {
    finish(FinishReason::stop);
    return kNoToken;
  }
  const int32_t token = sampling::checked_token(sampled, static_cast<int64_t>(tokens_.size()));
  tokens_.push_back(token);
  sampler_.see(token);
  event_.tokens.push_back(token);
  ++event_.usage.completion_tokens;
  if (params_.logprobs) event_.logprobs.push_back(sampled.logprob);
  if (is_stop(token)) {
    event_.stop_token = token;
    if (params_.include_stop) add_text(token);
    finish(FinishReason::stop);
    return token;
  }
  if (constraint_) constraint_->accept(token);
  add_text(token);
  if (!finished() && static_cast<int64_t>(tokens_.size()) == max_length_) finish(FinishReason::length);
  return token;
}

bool OutputSequence::is_stop(int32_t token) const {
  return std::find(stops_.begin(), stops_.end(), token) != stops_.end();
}

void OutputSequence::add_text(int32_t token) {
  if (!detokenizer_) return;
  const std::string piece = detokenizer_->push(token);
  if (answer_length() <= params_.min_tokens) {
    event_.text += piece;
  } else if (matcher_.push(piece, event_.text)) {
    event_.stop_string = matcher_.matched();
    event_.reason = FinishReason::stop;
  }
}

sampling::SampleRow OutputSequence::score_row(int32_t logits, int64_t position) const {
  return {.logits = logits, .forced = tokens_[static_cast<size_t>(position)], .top_logprobs = params_.top_logprobs};
}

void OutputSequence::score_prompt(const sampling::Sampled& sampled) {
  check_file(!std::isnan(sampled.logprob.chosen.logprob),
             "the log probability at position {} is NaN; the weights or their scales are broken", scored_to_);
  scores_.push_back(sampled.logprob);
  if (++scored_to_ == prompt_length_) event_.prompt_logprobs = std::exchange(scores_, {});
}

void OutputSequence::restart_scores() {
  if (!scored_from_ || scored_to_ >= prompt_length_) return;
  scored_to_ = std::max<int64_t>(*scored_from_, 1);  // the first token has no probability
  scores_.clear();
}

void OutputSequence::finish(FinishReason reason, std::string error) {
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

void OutputSequence::take_hashes(std::vector<BlockHash>& out) {
  if (!hashes_) return;
  for (; hashed_ + block_size_ <= tokens_.size(); hashed_ += block_size_) {
    const auto block = std::span<const int32_t>(tokens_).subspan(hashed_, block_size_);
    last_hash_ = hash_block(key_, last_hash_, block);
    out.push_back(last_hash_);
    if (names_) names_->add(block);
  }
}

void OutputSequence::set_routed_experts(int64_t position, std::span<const int32_t> experts) {
  routed_stride_ = experts.size();
  const size_t at = static_cast<size_t>(position) * routed_stride_;
  if (routed_.size() < at + routed_stride_) routed_.resize(at + routed_stride_, -1);
  std::copy(experts.begin(), experts.end(), routed_.begin() + static_cast<std::ptrdiff_t>(at));
}

void OutputSequence::give_routed_experts() {
  routed_.resize(std::min(routed_.size(), (tokens_.size() - 1) * routed_stride_));
  const size_t unwanted = std::min(routed_.size(), routed_from_ * routed_stride_);
  routed_.erase(routed_.begin(), routed_.begin() + static_cast<std::ptrdiff_t>(unwanted));
  event_.routed_experts = std::move(routed_);
}

void OutputSequence::clear_event() {
  event_.tokens.clear();
  event_.text.clear();
  event_.logprobs.clear();
  event_.prompt_logprobs.clear();
}

}  // namespace sluice::engine
