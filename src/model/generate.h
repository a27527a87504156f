// SPDX-License-Identifier: Apache-2.0
// One sequence from prompt to end: prefill in chunks, decoding, speculative decoding with the model's own draft head.
// The engine's loop is another one; the rules (acceptance, rollback, where a run is cut) are these.
#pragma once

#include <functional>
#include <span>
#include <vector>

#include "model/model.h"
#include "sampling/sampler.h"

namespace sluice::model {

using sampling::SamplingOptions;
using sampling::validate;

struct GenerateOptions {
  int64_t max_new_tokens = 128;
  SamplingOptions sampling;
  std::vector<int32_t> stop_tokens;  // one of these ends the text; it is the last id given out
  int speculative_steps = 0;         // drafts a step from the multi-token-prediction head; 0: none
};

enum class FinishReason : uint8_t { stop, length, cancelled };

struct Generated {
  std::vector<int32_t> ids;
  FinishReason reason = FinishReason::length;
  int64_t forwards = 0;  // of the model while decoding
  int64_t drafted = 0, accepted = 0;
  double prefill_seconds = 0, decode_seconds = 0;

  double accept_rate() const { return drafted > 0 ? static_cast<double>(accepted) / static_cast<double>(drafted) : 0; }
  // Tokens a forward, the one that the model adds itself included.
  double accept_length() const {
    return forwards > 0 ? static_cast<double>(accepted + forwards) / static_cast<double>(forwards) : 0;
  }
};

class Generator {
 public:
  // max_tokens: the longest sequence, prompt and new tokens; memory for it is reserved.
  // Throws unsupported when speculative_steps > 0 and the model has no draft head.
  Generator(const Model& model, int64_t max_tokens, int speculative_steps = 0, int64_t prefill_chunk = 512);

  // on_token is called for every new id as soon as it is certain; false cancels. The text is the same for every number
  // of speculative steps. Throws invalid_argument: empty prompt, prompt and max_new_tokens longer than max_tokens.
  Generated run(Context& ctx, std::span<const int32_t> prompt, const GenerateOptions& options,
                const std::function<bool(int32_t)>& on_token = {});

 private:
  struct Run;
  void forward(Context& ctx, std::span<const int32_t> tokens, int64_t context, bool tentative, int64_t logit_rows,
               bool want_hidden);
  void draft(Context& ctx, std::span<const int32_t> tokens, int64_t context, const std::byte* hidden);
  void batch(std::span<const int32_t> tokens, int64_t context, bool tentative, int64_t logit_rows);
  void make_drafts(Context& ctx, int64_t count, int64_t context);

  const Model& model_;
  int64_t max_tokens_, prefill_chunk_;
  int steps_;
  std::unique_ptr<Cache> cache_;
  ops::Workspace workspace_;
  std::vector<int32_t> blocks_, positions_, rows_, drafts_, verify_, extend_;
  std::vector<float> logits_, draft_logits_;
  std::vector<std::byte> hidden_, draft_hidden_;  // D [rows, hidden]
  Sequence sequence_;
  Batch batch_;
};

}  // namespace sluice::model
