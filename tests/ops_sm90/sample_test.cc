// SPDX-License-Identifier: Apache-2.0
// The GPU's choices on whole vocabularies against choose_token(), which is their definition.
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

using sampling::LogitEdit;
using sampling::Sampled;
using sampling::SampleRow;

struct Row {
  const char* name;
  std::vector<float> logits;
};

// Shapes of distributions: peaked as a trained model's, flat, with many equal logits, of bfloat16 values.
std::vector<Row> kinds(int vocab) {
  std::vector<Row> out{{"normal", {}}, {"wide", {}}, {"flat", {}}, {"equal", {}}, {"bfloat16", {}}, {"two values", {}}};
  for (int i = 0; i < vocab; ++i) {
    const float v = normal(2.5f);
    out[0].logits.push_back(v + (random()() % 5000 == 0 ? 12.0f : 0.0f));
    out[1].logits.push_back(normal(40));
    out[2].logits.push_back(normal(0.001f));
    out[3].logits.push_back(-1.25f);
    out[4].logits.push_back(round_to_bf16(v));
    out[5].logits.push_back(random()() % 2 == 0 ? 1.0f : 0.5f);
  }
  return out;
}

TEST(SampleSm90, WholeVocabulariesAgreeWithTheDefinition) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  const auto run_ops = ops::make_ops(gpu.ctx);
  for (const int vocab : {151936, 4097, 33}) {
    std::vector<SampleRow> settings;
    for (const double temperature : {0.0, 0.3, 1.0, 5.0})
      for (const int64_t top_k : {0, 1, 40, 5000})
        for (const double top_p : {1.0, 0.9, 0.3})
          for (const double min_p : {0.0, 0.05}) {
            if (temperature == 0 && (top_k != 0 || top_p != 1 || min_p != 0)) continue;
            SampleRow row;
            row.temperature = temperature, row.top_k = top_k, row.top_p = top_p, row.min_p = min_p;
            row.top_logprobs = settings.size() % 5 == 0 ? 5 : -1;
            settings.push_back(row);
          }
    for (const Row& kind : kinds(vocab)) {
      std::vector<float> all;
      std::vector<SampleRow> rows = settings;
      std::vector<LogitEdit> edits;
      for (size_t i = 0; i < rows.size(); ++i) {
        all.insert(all.end(), kind.logits.begin(), kind.logits.end());
        rows[i].logits = static_cast<int32_t>(i);
        rows[i].seed = random()();
        rows[i].position = static_cast<int64_t>(i);
        rows[i].first_edit = static_cast<int32_t>(edits.size());
        for (int e = 0; i % 3 == 0 && e < 200; ++e)
          edits.push_back({.token = static_cast<int32_t>(random()() % (vocab + 2)),
                           .bias = normal(),
                           .repetition = e % 2 == 0 ? 1.2 : 1.0,
                           .subtract = e % 3 == 0 ? 0.5 : 0.0,
                           .banned = e % 50 == 7});
        rows[i].num_edits = static_cast<int32_t>(edits.size()) - rows[i].first_edit;
        if (i % 4 == 1) rows[i].mask = static_cast<int32_t>(i % 3);
      }
      std::vector<uint32_t> masks(3 * static_cast<size_t>(sampling::mask_words(vocab)));
      for (uint32_t& word : masks) word = static_cast<uint32_t>(random()()) | 1u;
      const auto device = gpu.upload(all);
      std::vector<Sampled> got(rows.size());
      const auto count = static_cast<int64_t>(rows.size());
      run_ops->sample({device.get(), DType::f32, count, vocab, vocab}, {rows, edits, masks}, got);
      sampling::ChooseScratch scratch;
      for (size_t i = 0; i < rows.size(); ++i) {
        Sampled expected;
        const std::span<float> logits(all.data() + i * static_cast<size_t>(vocab), static_cast<size_t>(vocab));
        sampling::choose_token(rows[i], {{}, edits, masks}, logits, scratch, expected);
        SCOPED_TRACE(testing::Message() << vocab << " " << kind.name << " temperature " << rows[i].temperature
                                        << " top_k " << rows[i].top_k << " top_p " << rows[i].top_p << " min_p "
                                        << rows[i].min_p << " edits " << rows[i].num_edits);
        EXPECT_EQ(got[i].token, expected.token);
        EXPECT_EQ(got[i].largest, expected.largest);
        EXPECT_EQ(got[i].problem, expected.problem);
        ASSERT_EQ(got[i].logprob.top.size(), expected.logprob.top.size());
        for (size_t t = 0; t < expected.logprob.top.size(); ++t) {
          EXPECT_EQ(got[i].logprob.top[t].token, expected.logprob.top[t].token);
          EXPECT_FLOAT_EQ(got[i].logprob.top[t].logprob, expected.logprob.top[t].logprob);
        }
      }
      // The edited logits themselves.
      EXPECT_TRUE(gpu.download(device, all.size()) == all) << kind.name;
    }
  }
}

}  // namespace
}  // namespace sluice::test
