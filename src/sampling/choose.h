// SPDX-License-Identifier: Apache-2.0
// Logits -> token, for the rows of a step: plain data in, plain data out, so that any device can do it. choose_token()
// is the definition, and the CPU's implementation.
//
// Order, as in transformers and SGLang: logit_bias, then the three penalties (both as edits), then the mask, then
// temperature, top_k, top_p (within what top_k left), min_p (relative to the most likely token). Equal logits are
// ranked by id, the lowest first. The uniform number that decides a choice depends on seed and position only, so that
// neither the batch nor speculation nor chunking changes a text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "sampling/logprobs.h"

namespace sluice::sampling {

// One change to one logit l: l + bias; then, unless it is 1, l / repetition if l > 0 and l * repetition if not; then l
// - subtract; -infinity if banned. Applied in the order of the list. Tokens outside the vocabulary are skipped.
struct LogitEdit {
  int32_t token = 0;
  float bias = 0;
  double repetition = 1;
  double subtract = 0;
  bool banned = false;
};

// The sampling parameters of one row of logits.
struct SampleRow {
  int32_t logits = 0;                     // its row of the logits
  int32_t first_edit = 0, num_edits = 0;  // of SampleBatch::edits
  int32_t mask = -1;                      // its row of SampleBatch::masks; -1: every token may be chosen
  // 0 or more: this token is "chosen", for its log probability (scored prompts). The logits are neither edited nor
  // checked.
  int32_t forced = -1;
  int32_t top_logprobs = -1;  // how many of the most likely tokens are reported; -1: no log probabilities at all
  double temperature = 0;     // 0: the first of the largest logits
  int64_t top_k = 0;          // 0: all
  double top_p = 1, min_p = 0;
  uint64_t seed = 0;
  int64_t position = 0;  // of the token that is chosen
};

// Words of a mask of V tokens: bit id % 32 of word id / 32 is 1 where the token may be chosen.
inline constexpr int64_t mask_words(int64_t vocab) { return (vocab + 31) / 32; }

struct SampleBatch {
  std::span<const SampleRow> rows;
  std::span<const LogitEdit> edits;
  std::span<const uint32_t> masks = {};  // [.., mask_words(V)]
};

struct Sampled {
  enum class Problem : uint8_t { none, nan, not_finite };
  int32_t token = -1;
  Problem problem = Problem::none;  // a NaN among the logits, or a largest one that is infinite: token is -1
  float largest = 0;                // logit, after the edits
  TokenLogprob logprob;             // where it was asked for
};

// Throws bad_file for a NaN and invalid_argument for infinite logits, naming the position: broken weights must not lead
// to a silent choice.
int32_t checked_token(const Sampled& sampled, int64_t position);

// Reused between calls.
struct ChooseScratch {
  struct Candidate {
    float logit;
    int32_t id;
  };
  std::vector<Candidate> candidates;
  std::vector<float> logits;  // as they came
};

// Chooses for one row of the batch, or one like them; `logits` [V] are edited in place.
void choose_token(const SampleRow& row, const SampleBatch& batch, std::span<float> logits, ChooseScratch& scratch,
                  Sampled& out);

// Uniform in [0, 1) from (seed, position): two rounds of splitmix64's finaliser (Steele et al., 2014).
inline double uniform_at(uint64_t seed, int64_t position) {
  const auto mix = [](uint64_t z) {
    z += 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
  };
  return static_cast<double>(mix(mix(seed) ^ static_cast<uint64_t>(position)) >> 11) * 0x1p-53;
}

}  // namespace sluice::sampling
