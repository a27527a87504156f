// SPDX-License-Identifier: Apache-2.0
#include "server/prompt_scores.h"

#include <gtest/gtest.h>

#include "tests/server/fake_engine.h"

namespace sluice::server {
namespace {

engine::Event event_of(int choice, std::vector<int32_t> tokens, size_t scores = 0,
                       engine::FinishReason reason = engine::FinishReason::none) {
  engine::Event e;
  e.choice = choice;
  e.tokens = std::move(tokens);
  e.prompt_logprobs.resize(scores);
  e.reason = reason;
  return e;
}

// The events that came through, as "choice:tokens@version ".
struct Log {
  PromptScores scores;
  std::string text;

  void take(const engine::Event& event, const std::string& version) {
    scores.in_order(event, version, [&](const engine::Event& e, const std::string& v) {
      text += std::to_string(e.choice) + ":" + std::to_string(e.tokens.size()) + "@" + v + " ";
    });
  }
};

TEST(PromptScores, OtherChoicesWaitForTheLastOfThem) {
  Log log{PromptScores(true), ""};
  log.take(event_of(1, {7}), "old");
  log.take(event_of(0, {}, 512), "old");
  log.take(event_of(1, {8, 9}, 0, engine::FinishReason::length), "old");
  EXPECT_EQ(log.text, "");
  log.take(event_of(0, {5}, 88), "new");
  EXPECT_EQ(log.text, "0:1@new 1:1@old 1:2@old ");
  EXPECT_EQ(log.scores.tokens().size(), 600u);
  log.take(event_of(2, {4}), "new");
  EXPECT_EQ(log.text, "0:1@new 1:1@old 1:2@old 2:1@new ");
}

TEST(PromptScores, AnEndOfTheFirstChoiceEndsTheWaiting) {
  Log log{PromptScores(true), ""};
  log.take(event_of(1, {7}), "0");
  log.take(event_of(0, {}, 3, engine::FinishReason::cancelled), "0");
  EXPECT_EQ(log.text, "0:0@0 1:1@0 ");
}

TEST(PromptScores, NobodyWaitsWhereNoneAreWanted) {
  Log log{PromptScores(false), ""};
  log.take(event_of(1, {7}), "0");
  log.take(event_of(0, {}, 1), "0");  // an answer without tokens scores its last token for itself
  EXPECT_EQ(log.text, "1:1@0 0:0@0 ");
  EXPECT_TRUE(log.scores.tokens().empty());
}

// Offsets point into the echoed text, in which the tokens that were put around it are not.
TEST(PromptScores, EchoedOffsetsAreOfTheText) {
  text::TokenizerData data = io::read_tokenizer(tiny_folder());
  data.add_bos_token = data.add_eos_token = true;
  data.bos_token = "<|im_start|>";
  data.eos_token = "<|im_end|>";
  const auto model =
      std::make_shared<const ServedModel>(std::vector<std::string>{"tiny"}, tiny_folder(), text::Tokenizer(data),
                                          model::ModelInfo(), read_sampling_defaults(tiny_folder()));
  const auto engine = std::make_shared<FakeEngine>();
  Service service{ServiceConfig()};
  service.set_ready(model, engine);
  const std::string prompt = "Henry went";
  const auto offsets = [&](const std::string& given) {
    const auto exchange = std::make_shared<FakeExchange>(
        "POST", "/v1/completions", R"({"prompt": )" + given + R"(, "echo": true, "logprobs": 0, "max_tokens": 1})");
    completions(service, exchange);
    const engine::RequestId id = engine->requests.size();
    std::vector<sampling::TokenLogprob> scores;
    for (const int32_t token : engine->requests.at(id).request.prompt) scores.push_back({{token, -1.F}, {}});
    scores.erase(scores.begin());
    engine->send(id, 0, "x", engine::FinishReason::length, scores);
    const std::string& body = exchange->response.body;
    const std::string key = R"("text_offset":[)";
    const size_t at = body.find(key) + key.size();
    return body.substr(at, body.find(']', at) - at);
  };
  const std::vector<int32_t> ids = model->tokenizer.encode(prompt, {.add_special_tokens = false});
  ASSERT_GT(ids.size(), 1u);
  std::string text = "0", tokens = "0", given = std::to_string(*model->tokenizer.id_of(data.bos_token));
  size_t begin = 0;
  for (const int32_t id : ids) {
    text += "," + std::to_string(begin);
    tokens += "," + std::to_string(begin + data.bos_token.size());
    given += "," + std::to_string(id);
    begin += model->tokenizer.bytes_of(id).size();
  }
  ASSERT_EQ(begin, prompt.size());
  EXPECT_EQ(offsets('"' + prompt + '"'), text + ",10,10");  // the eos token, and the answer's first
  EXPECT_EQ(offsets("[" + given + "]"), tokens + "," + std::to_string(10 + data.bos_token.size()));  // echoed with it
  engine->requests.clear();  // before the service
}

}  // namespace
}  // namespace sluice::server
