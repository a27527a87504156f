// SPDX-License-Identifier: Apache-2.0
// Hermes, Qwen2.5, Qwen3:
//   <tool_call>
//   {"name": "get_weather", "arguments": {"city": "Paris"}}
//   </tool_call>
#include <fmt/format.h>

#include "server/tool_calls/block_text.h"
#include "server/tool_calls/formats.h"

namespace sluice::server {

namespace {
constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>";

class Reader final : public CallReader {
 public:
  Reader(const Tools&, bool) { block_.go(kOpen.size()); }

  Result read(std::string_view text, bool last) override {
    block_.set(text, last);
    auto status = BlockText::Status::done;
    if (!call_) {
      status = block_.json(json_);
      if (status == BlockText::Status::done && json_->is_object()) call_ = call_of_object(text, json_->members());
      if (status == BlockText::Status::done && !call_) status = BlockText::Status::bad;
    }
    if (call_) status = block_.closing(kClose);
    Result result = result_of(status, block_.at());
    if (status == BlockText::Status::done)
      result.calls.push_back({*call_, call_->arguments, 0, block_.at()});
    else if (auto begun = begun_call(text, *json_))
      result.calls.push_back(*begun);
    return result;
  }

 private:
  BlockText block_;
  std::optional<JsonScanner> json_;
  std::optional<WrittenCall> call_;
};
}  // namespace

CallFormat hermes_format() {
  CallFormat f = blocks_between<Reader>(kOpen, kClose, {"hermes", "qwen25", "qwen"});
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}\n{{\"name\": \"{}\", \"arguments\": ", kOpen, name),
                        fmt::format("}}\n{}", kClose)};
  };
  return f;
}

}  // namespace sluice::server
