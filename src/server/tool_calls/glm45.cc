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
  explicit Reader(const Tools& tools) : XmlCallReader(tools, kOpen.size()) {}

 private:
  Step next() override { return (this->*next_)(); }

  Step name() {
    std::string_view name;
    const Step step = block_.until({"<"}, name, kLongestKey);
    if (step != Step::done) return step;
    name = trimmed(name);
    if (!is_call_name(name)) return Step::bad;
    begin_call(name);
    next_ = &Reader::argument;
    return step;
  }
  Step argument() {
    const Step end = block_.tag(kClose);
    if (end == Step::done) end_call();
    if (end == Step::done) return end;
    const Step step = block_.tag(kKey);
    if (step == Step::done) next_ = &Reader::key;
    return step == Step::bad ? end : step;
  }
  Step key() {
    std::string_view key;
    const Step step = block_.until({"<"}, key, kLongestKey);
    if (step != Step::done) return step;
    key_ = key;
    next_ = &Reader::key_end;
    return step;
  }
  Step key_end() {
    const Step step = block_.tag(kKeyEnd);
    if (step == Step::done) next_ = &Reader::value_begin;
    return step;
  }
  Step value_begin() {
    const Step step = block_.tag(kValue);
    if (step != Step::done) return step;
    if (!arguments_->begin(key_)) return Step::bad;
    mark_taken();
    next_ = &Reader::value;
    return step;
  }
  Step value() {
    std::string_view value;
    const Step step = block_.until({kValueEnd}, value);
    if (step != Step::done) grow_value(false);
    if (step != Step::done) return step;
    arguments_->end(value);
    block_.go(block_.at() + kValueEnd.size());
    mark_taken();
    next_ = &Reader::argument;
    return step;
  }

  Step (Reader::*next_)() = &Reader::name;
  std::string key_;
};
}  // namespace

CallFormat glm45_format() {
  CallFormat f;
  f.names = {"glm45", "glm47", "glm"};
  f.markers = {kKey};
  f.begins = {kOpen};
  f.trigger = kOpen;
  f.inner = {kClose, kKey, kKeyEnd, kValue, kValueEnd};
  f.reader = [](const Tools& tools) -> std::unique_ptr<CallReader> { return std::make_unique<Reader>(tools); };
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}{}\n", kOpen, name), fmt::format("\n{}", kClose), "glm_xml"};
  };
  return f;
}

}  // namespace sluice::server
