// SPDX-License-Identifier: Apache-2.0
// Answers and errors as Anthropic's Messages API has them.
#pragma once

#include <memory>
#include <string>

#include "server/answer_parser.h"
#include "server/generation.h"
#include "server/served_model.h"

namespace sluice::server {

// Thoughts, texts and calls of tools are blocks, in the order in which they come; a stream tells each from its start to
// its stop.
class MessageWriter final : public AnswerWriter {
 public:
  MessageWriter(std::shared_ptr<const ServedModel> model, std::string id, const AnswerReading& reading)
      : model_(std::move(model)), id_(std::move(id)), parser_(reading) {}

  std::string stream_event(size_t prompt, const engine::Event& event) override;
  std::string end_stream() override;
  std::string error_event(const ApiError& error) override;
  http::Response error_reply(const ApiError& error) override;

  void add(size_t prompt, const engine::Event& event) override;
  std::string whole() override;

 private:
  using Kind = AnswerPart::Kind;

  std::string open(const AnswerPart& part);
  std::string close();
  std::string stop_reason(const engine::Event& event) const;
  std::string stop_sequence(const engine::Event& event) const;
  std::string usage_json() const;
  std::string message(const std::string& content, const engine::Event* last) const;

  std::shared_ptr<const ServedModel> model_;
  std::string id_;
  AnswerParser parser_;
  engine::Usage usage_;
  engine::Event last_;
  AnswerPart block_;  // the open block; a call's arguments are in `text`
  bool is_open_ = false;
  JsonArray content_;   // closed blocks
  int index_ = 0;       // of the next block
  bool begun_ = false;  // whether the stream has begun
};

// The code of a refusal to keep the conversation, which makes Anthropic's clients send it whole.
inline constexpr const char* kNoThreads = "thread_unsupported_request";

// Anthropic's error object; "param" and "code" are there beside its own members.
http::Response anthropic_error_response(const ApiError& error);

}  // namespace sluice::server
