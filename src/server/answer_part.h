// SPDX-License-Identifier: Apache-2.0
// What a piece of an answer's text is.
#pragma once

#include <cstdint>
#include <string>

namespace sluice::server {

struct ToolCall {
  std::string id;    // "": the format has none, the server makes one
  std::string name;  // 1 to 64 of a-z A-Z 0-9 _ - .
};

struct AnswerPart {
  // arguments: some more of the last call's.
  enum class Kind : uint8_t { thought, content, call, arguments } kind = Kind::content;
  std::string text;  // of all but a call
  ToolCall call;     // that begins, with its id
};

// A call and all of its arguments.
struct WrittenCall : ToolCall {
  std::string arguments;  // the text of a JSON object; of a call that breaks off, its beginning
};

}  // namespace sluice::server
