// SPDX-License-Identifier: Apache-2.0
// Takes the calls of tools out of an answer's text, in one format.
#pragma once

#include <functional>
#include <limits>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "server/tool_calls/call_format.h"

namespace sluice::server {

// No text is lost: contents and calls in order are the text, but for a call's tags and the white space before it. The
// parts, put together, are the same however the text is cut.
//
// A call is sent once it is complete and valid, since a stream cannot take back its beginning. What does not become a
// valid call is content, byte for byte. There are two exceptions, whose arguments are sent while they are written:
// calls that a constraint of the answer keeps valid, and those of Tool::eager functions. Such a call stays a call if it
// breaks off, as it does at max_tokens: it has the arguments so far, which are no JSON then, and what follows is
// content. Whole answers follow the same rules, so that they equal their streams.
class ToolCallParser {
 public:
  struct Options {
    size_t most_calls = std::numeric_limits<size_t>::max();  // further ones are content
    std::function<std::string()> new_id;                     // for formats whose calls have none
    bool constrained = false;  // what follows CallFormat::trigger is a valid call of one of the tools
  };
  // `format` and `tools` live longer.
  ToolCallParser(const CallFormat& format, const Tools& tools, Options options);

  // What is certain after some more text.
  std::vector<AnswerPart> push(std::string_view text);
  // The rest: what is left of a call that was not sent is content.
  std::vector<AnswerPart> finish();
  size_t calls() const { return calls_; }  // complete ones

 private:
  void run(bool last, std::vector<AnswerPart>& out);
  bool find_block(bool last, size_t& at, std::vector<AnswerPart>& out);
  void content(std::string_view text, std::vector<AnswerPart>& out);
  size_t take(std::string_view text, const CallReader::Result& block, std::vector<AnswerPart>& out);
  bool is_sent_early(std::string_view text, const ToolCall& call) const;
  bool is_constrained(std::string_view text) const;  // the block that it begins with

  const CallFormat& format_;
  const Tools& tools_;
  Options options_;
  std::vector<std::string_view> tags_;
  std::string first_letters_;           // of tags_
  std::string held_;                    // what is not decided yet
  std::string pending_;                 // white space and opening tags: dropped if a call follows, else content
  std::unique_ptr<CallReader> reader_;  // of the block that held_ begins with
  // Of the calls of that block: how many have begun, and how much of the last one's arguments was sent.
  size_t sent_calls_ = 0, sent_bytes_ = 0;
  bool in_section_ = false;  // between format_.open and format_.close
  bool after_call_ = false;  // there was none but pending_ since the last call
  size_t begun_ = 0, calls_ = 0;
};

// `prefix` and 24 random letters and digits: "call_" is OpenAI's, "toolu_" Anthropic's.
std::string new_call_id(std::string_view prefix);

}  // namespace sluice::server
