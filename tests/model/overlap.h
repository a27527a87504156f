// SPDX-License-Identifier: Apache-2.0
// Generation with a step ahead of the host gives the text of generation that waits for each token.
#pragma once

#include <gtest/gtest.h>

#include <stdexcept>

#include "model/generate.h"

namespace sluice::model {

inline void check_overlap(Context& ctx, const Model& model) {
  const auto generator = [&](bool overlap) {
    return Generator(ctx, model, Generator::Config{.max_tokens = 120, .prefill_chunk = 16, .overlap = overlap});
  };
  Generator plain = generator(false), ahead = generator(true);
  const auto vocab = static_cast<uint64_t>(model.info().vocab);
  for (const size_t length : {1, 17, 40}) {
    std::vector<int32_t> prompt;
    for (size_t i = 0; i < length; ++i) prompt.push_back(static_cast<int32_t>((i * i * 31 + i * 7919 + 5) % vocab));
    for (const double temperature : {0.0, 0.9}) {
      GenerateOptions o;
      o.sampling.temperature = temperature;
      o.sampling.seed = 11;
      o.max_new_tokens = 60;
      const Generated whole = plain.run(prompt, o);
      const auto expect_same = [&](const std::string& what) {
        const Generated expected = plain.run(prompt, o), actual = ahead.run(prompt, o);
        EXPECT_EQ(actual.ids, expected.ids) << what;
        EXPECT_EQ(actual.reason, expected.reason) << what;
        EXPECT_EQ(actual.forwards, expected.forwards) << what;
      };
      for (const int64_t count : {1, 2, 3, 60}) {
        o.max_new_tokens = count;
        expect_same(std::to_string(count) + " tokens");
      }
      for (const size_t at : {0, 1, 2, 30}) {
        o.stop_tokens = {whole.ids[at]};
        expect_same("stop token " + std::to_string(at));
      }
      o.stop_tokens.clear();
      o.sampling.logit_bias = {{whole.ids[1], -100.0f}};
      expect_same("a bias");
      o.sampling.logit_bias.clear();
      o.sampling.repetition_penalty = 1.3;  // looks at each token before the next
      expect_same("a penalty");
      o.sampling.repetition_penalty = 1;
      // The caller ends the text, or throws: the next text is right.
      for (const size_t at : {1, 2, 5}) {
        size_t seen = 0;
        const Generated cut = ahead.run(prompt, o, [&](int32_t) { return ++seen < at; });
        EXPECT_EQ(cut.ids, std::vector<int32_t>(whole.ids.begin(), whole.ids.begin() + static_cast<int64_t>(at)));
        EXPECT_EQ(cut.reason, FinishReason::cancelled);
        seen = 0;
        EXPECT_THROW(
            ahead.run(prompt, o, [&](int32_t) { return ++seen < at ? true : throw std::runtime_error("interrupted"); }),
            std::runtime_error);
        expect_same("after an interruption");
      }
    }
  }
}

}  // namespace sluice::model
