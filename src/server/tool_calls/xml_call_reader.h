// SPDX-License-Identifier: Apache-2.0
// What readers of blocks share that hold one call, with a pair of tags for each of its parameters.
#pragma once

#include <optional>
#include <string>

#include "server/tool_calls/block_text.h"
#include "server/tool_calls/xml_arguments.h"

namespace sluice::server {

class XmlCallReader : public CallReader {
 public:
  Result read(std::string_view text, bool last) final {
    block_.set(text, last);
    Status status = Status::done;
    while (status == Status::done && !over_) status = next();
    Result result = result_of(status, block_.at());
    // A name alone is no call yet: prose may hold one.
    if (arguments_ && arguments_->json().size() > 1)
      result.calls.push_back({{"", name_}, arguments_->json(), 0, taken_});
    return result;
  }

 protected:
  using Status = BlockText::Status;

  // `begin`: bytes of the opening tag. constrained: as CallFormat::reader has it. The grammar closes every value, and
  // lets a value hold the other tags.
  XmlCallReader(const Tools& tools, bool constrained, size_t begin) : constrained_(constrained), tools_(tools) {
    block_.go(begin);
  }

  virtual Status next() = 0;

  void begin_call(std::string_view name) {
    name_ = name;
    arguments_.emplace(find_tool(tools_, name));
  }
  // Everything that block_ has passed is in the arguments.
  void mark_taken() { taken_ = block_.at(); }
  // Takes what has come of the value that begins at block_. `space`: a line break at either end belongs to the format.
  void grow_value(bool space) {
    std::string_view value = block_.unfinished();
    const bool skips = space && value.starts_with('\n');
    if (skips) value.remove_prefix(1);
    if (space && value.ends_with('\n')) value.remove_suffix(1);
    taken_ = block_.at() + (skips ? 1 : 0) + arguments_->grow(value);
  }
  void end_call() {
    arguments_->close();
    taken_ = block_.at();
    over_ = true;
  }

  BlockText block_;
  std::optional<XmlArguments> arguments_;
  const bool constrained_;

 private:
  const Tools& tools_;
  std::string name_;
  size_t taken_ = 0;  // everything before it in the text is in the arguments
  bool over_ = false;
};

}  // namespace sluice::server
