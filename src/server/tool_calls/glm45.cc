// SPDX-License-Identifier: Apache-2.0
// GLM-4.5 to 4.7:
//   <tool_call>get_weather
//   <arg_key>city</arg_key>
//   <arg_value>Paris</arg_value>
//   </tool_call>
#include <fmt/format.h>

#include "server/tool_calls/formats.h"
#include "server/tool_calls/xml_call_reader.h"

namespace sluice::server {

namespace {
constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>", kKey = "<arg_key>", kKeyEnd = "</arg_key>",
                           kValue = "<arg_value>", kValueEnd = "</arg_value>";
constexpr size_t kLongestKey = 256;

class Reader final : public XmlCallReader {
 public:
  Reader(const Tools& tools, bool constrained) : XmlCallReader(tools, constrained, kOpen.size()) {}

 private:
  Status next() override { return (this->*next_)(); }

  Status name() {
    std::string_view name;
    const Status status = block_.until({"<"}, name, kLongestKey);
    if (status != Status::done) return status;
    name = trimmed(name);
    if (!is_call_name(name)) return Status::bad;
    begin_call(name);
    next_ = &Reader::argument;
    return status;
  }
  Status argument() {
    const Status end = block_.tag(kClose);
    if (end == Status::done) end_call();
    if (end == Status::done) return end;
    const Status status = block_.tag(kKey);
    if (status == Status::done) next_ = &Reader::key;
    return status == Status::bad ? end : status;
  }
  Status key() {
    std::string_view key;
    const Status status = block_.until({"<"}, key, kLongestKey);
    if (status != Status::done) return status;
    key_ = key;
    next_ = &Reader::key_end;
    return status;
  }
  Status key_end() {
    const Status status = block_.tag(kKeyEnd);
    if (status == Status::done) next_ = &Reader::value_begin;
    return status;
  }
  Status value_begin() {
    const Status status = block_.tag(kValue);
    if (status != Status::done) return status;
    if (!arguments_->begin(key_)) return Status::bad;
    mark_taken();
    next_ = &Reader::value;
    return status;
  }
  Status value() {
    std::string_view value;
    const Status status =
        constrained_ ? block_.until_followed(kValueEnd, {kKey, kClose}, value) : block_.until({kValueEnd}, value);
    if (status != Status::done) grow_value(false);
    if (status != Status::done) return status;
    arguments_->end(value);
    if (!constrained_) block_.go(block_.at() + kValueEnd.size());
    mark_taken();
    next_ = &Reader::argument;
    return status;
  }

  Status (Reader::*next_)() = &Reader::name;
  std::string key_;
};
}  // namespace

CallFormat glm45_format() {
  CallFormat f = blocks_between<Reader>(kOpen, kClose, {"glm45", "glm47", "glm"});
  f.markers = {kKey};
  f.inner = {kClose, kKey, kKeyEnd, kValue, kValueEnd};
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}{}\n", kOpen, name), fmt::format("\n{}", kClose), "glm_xml"};
  };
  return f;
}

}  // namespace sluice::server
