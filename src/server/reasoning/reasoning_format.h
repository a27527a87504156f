// SPDX-License-Identifier: Apache-2.0
// How a model family marks what it thinks before it answers. One file per format, one row each in reasoning_formats.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace sluice::server {

struct ReasoningPart {
  std::string text;
  bool thought = false;
};

class ReasoningParser {
 public:
  virtual ~ReasoningParser() = default;

  // What is certain after some more text: what may become a tag is held back. The parts in order are the text, but for
  // tags and the white space after them, however it is cut.
  virtual std::vector<ReasoningPart> push(std::string_view text) = 0;
  virtual std::vector<ReasoningPart> finish() = 0;

  enum class State : uint8_t { unknown, thinking, answering };
  virtual State state() const = 0;
};

// What an answer is the continuation of.
struct AnswerBegin {
  std::string_view prompt;     // the rendered text
  std::string_view continued;  // of the last message, which the answer goes on with; "": a new message
  bool tags_stay = false;      // thoughts keep their tags and white space: for answers that do not split them off
};

struct ReasoningFormat {
  // What ServiceConfig::reasoning_parser calls it, in SGLang's and vLLM's words.
  std::vector<std::string_view> names;
  // A chat template that holds all of these is of this format, unless one above it in the list is.
  std::vector<std::string_view> markers;
  std::vector<std::string_view> tags;
  std::string_view close;  // the tag at a thought's end

  std::unique_ptr<ReasoningParser> (*parser)(const AnswerBegin& begin) = nullptr;
};

// Each is defined in the file of its name.
ReasoningFormat think_format();        // <think>: what the prompt or the answer opens
ReasoningFormat deepseek_r1_format();  // <think>, and answers that open with neither are thoughts
ReasoningFormat harmony_format();      // gpt-oss' channels

// A chat template is of the first format in this order whose markers it holds.
const std::vector<ReasoningFormat>& reasoning_formats();
// nullptr: none.
const ReasoningFormat* reasoning_format(std::string_view name);
const ReasoningFormat* reasoning_format_of(std::string_view chat_template);

// Thoughts and the rest of some parts.
struct SplitText {
  std::string reasoning, content;
  void add(const std::vector<ReasoningPart>& parts);
};

// Adds to the last part if it is of the same kind.
void add_part(std::vector<ReasoningPart>& parts, std::string_view text, bool thought);

}  // namespace sluice::server
