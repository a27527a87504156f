// SPDX-License-Identifier: Apache-2.0
// Blocks of a header, a separator, the arguments as a JSON object, and a closing tag. The header says which function is
// called.
#pragma once

#include "server/tool_calls/block_text.h"

namespace sluice::server {

struct TaggedJson {
  size_t open = 0;  // bytes of the opening tag; 0: it belongs to the header
  std::string_view separator;
  std::string_view fence;                  // after the object; "": nothing
  std::vector<std::string_view> closings;  // any of them
  // Fills in name and id from the text before the separator; false: it is no header of a call.
  bool (*header)(std::string_view text, ToolCall& call) = nullptr;
};

class TaggedJsonReader final : public CallReader {
 public:
  explicit TaggedJsonReader(TaggedJson form) : form_(std::move(form)) { block_.go(form_.open); }
  Result read(std::string_view text, bool last) override;

 private:
  BlockText::Status header();
  BlockText::Status arguments();
  BlockText::Status fence();
  BlockText::Status closing();

  TaggedJson form_;
  BlockText block_;
  BlockText::Status (TaggedJsonReader::*next_)() = &TaggedJsonReader::header;
  std::optional<JsonScanner> json_;
  ToolCall call_;
};

}  // namespace sluice::server
