// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

namespace {
constexpr size_t kLongestHeader = 512;
}

CallReader::Result TaggedJsonReader::read(std::string_view text, bool last) {
  block_.set(text, last);
  auto step = BlockText::Step::done;
  while (step == BlockText::Step::done && next_ != nullptr) step = (this->*next_)();
  Result result = result_of(step, block_.at());
  if (json_ && json_->is_object())
    result.calls.push_back({call_, json_->span().of(text), 0, next_ == nullptr ? block_.at() : json_->position()});
  return result;
}

BlockText::Step TaggedJsonReader::header() {
  std::string_view header;
  const auto step = block_.until({form_.separator}, header, kLongestHeader);
  if (step != BlockText::Step::done) return step;
  if (!form_.header(header, call_) || !is_call_name(call_.name)) {
    block_.go(form_.open);  // another block may begin in what was taken for a header
    return BlockText::Step::bad;
  }
  block_.go(block_.at() + form_.separator.size());
  next_ = &TaggedJsonReader::arguments;
  return step;
}

BlockText::Step TaggedJsonReader::arguments() {
  const auto step = block_.json(json_);
  if (step != BlockText::Step::done) return step;
  if (!json_->is_object()) return BlockText::Step::bad;
  next_ = form_.fence.empty() ? &TaggedJsonReader::closing : &TaggedJsonReader::fence;
  return step;
}

BlockText::Step TaggedJsonReader::fence() {
  const auto step = block_.closing(form_.fence);
  if (step == BlockText::Step::done) next_ = &TaggedJsonReader::closing;
  return step;
}

BlockText::Step TaggedJsonReader::closing() {
  auto result = BlockText::Step::bad;
  for (const std::string_view tag : form_.closings) {
    const auto step = block_.closing(tag);
    if (step == BlockText::Step::done) {
      next_ = nullptr;
      return step;
    }
    if (step == BlockText::Step::more) result = step;
  }
  return result;
}

}  // namespace sluice::server
