// SPDX-License-Identifier: Apache-2.0
// Answers as OpenAI's Responses API has them.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "server/answer.h"
#include "server/answer_parser.h"
#include "server/generation.h"
#include "server/served_model.h"

namespace sluice::server {

// What the answer says of the request: JSON, where it is a string.
struct ResponseEcho {
  std::string instructions = "null", metadata = "{}", user = "null", effort = "null";
  std::string tools = "[]", tool_choice = "\"auto\"", format = R"({"type":"text"})";
  std::optional<int64_t> max_output_tokens;
  double temperature = 1, top_p = 1;
  bool parallel_tool_calls = true;
};

// Of the tokens of texts: those of thoughts and calls have no place in the answer.
struct ResponseLogprobs {
  bool wanted = false;
  int top = 0;
};

// Thoughts, texts and calls of functions are items, in the order in which they come; a stream tells each from when it
// is added until it is done.
class ResponseWriter final : public AnswerWriter {
 public:
  ResponseWriter(std::shared_ptr<const ServedModel> model, std::string id, ResponseEcho echo, ResponseLogprobs logprobs,
                 const AnswerReading& reading)
      : model_(std::move(model)),
        id_(std::move(id)),
        echo_(std::move(echo)),
        logprobs_(logprobs),
        thought_end_(reading.thought_end),
        parser_(reading) {}

  std::string begin_stream() override;
  std::string stream_event(size_t prompt, const engine::Event& event) override;
  std::string end_stream() override;
  std::string error_event(const ApiError& error) override;

  void add(size_t prompt, const engine::Event& event) override;
  std::string whole() override;

 private:
  using Kind = AnswerPart::Kind;

  std::string event(std::string_view type, JsonObject rest);
  JsonObject of_part() const;
  std::string part_json() const;
  std::string item_json(const char* status, bool begins) const;
  void add_tokens(const engine::Event& event);
  JsonArray take_tokens(Kind kind);
  std::string piece(const AnswerPart& part);
  std::string open(const AnswerPart& part);
  std::string close();
  const char* status() const { return last_ == engine::FinishReason::stop ? "completed" : "incomplete"; }
  std::string response(const std::string& state) const;
  std::string state_event(const std::string& type, const std::string& state);

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  ResponseEcho echo_;
  ResponseLogprobs logprobs_;
  std::optional<int32_t> thought_end_;
  AnswerParser parser_;
  int64_t created_ = unix_time();
  engine::Usage usage_;
  engine::FinishReason last_ = engine::FinishReason::none;
  AnswerPart item_;  // that is open, with all of its text; a call's are its arguments
  bool is_open_ = false;
  std::vector<sampling::TokenLogprob> tokens_;  // whose text has not come yet
  JsonArray item_tokens_;                       // of the open item
  std::string item_id_;
  JsonArray output_;  // items that are closed
  int items_ = 0, sequence_ = 0;
};

}  // namespace sluice::server
