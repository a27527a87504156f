// SPDX-License-Identifier: Apache-2.0
// How a model family writes calls of tools into its text. One file per format, one row each in tool_call_formats.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "server/answer_part.h"
#include "server/tool_calls/tool.h"

namespace sluice::server {

// Reads one block, the text from an opening tag to its closing tag, which may hold several calls. A new reader for
// each block.
class CallReader {
 public:
  virtual ~CallReader() = default;

  struct FoundCall : ToolCall {
    std::string_view arguments;  // the text of a JSON object; valid until the next read()
    size_t begin = 0, end = 0;   // where it lies in the text
  };
  struct Result {
    // more: the text so far may become a block; bad: it is none, whatever follows; found: it is one.
    enum class State : uint8_t { more, bad, found } state = State::more;
    size_t end = 0;  // of the block; of a bad one, where it turned bad: another may begin from there on
    // All calls of a block that is found. Of another those that have begun: their name is certain and their arguments
    // begin an object. Only the last one may still grow; its `end` is where what it has of its arguments ends.
    std::vector<FoundCall> calls;
  };
  // `text` begins with one of CallFormat::begins, and holds what the last call got and what has come since.
  // last: nothing will follow. What is not last and found or bad stays so whatever follows, and so do calls that have
  // begun, but that they grow: an answer does not depend on where its stream is cut.
  virtual Result read(std::string_view text, bool last) = 0;
};

// What a constraint must say of a call: the text before and after its arguments, and how these are written.
struct CallTemplate {
  std::string begin, end;
  const char* style = "json";  // "qwen_xml" and "glm_xml": a pair of tags per parameter
  std::string pattern = "";    // between `begin` and the arguments, a regular expression; "": nothing
};

struct CallFormat {
  // What ServiceConfig::tool_call_parser calls it: SGLang's name, and those of SGLang and vLLM beside it.
  std::vector<std::string_view> names;
  // A chat template that holds all of these writes this format, unless one above it in the list does.
  std::vector<std::string_view> markers;
  // The opening tags of a block.
  std::vector<std::string_view> begins;
  // The tags around all blocks of an answer; "": none. They are dropped beside a call and stay elsewhere.
  std::string_view open = "", close = "";
  // The text between two calls that share one pair of open and close; nothing: each call has its own.
  std::optional<std::string_view> separator = {};
  // The text between two calls of the other formats where there is nothing else.
  std::string_view between = "\n";
  // The text at which a constraint begins.
  std::string_view trigger = "";
  // Further tags inside of a block.
  std::vector<std::string_view> inner = {};

  // `tools` lives longer than the reader. constrained: a grammar holds the block from its opening tag on.
  std::unique_ptr<CallReader> (*reader)(const Tools& tools, bool constrained) = nullptr;
  CallTemplate (*written)(std::string_view name) = nullptr;
};

// Whether a model can have meant the name of a function. The request's own names are a subset.
bool is_call_name(std::string_view name);

}  // namespace sluice::server
