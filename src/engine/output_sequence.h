// SPDX-License-Identifier: Apache-2.0
// One sequence of a request (OpenAI's "choice"): its tokens, the sampling of the next one, its stop conditions, and the
// event that reports what is new.
#pragma once

#include <optional>

#include "engine/block_hash.h"
#include "engine/cache_events.h"
#include "engine/constraint.h"
#include "engine/request.h"
#include "engine/stop_matcher.h"
#include "text/detokenizer.h"

namespace sluice::engine {

class OutputSequence {
 public:
  struct Setup {
    const text::Tokenizer* tokenizer = nullptr;  // null: no text
    std::span<const int32_t> model_stops;
    int64_t max_length = 0;  // prompt and answer
    int64_t block_size = 0;
    int64_t vocab = 0;
    HashKey key;
    bool hashes = false;  // the prefix cache is in use
    bool names = false;   // and somebody outside mirrors it
  };
  OutputSequence(RequestId id, int index, const Request& request, const Setup& setup);

  std::span<const int32_t> tokens() const { return tokens_; }
  int64_t prompt_length() const { return prompt_length_; }
  int64_t max_length() const { return max_length_; }
  int64_t answer_length() const { return static_cast<int64_t>(tokens_.size()) - prompt_length_; }
  // The first position of the prompt whose log probability is wanted; none: no prompt log probabilities.
  std::optional<int64_t> scored_from() const { return scored_from_; }
  // Reserves memory for the whole answer, so that decoding allocates none.
  void reserve() { tokens_.reserve(static_cast<size_t>(max_length_)); }

  // How a token is chosen does not depend on the tokens before it, and nothing but the token is wanted: the choice may
  // begin before the token before is known.
  bool independent() const;
  // Only some tokens may be chosen: each row that may choose one needs a mask.
  bool masked() const { return constraint_ || !sampler_.allowed_mask().empty(); }
  // The masks of the next token and of the token after each draft, [1 + drafts.size()][sampling::mask_words]. Returns
  // how many were written; what the others choose does not count.
  size_t fill_masks(std::span<const int32_t> drafts, std::span<uint32_t> masks);
  // The sampling parameters of the token after the known ones and `drafts`, from row `logits` of the step's logits. Its
  // mask is the engine's.
  sampling::SampleRow next_row(int32_t logits, std::span<const int32_t> drafts,
                               std::vector<sampling::LogitEdit>& edits);
  // Tokens whose log probabilities are wanted wherever any are.
  std::span<const int32_t> logprob_tokens() const { return params_.logprob_tokens; }
  // Appends the token that was sampled. Afterwards finished() may be true. Throws for broken logits. kNoToken: the
  // request's constraints leave none, and finished() is true.
  static constexpr int32_t kNoToken = -1;
  int32_t advance(const sampling::Sampled& sampled);
  // Log probabilities of the prompt, each position once, also after a pre-emption. next_scored() is the next position
  // that is wanted. score_row() makes the sampling parameters for it; `logits` is the row of the position before.
  // score_prompt() takes the result; the event gets all of them with the last one. Throws for broken logits.
  int64_t next_scored() const { return scored_to_; }
  sampling::SampleRow score_row(int32_t logits, int64_t position) const;
  void score_prompt(const sampling::Sampled& sampled);
  // The prompt will be computed anew, maybe with other weights: so are the log probabilities that are not complete.
  void restart_scores();
  // No new tokens are wanted (max_tokens = 0).
  bool prompt_only() const { return max_length_ == prompt_length_; }
  void finish(FinishReason reason, std::string error = "");
  bool finished() const { return event_.reason != FinishReason::none; }

  // Appends the hashes of the blocks that were completed since the last call.
  void take_hashes(std::vector<BlockHash>& out);
  // Of these blocks, when Setup::names.
  const std::optional<BlockNames>& names() const { return names_; }

  // What is new since clear_event(). The engine fills in its usage.
  Event& event() { return event_; }
  void clear_event();

  // The experts of `position`, layers * K of them. The event of the last token gets those of all tokens before it.
  void set_routed_experts(int64_t position, std::span<const int32_t> experts);
  void give_routed_experts();

  bool started = false;  // it was in a step
  bool routed_experts = false;
  double queue_timeout = 0, timeout = 0;  // as Request's
  Clock::time_point added = Clock::now(), last_token{};

 private:
  void add_text(int32_t token);
  bool is_stop(int32_t token) const;
  std::span<const int32_t> banned(std::span<const int32_t> drafts);

  Params params_;
  std::vector<int32_t> tokens_, stops_, banned_;
  int64_t prompt_length_, max_length_;
  std::optional<int64_t> scored_from_;
  int64_t scored_to_ = 0;
  std::vector<sampling::TokenLogprob> scores_;  // of positions before scored_to_, until they are complete
  sampling::Sampler sampler_;
  std::optional<Constraint> constraint_;
  std::optional<text::Detokenizer> detokenizer_;
  StopMatcher matcher_;
  bool hashes_;
  HashKey key_;
  BlockHash last_hash_;
  std::optional<BlockNames> names_;
  size_t block_size_, hashed_ = 0;  // tokens
  Event event_;
  std::vector<int32_t> routed_;  // [positions, layers * K]
  size_t routed_stride_ = 0, routed_from_ = 0;
};

}  // namespace sluice::engine
