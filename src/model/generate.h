// SPDX-License-Identifier: Apache-2.0
// One sequence from prompt to end: prefill in chunks, decoding, speculative decoding with the model's own draft head.
// It drives one Runner with one slot; the engine puts many sequences into the steps of its Runner by the same rules.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/runner.h"
#include "sampling/sampler.h"

namespace sluice::model {

using sampling::SamplingOptions;
using sampling::validate;

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // one of these ends the text; it is the last id given out
  int speculative_steps = 0;         // drafts per step from the multi-token-prediction head; 0: none
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
    int64_t max_tokens = 0;  // of the longest sequence, prompt and new tokens; memory for it is reserved
    int speculative_steps = 0;
    int64_t prefill_chunk = 0;  // prompt tokens per step; 0: default_prefill_chunk()
    RecordingConfig recording = {};
    // Whether a step is enqueued before the token of the one before has come to the host. The text is the same; a step
    // is wasted at the end of a text that a stop token ends. Nothing: on every device but the host.
    std::optional<bool> overlap = std::nullopt;
  };
  // `ctx` and `model` must live longer. Throws unsupported when speculative_steps > 0 and the model has no draft head
  // or is not row_invariant.
  Generator(Context& ctx, const Model& model, const Config& config);
  Generator(Context& ctx, const Model& model, int64_t max_tokens, int speculative_steps = 0, int64_t prefill_chunk = 0)
      : Generator(ctx, model, Config{max_tokens, speculative_steps, prefill_chunk, {}}) {}

  // on_token is called for every new id as soon as it is certain; false cancels. The text is the same for every number
  // of speculative steps, as drafts are made for row_invariant models only. Throws invalid_argument: empty prompt,
  // prompt and max_new_tokens longer than max_tokens.
  Generated run(std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t)>& on_token = {});

 private:
  using Emit = std::function<bool(int32_t)>;  // false: the text ends with this token

  void begin_choice(const sampling::Sampler& sampler, int64_t position);
  int32_t end_choice(int64_t position);
  int32_t choose(const sampling::Sampler& sampler, int64_t row, int64_t position);
  void decode(const sampling::Sampler& sampler, const GenerateOptions& options, int32_t next, int64_t context,
              Generated& out, const Emit& emit);
  void decode_ahead(const sampling::Sampler& sampler, int64_t max_new_tokens, int32_t next, int64_t context,
                    Generated& out, const Emit& emit);
  void advance_draft_head(std::span<const int32_t> next_tokens, int64_t context, bool decoding);

  int64_t max_tokens_, prefill_chunk_;
  int steps_;
  bool overlap_;
  Runner runner_;
  std::vector<int32_t> blocks_, verify_, next_;
  std::vector<sampling::SampleRow> rows_;
  std::vector<sampling::LogitEdit> edits_;
  std::vector<sampling::Sampled> sampled_;
};

}  // namespace sluice::model
