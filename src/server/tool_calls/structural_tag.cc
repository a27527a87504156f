// SPDX-License-Identifier: Apache-2.0
#include "server/tool_calls/structural_tag.h"

#include "io/json_text.h"
#include "server/json_out.h"

namespace sluice::server {

namespace {
std::string tag(std::string_view begin, std::string_view content, std::string_view end) {
  return JsonObject().add("type", "tag").add("begin", begin).raw("content", content).add("end", end).str();
}

std::string call_tag(const CallFormat& format, const Tool& tool, bool follows_schema) {
  const CallTemplate written = format.written(tool.name);
  // Properties that a schema does not name are refused; a function without a schema takes none.
  const std::string schema = !follows_schema             ? R"({"type":"object","additionalProperties":true})"
                             : tool.parameters.is_null() ? R"({"type":"object","properties":{}})"
                                                         : io::to_json_line(tool.parameters);
  std::string content =
      JsonObject().add("type", "json_schema").raw("json_schema", schema).add("style", written.style).str();
  if (!written.pattern.empty()) {
    const std::string pattern = JsonObject().add("type", "regex").add("pattern", written.pattern).str();
    content = JsonObject().add("type", "sequence").raw("elements", JsonArray().raw(pattern).raw(content).str()).str();
  }
  return tag(written.begin, content, written.end);
}
}  // namespace

std::vector<std::string> call_tags(const CallFormat& format) {
  std::vector<std::string> tags(format.begins.begin(), format.begins.end());
  tags.insert(tags.end(), format.inner.begin(), format.inner.end());
  for (const std::string_view tag : {format.open, format.close}) tags.emplace_back(tag);
  return tags;
}

std::string structural_tag(const CallFormat& format, std::span<const Tool> tools, const CallDemand& demand) {
  JsonArray tags;
  for (const Tool& tool : tools) tags.raw(call_tag(format, tool, demand.required || tool.strict));
  const auto listed = [&](std::string_view separator) {
    return JsonObject()
        .add("type", "tags_with_separator")
        .raw("tags", tags.str())
        .add("separator", separator)
        .add("at_least_one", true)
        .add("stop_after_first", !demand.parallel)
        .str();
  };
  const std::string section = format.separator ? tag(format.open, listed(*format.separator), format.close) : "";
  const bool has_other = !demand.otherwise.empty();
  std::string calls;
  if (demand.required || has_other) {
    // Calls alone: no text beside them would satisfy the rest of the request.
    calls = format.separator ? section : listed(format.between);
  } else {
    // Where calls are in a section of their own, its tags count them.
    calls = JsonObject()
                .add("type", "triggered_tags")
                .raw("triggers", JsonArray().raw(json_text(format.trigger)).str())
                .raw("tags", format.separator ? JsonArray().raw(section).str() : tags.str())
                .add("at_least_one", false)
                .add("stop_after_first", !demand.parallel)
                .str();
  }
  if (has_other && !demand.required)
    calls = JsonObject().add("type", "or").raw("elements", JsonArray().raw(demand.otherwise).raw(calls).str()).str();
  return JsonObject().add("type", "structural_tag").raw("format", calls).str();
}

}  // namespace sluice::server
