// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/tagged_json.h"

namespace sluice::server {

namespace {
constexpr size_t kLongestHeader = 512;
}

CallReader::Result TaggedJsonReader::read(std::string_view text, bool last) {
  block_.set(text, last);
  auto status = BlockText::Status::done;
  while (status == BlockText::Status::done && next_ != nullptr) status = (this->*next_)();
  Result result = result_of(status, block_.at());
  if (json_ && json_->is_object())
    result.calls.push_back({call_, json_->span().of(text), 0, next_ == nullptr ? block_.at() : json_->position()});
  return result;
}

BlockText::Status TaggedJsonReader::header() {
  std::string_view header;
  const auto status = block_.until({form_.separator}, header, kLongestHeader);
  if (status != BlockText::Status::done) return status;
  if (!form_.header(header, call_) || !is_call_name(call_.name)) {
    block_.go(form_.open);  // another block may begin in what was taken for a header
    return BlockText::Status::bad;
  }
  block_.go(block_.at() + form_.separator.size());
  next_ = &TaggedJsonReader::arguments;
  return status;
}

BlockText::Status TaggedJsonReader::arguments() {
  const auto status = block_.json(json_);
  if (status != BlockText::Status::done) return status;
  if (!json_->is_object()) return BlockText::Status::bad;
  next_ = form_.fence.empty() ? &TaggedJsonReader::closing : &TaggedJsonReader::fence;
  return status;
}

BlockText::Status TaggedJsonReader::fence() {
  const auto status = block_.closing(form_.fence);
  if (status == BlockText::Status::done) next_ = &TaggedJsonReader::closing;
  return status;
}

BlockText::Status TaggedJsonReader::closing() {
  auto result = BlockText::Status::bad;
  for (const std::string_view tag : form_.closings) {
    const auto status = block_.closing(tag);
    if (status == BlockText::Status::done) {
      next_ = nullptr;
      return status;
    }
    if (status == BlockText::Status::more) result = status;
  }
  return result;
}

}  // namespace sluice::server
