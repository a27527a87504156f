// SPDX-License-Identifier: Apache-2.0
// Nemotron Nano 2 and Llama-Nemotron:
//   <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, ...]</TOOLCALL>
// Nemotron 3 writes Qwen3-Coder's format.
#include <fmt/format.h>

#include "server/tool_calls/block_text.h"
#include "server/tool_calls/formats.h"

namespace sluice::server {

namespace {
constexpr std::string_view kOpen = "<TOOLCALL>", kClose = "</TOOLCALL>";

class Reader final : public CallReader {
 public:
  Reader(const Tools&, bool) { block_.go(kOpen.size()); }

  Result read(std::string_view text, bool last) override {
    block_.set(text, last);
    Status status = Status::done;
    if (!is_read_) {
      status = block_.json(json_);
      if (const auto where = first_that_is_no_call(text)) {
        block_.go(*where);
        status = Status::bad;
      }
      if (status == Status::done && calls_.empty()) status = Status::bad;
      is_read_ = status == Status::done;
    }
    if (is_read_) status = block_.closing(kClose);
    Result result = result_of(status, block_.at());
    for (const Written& w : calls_) result.calls.push_back({w.call, w.call.arguments, w.where.begin, w.where.end});
    if (item_)
      if (auto begun = begun_call(text, *item_)) result.calls.push_back(std::move(*begun));
    return result;
  }

 private:
  using Status = BlockText::Status;
  struct Written {
    WrittenCall call;
    JsonScanner::Span where;
  };

  // Where an item of the array begins; nothing: not yet. An object without an array counts as item 0.
  std::optional<size_t> item_begin(size_t index) const {
    if (json_->is_object()) return index == 0 ? std::optional(json_->span().begin) : std::nullopt;
    const auto& items = json_->members();
    return index < items.size() && items[index].has_begun() ? std::optional(items[index].value.begin) : std::nullopt;
  }

  // Goes on through the items, which are all calls, or the block is none.
  std::optional<size_t> first_that_is_no_call(std::string_view text) {
    text = text.substr(0, json_->position());
    while (const auto begin = item_begin(calls_.size())) {
      if (text[*begin] != '{') return *begin;
      if (!item_) item_.emplace(*begin);
      if (item_->scan(text) != JsonScanner::State::done) return std::nullopt;  // what is no JSON json_ finds too
      auto call = call_of_object(text, item_->members());
      if (!call) return item_->position();
      calls_.push_back({std::move(*call), item_->span()});
      item_.reset();
    }
    return std::nullopt;
  }

  BlockText block_;
  std::optional<JsonScanner> json_, item_;  // all of the block, the item that is not complete
  std::vector<Written> calls_;
  bool is_read_ = false;
};
}  // namespace

CallFormat nemotron_format() {
  CallFormat f = blocks_between<Reader>(kOpen, kClose, {"nemotron", "nemotron_json"});
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}[{{\"name\": \"{}\", \"arguments\": ", kOpen, name),
                        fmt::format("}}]{}", kClose)};
  };
  return f;
}

}  // namespace sluice::server
