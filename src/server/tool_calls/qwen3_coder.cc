// SPDX-License-Identifier: Apache-2.0
// Qwen3-Coder, Qwen3.5, Nemotron 3:
//   <tool_call>
//   <function=get_weather>
//   <parameter=city>
//   Paris
//   </parameter>
//   </function>
//   </tool_call>
// These models sometimes leave out the outer tags or </parameter>.
#include <fmt/format.h>

#include "server/tool_calls/formats.h"
#include "server/tool_calls/xml_call_reader.h"

namespace sluice::server {

namespace {
constexpr std::string_view kOpen = "<tool_call>", kClose = "</tool_call>",
                           kFunction = "<function=", kFunctionEnd = "</function>",
                           kParameter = "<parameter=", kParameterEnd = "</parameter>";
constexpr size_t kLongestKey = 256;

// One line break after the opening tag and one before the closing one are the format's.
std::string_view value_of(std::string_view text) {
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  return text;
}

// From <function= to </function>.
class Reader final : public XmlCallReader {
 public:
  Reader(const Tools& tools, bool constrained) : XmlCallReader(tools, constrained, kFunction.size()) {}

 private:
  Status next() override { return (this->*next_)(); }

  Status name() {
    std::string_view name;
    const Status status = block_.until({">", "<"}, name, kLongestKey);
    if (status != Status::done) return status;
    if (!is_call_name(name) || block_.next() != '>') return Status::bad;
    begin_call(name);
    block_.go(block_.at() + 1);
    next_ = &Reader::parameter;
    return status;
  }
  Status parameter() {
    const Status end = block_.tag(kFunctionEnd);
    if (end == Status::done) end_call();
    if (end == Status::done) return end;
    const Status status = block_.tag(kParameter);
    if (status == Status::done) next_ = &Reader::key;
    return status == Status::bad ? end : status;
  }
  Status key() {
    std::string_view key;
    const Status status = block_.until({">", "<", "\n"}, key, kLongestKey);
    if (status != Status::done) return status;
    if (key.empty() || block_.next() != '>' || !arguments_->begin(key)) return Status::bad;
    block_.go(block_.at() + 1);
    mark_taken();
    next_ = &Reader::value;
    return status;
  }
  Status value() {
    std::string_view value;
    const Status status = constrained_ ? block_.until_followed(kParameterEnd, {kParameter, kFunctionEnd}, value)
                                       : block_.until({kParameterEnd, kParameter, kFunctionEnd}, value);
    if (status != Status::done) grow_value(true);
    if (status != Status::done) return status;
    arguments_->end(value_of(value));
    if (!constrained_ && block_.text().substr(block_.at()).starts_with(kParameterEnd))
      block_.go(block_.at() + kParameterEnd.size());
    mark_taken();
    next_ = &Reader::parameter;
    return status;
  }

  Status (Reader::*next_)() = &Reader::name;
};
}  // namespace

CallFormat qwen3_coder_format() {
  CallFormat f;
  f.names = {"qwen3_coder", "qwen3_xml"};
  f.markers = {kFunction};
  f.begins = {kFunction};
  f.open = kOpen;
  f.close = kClose;
  f.trigger = kOpen;
  f.inner = {kFunctionEnd, kParameter, kParameterEnd};
  f.reader = [](const Tools& tools, bool constrained) -> std::unique_ptr<CallReader> {
    return std::make_unique<Reader>(tools, constrained);
  };
  f.written = [](std::string_view name) {
    return CallTemplate{fmt::format("{}\n{}{}>\n", kOpen, kFunction, name),
                        fmt::format("\n{}\n{}", kFunctionEnd, kClose), "qwen_xml"};
  };
  return f;
}

}  // namespace sluice::server
