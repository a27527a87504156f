// SPDX-License-Identifier: Apache-2.0
// One sequence from prompt to end: prefill in chunks, decoding, speculative decoding with the model's own draft head.
// It drives one Runner with one slot; the engine puts many sequences into the steps of its Runner by the same rules.
#pragma once

#include <chrono>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "model/draft_depth.h"
#include "model/runner.h"
#include "sampling/sampler.h"

namespace sluice::model {

using sampling::SamplingOptions;
using sampling::validate;

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // one of these ends the text; it is the last id given out
};

enum class FinishReason : uint8_t { stop, length, cancelled };

struct Generated {
  std::vector<int32_t> ids;
  FinishReason reason = FinishReason::length;
  int64_t forwards = 0;  // of the model while decoding
  int64_t drafted = 0, accepted = 0;
  double prefill_seconds = 0, decode_seconds = 0;

  double accept_rate() const { return drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0; }
  // Tokens per forward, the one that the model adds itself included.
  double accept_length() const {
    return forwards > 0 ? static_cast<double>(accepted + forwards) / static_cast<double>(forwards) : 0;
  }
};

class Generator {
 public:
  struct Config {
    int64_t max_tokens = 0;     // of the longest sequence, prompt and new tokens; memory for it is reserved
    int speculative_steps = 0;  // drafts per step from the multi-token-prediction head; 0: none
    int64_t prefill_chunk = 0;  // prompt tokens per step; 0: ops::OpsTraits::prompt_rows
    RecordingConfig recording = {};
    // Whether a step is enqueued before the token of the one before has come to the host. The text is the same; a step
    // is wasted at the end of a text that a stop token ends. Nothing: on every device but the host.
    std::optional<bool> overlap = std::nullopt;
    // At most speculative_steps drafts, as DraftDepth finds them to pay. What it learns goes from text to text.
    bool adaptive_drafts = false;
  };
  // `ctx` and `model` must live longer. Throws unsupported when speculative_steps > 0 and the model has no draft head
  // or is not row_invariant.
  Generator(Context& ctx, const Model& model, const Config& config);
  Generator(Context& ctx, const Model& model, int64_t max_tokens, int speculative_steps = 0, int64_t prefill_chunk = 0)
      : Generator(ctx, model, Config{max_tokens, speculative_steps, prefill_chunk, {}}) {}

  // on_token is called for every new id as soon as it is certain; false cancels. The text, greedy or sampled, is the
  // same for every number of drafts in every step, as drafts are made for row_invariant models only. Throws
  // invalid_argument: empty prompt, prompt and max_new_tokens longer than max_tokens.
  Generated run(std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t)>& on_token = {});

 private:
  using Clock = std::chrono::steady_clock;
  using Emit = std::function<bool(int32_t)>;  // false: the text ends with this token
  struct Text;

  int32_t prefill(std::span<const int32_t> prompt, const sampling::Sampler& sampler);
  void decode(Text& text);
  void begin_step(const Text& text, int64_t ahead);
  bool end_step(Text& text);
  bool verify(Text& text, int64_t drafts);
  int32_t choose(const sampling::Sampler& sampler, int64_t row, int64_t position);
  void advance_draft_head(std::span<const int32_t> next_tokens, int64_t context, bool decoding);
  int drafts() { return depth_ ? depth_->choose(1) : steps_; }
  double period();
  void learn(int64_t drafts, int64_t tokens);

  int64_t max_tokens_, prefill_chunk_;
  int steps_;
  bool overlap_;
  std::optional<DraftDepth> depth_;  // nothing: always steps_
  Clock::time_point last_end_;       // of the last step, later by what the caller's function has taken since
  Runner runner_;
  std::vector<int32_t> blocks_, verify_, next_;
  std::vector<sampling::SampleRow> rows_;
  std::vector<sampling::LogitEdit> edits_;
  std::vector<sampling::Sampled> sampled_;
};

}  // namespace sluice::model
