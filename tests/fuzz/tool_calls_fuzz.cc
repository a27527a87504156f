// SPDX-License-Identifier: Apache-2.0
// Any bytes as an answer with calls of tools: the first byte chooses the format and when calls are told, the second
// where the text is cut. The parts do not depend on the cuts; without a call, all of the text is content; a call's
// arguments are a JSON object, or the beginning of one if it was told early and broke off.
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <vector>

#include "server/tool_calls/close_json.h"
#include "server/tool_calls/json_scanner.h"
#include "server/tool_calls/tool_call_formats.h"
#include "server/tool_calls/tool_call_parser.h"

namespace {
using namespace sluice::server;

struct Parsed {
  std::string content, calls;
};

Parsed parse(const CallFormat& format, const Tools& tools, std::string_view text, size_t piece, bool early) {
  ToolCallParser parser(format, tools, {.new_id = [] { return std::string("id"); }, .constrained = early});
  Parsed out;
  std::vector<std::string> arguments;
  const auto add = [&](const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      if (part.kind == AnswerPart::Kind::content) out.content += part.text;
      if (part.kind == AnswerPart::Kind::arguments) arguments.back() += part.text;
      if (part.kind != AnswerPart::Kind::call) continue;
      if (!is_call_name(part.call.name)) std::abort();
      out.calls += part.call.id + ' ' + part.call.name + '\n';
      arguments.emplace_back();
    }
  };
  for (size_t at = 0; at < text.size(); at += piece) add(parser.push(text.substr(at, piece)));
  add(parser.finish());
  size_t complete = 0;
  for (const std::string& one : arguments) {
    out.calls += one + '\n';
    complete += is_json_object(one);
    if (!is_json_object(closed_json(one))) std::abort();
  }
  if (complete != parser.calls() || (!early && complete != arguments.size())) std::abort();
  return out;
}
}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 2) return 0;
  const bool eager = (data[0] & 128) != 0, early = eager || (data[0] & 64) != 0;
  const Tools tools{{"f",
                     sluice::io::parse_json_value(
                         R"({"properties": {"a": {"type": ["integer", "object", "null", "boolean"]}}})", "f"),
                     false, eager}};
  const auto& formats = tool_call_formats();
  const CallFormat& format = formats[data[0] % 64 % formats.size()];
  const std::string_view text(reinterpret_cast<const char*>(data) + 2, size - 2);
  const Parsed whole = parse(format, tools, text, std::max<size_t>(1, text.size()), early);
  const Parsed cut = parse(format, tools, text, 1 + data[1] % 40, early);
  if (whole.content != cut.content || whole.calls != cut.calls) std::abort();
  if (whole.calls.empty() && whole.content != text) std::abort();
  return 0;
}
