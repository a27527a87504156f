// SPDX-License-Identifier: Apache-2.0
// One answer in the making: its tokens, what chooses the next one, what ends it, and the event that tells of it.
#pragma once

#include <optional>

#include "engine/block_hash.h"
#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"

namespace sluice::engine {

class Choice {
 public:
  struct Setup {
    const text::Tokenizer* tokenizer = nullptr;  // null: no text
    std::span<const int32_t> model_stops;
    int64_t max_length = 0;  // prompt and answer
    int64_t block_size = 0;
    HashKey key;
    bool hashes = false;  // the prefix cache is in use
  };
  Choice(RequestId id, int index, const Request& request, const Setup& setup);

  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t prompt_length() const { return prompt_length_; }
  int64_t max_length() const { return max_length_; }
  int64_t answer_length() const { return static_cast<int64_t>(tokens_.size()) - prompt_length_; }
  // The first position of the prompt whose log probability is wanted.
  std::optional<int64_t> scored_from() const { return scored_from_; }
  // Memory for the whole answer, so that decoding allocates none.
  void reserve() { tokens_.reserve(static_cast<size_t>(max_length_)); }

  // Chooses the token behind the known ones from its logits, which it may change. Afterwards finished() may be true.
  int32_t advance(std::span<float> logits);
  // The log probability of the prompt's token at `position`, from the logits of the one before; each position once.
  void score_prompt(int64_t position, std::span<const float> logits);
  // Nothing more is wanted after the prompt.
  bool prompt_only() const { return max_length_ == prompt_length_; }
  void finish(FinishReason reason, std::string error = "");
  bool finished() const { return event_.reason != FinishReason::none; }

  // Names of blocks that were completed since the last call.
  void take_hashes(std::vector<BlockHash>& out);

  // What is new since clear_event(). The engine fills in its usage.
  Event& event() { return event_; }
  void clear_event();

  bool started = false;  // it was in a step
  Clock::time_point added = Clock::now(), last_token{};

 private:
  void add_text(int32_t token);
  bool is_stop(int32_t token) const;

  Params params_;
  std::vector<int32_t> tokens_, stops_;
  int64_t prompt_length_, max_length_;
  std::optional<int64_t> scored_from_;
  int64_t scored_to_ = 0;
  sampling::Sampler sampler_;
  std::optional<text::Detokenizer> detokenizer_;
  StopMatcher matcher_;
  std::vector<float> raw_;  // logits before the sampler changes them
  bool hashes_;
  HashKey key_;
  BlockHash last_hash_;
  size_t block_size_, hashed_ = 0;  // tokens
  Event event_;
};

}  // namespace sluice::engine
