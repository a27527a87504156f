// SPDX-License-Identifier: Apache-2.0
#include "tests/server/tool_transcripts.h"

#include <gtest/gtest.h>

namespace sluice::server {

namespace {
const char* const kParis = R"({"city": "Paris"})";
const char* const kTricky =
    R"({"city": "a \"</tool_call>\" } <|tool_call_end|> \u00e9\n", "days": -1.50e+2, "tags": [[], {}, "]"], "x": null})";
}  // namespace

const Tools& transcript_tools() {
  static const Tools all{
      {"get_weather", io::parse_json_value(R"({"type": "object", "properties": {
          "city": {"type": "string"}, "days": {"type": "integer"}, "exact": {"type": "boolean"},
          "limit": {"type": ["number", "null"]}, "tags": {"type": "array", "items": {"type": "string"}},
          "place": {"$ref": "#/$defs/Place"}, "unit": {"enum": ["celsius", "kelvin"]},
          "size": {"anyOf": [{"type": "integer"}, {"type": "string"}]}},
          "$defs": {"Place": {"type": "object", "properties": {"again": {"$ref": "#/$defs/Place"}}}}})",
                                           "the tool")},
      {"now", {}},
  };
  return all;
}

void PrintTo(const Parsed& p, std::ostream* out) { *out << '"' << p.content << "\" " << p.calls; }

Parsed parse(const CallFormat& format, const Tools& tools, const std::vector<std::string_view>& pieces,
             ToolCallParser::Options options) {
  options.new_id = [] { return std::string("new"); };
  ToolCallParser parser(format, tools, options);
  Parsed out;
  bool open = false;
  const auto add = [&](const std::vector<AnswerPart>& parts) {
    for (const AnswerPart& part : parts) {
      if (part.kind != AnswerPart::Kind::arguments && std::exchange(open, false)) out.calls += ">>";
      if (part.kind == AnswerPart::Kind::content) {
        out.content += part.text;
      } else if (part.kind == AnswerPart::Kind::arguments) {
        out.calls += part.text;
      } else {
        out.calls += part.call.id + "<<" + part.call.name + " ";
        open = true;
      }
    }
  };
  for (const std::string_view piece : pieces) add(parser.push(piece));
  add(parser.finish());
  if (open) out.calls += ">>";
  out.count = parser.calls();
  return out;
}

void expect_everywhere(const CallFormat& format, const Tools& tools, const std::string& text, const Parsed& expected,
                       const ToolCallParser::Options& options) {
  ASSERT_EQ(parse(format, tools, {text}, options), expected) << text;
  for (size_t i = 0; i <= text.size(); ++i) {
    const std::string_view all = text;
    ASSERT_EQ(parse(format, tools, {all.substr(0, i), all.substr(i)}, options), expected) << text << "\ncut at " << i;
  }
  std::vector<std::string_view> bytes;
  for (size_t i = 0; i < text.size(); ++i) bytes.push_back(std::string_view(text).substr(i, 1));
  ASSERT_EQ(parse(format, tools, bytes, options), expected) << text << "\nbyte by byte";
}

std::string deepseek(std::string text) {
  for (const auto& [plain, real] : {std::pair{"<|", "<\xEF\xBD\x9C"}, {"|>", "\xEF\xBD\x9C>"}, {"_", "\xE2\x96\x81"}})
    for (size_t at = 0; (at = text.find(plain, at)) != text.npos; at += std::string_view(real).size())
      text.replace(at, std::string_view(plain).size(), real);
  return text;
}

std::vector<Transcript> transcripts() {
  std::vector<Transcript> all;
  const auto add = [&](const char* format, const std::string& text, const std::string& content,
                       const std::string& calls) {
    all.push_back({format, text, content, calls});
  };
  const auto call = [](const std::string& name, const std::string& arguments, const char* id = "new") {
    return id + ("<<" + name + " " + arguments) + ">>";
  };

  const auto hermes = [](const std::string& name, const std::string& arguments) {
    return "<tool_call>\n{\"name\": \"" + name + "\", \"arguments\": " + arguments + "}\n</tool_call>";
  };
  add("hermes", hermes("get_weather", kParis), "", call("get_weather", kParis));
  add("hermes", "I look.\n\n" + hermes("get_weather", kParis) + "\n" + hermes("now", "{}") + "\n", "I look.",
      call("get_weather", kParis) + call("now", "{}"));
  add("hermes", hermes("get_weather", kTricky), "", call("get_weather", kTricky));
  add("hermes", "a\n" + hermes("now", "{}") + " \nb", "a \nb", call("now", "{}"));
  add("hermes", "<tool_call>{\"arguments\":{},\"name\":\"not_offered.but-well_formed\"}</tool_call>", "",
      call("not_offered.but-well_formed", "{}"));
  add("hermes", hermes("now", R"("{\"a\": 1}")"), "", call("now", R"({"a": 1})"));
  add("hermes", R"(<tool_call>{"name": "now", "parameters": {"a": 1}}</tool_call>)", "", call("now", R"({"a": 1})"));
  add("hermes", R"(<tool_call>{"name": "now"}</tool_call>)", "", call("now", "{}"));
  // Complete but for the closing tag: a stop string or the limit took it.
  add("hermes", "a <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n", "a", call("now", "{}"));
  add("hermes", "a <tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_c", "a", call("now", "{}"));
  // A good one after a bad one.
  add("hermes", "<tool_call>\n{\"name\": now}\n</tool_call>\n" + hermes("now", "{}"),
      "<tool_call>\n{\"name\": now}\n</tool_call>", call("now", "{}"));
  add("hermes", "<tool_call>" + hermes("now", "{}"), "<tool_call>", call("now", "{}"));

  const std::string coder = "<function=get_weather>\n<parameter=city>\nParis\n</parameter>\n</function>";
  add("qwen3_coder", "<tool_call>\n" + coder + "\n</tool_call>", "", call("get_weather", R"({"city":"Paris"})"));
  add("qwen3_coder",
      "Hm.\n<tool_call>\n" + coder + "\n</tool_call>\n<tool_call>\n<function=now>\n</function>\n</tool_call>", "Hm.",
      call("get_weather", R"({"city":"Paris"})") + call("now", "{}"));
  add("qwen3_coder", coder, "", call("get_weather", R"({"city":"Paris"})"));
  add("qwen3_coder", "<tool_call>" + coder + "<function=now></function></tool_call>", "",
      call("get_weather", R"({"city":"Paris"})") + call("now", "{}"));
  add("qwen3_coder",
      "<tool_call>\n<function=get_weather>\n<parameter=city>\n two\n\"lines\"\n\n</parameter>\n<parameter=days>\n 3\n"
      "</parameter>\n<parameter=exact>\nTrue\n</parameter>\n<parameter=limit>\nnull\n</parameter>\n<parameter=tags>\n"
      "[\"a\", \"</b>\"]\n</parameter>\n<parameter=place>\n{\"x\": "
      "{}}\n</parameter>\n<parameter=size>\n5\n</parameter>\n"
      "<parameter=unit>\n7\n</parameter>\n<parameter=unknown>\n1\n</parameter>\n</function>\n</tool_call>",
      "",
      call("get_weather",
           R"({"city":" two\n\"lines\"\n","days":3,"exact":true,"limit":null,"tags":["a", "</b>"],"place":{"x": {}},)"
           R"("size":5,"unit":"7","unknown":"1"})"));
  // Values that are not of their type stay text.
  add("qwen3_coder",
      "<function=get_weather><parameter=days>many</parameter><parameter=tags>[a]</parameter><parameter=exact>1</"
      "parameter>"
      "<parameter=limit>+1</parameter></function>",
      "", call("get_weather", R"({"days":"many","tags":"[a]","exact":"1","limit":"+1"})"));
  add("qwen3_coder", "<function=<function=now></function>", "<function=", call("now", "{}"));
  // </parameter> forgotten.
  add("qwen3_coder", "<function=get_weather>\n<parameter=city>\nParis\n<parameter=days>\n2\n</function>", "",
      call("get_weather", R"({"city":"Paris","days":2})"));

  const std::string glm = "<tool_call>get_weather\n<arg_key>city</arg_key>\n<arg_value>Paris</arg_value>\n</tool_call>";
  add("glm45", glm, "", call("get_weather", R"({"city":"Paris"})"));
  add("glm45", "Hm.\n" + glm + "\n<tool_call>now\n</tool_call>", "Hm.",
      call("get_weather", R"({"city":"Paris"})") + call("now", "{}"));
  add("glm45",
      "<tool_call>get_weather<arg_key>days</arg_key><arg_value>3</arg_value><arg_key>city</arg_key><arg_value> a\n"
      "</arg_value><arg_key>tags</arg_key><arg_value>[\"</tool_call>\"]</arg_value></tool_call>",
      "", call("get_weather", R"({"days":3,"city":" a\n","tags":["</tool_call>"]})"));
  add("glm45", "<tool_call>now <arg_key>a</arg_key> <arg_value>b</arg_value> </tool_call>", "",
      call("now", R"({"a":"b"})"));

  const auto v3 = [](const std::string& name, const std::string& arguments) {
    return deepseek("<|tool_call_begin|>function<|tool_sep|>") + name + "\n```json\n" + arguments + "\n```" +
           deepseek("<|tool_call_end|>");
  };
  const std::string begin = deepseek("<|tool_calls_begin|>"), end = deepseek("<|tool_calls_end|>");
  add("deepseekv3", begin + v3("get_weather", kParis) + end, "", call("get_weather", kParis));
  add("deepseekv3", "Hm.\n\n" + begin + v3("get_weather", kTricky) + "\n" + v3("now", "{}") + end, "Hm.",
      call("get_weather", kTricky) + call("now", "{}"));
  add("deepseekv3", v3("now", "{}"), "", call("now", "{}"));

  const auto v31 = [](const std::string& name, const std::string& arguments) {
    return deepseek("<|tool_call_begin|>") + name + deepseek("<|tool_sep|>") + arguments +
           deepseek("<|tool_call_end|>");
  };
  add("deepseekv31", begin + v31("get_weather", kParis) + end, "", call("get_weather", kParis));
  add("deepseekv31", "Hm." + begin + v31("get_weather", kTricky) + v31("now", "{}") + end, "Hm.",
      call("get_weather", kTricky) + call("now", "{}"));
  // The first call is good, the second one is not.
  add("deepseekv31", begin + v31("now", "{}") + v31("get_weather", "{city}") + end, v31("get_weather", "{city}") + end,
      call("now", "{}"));

  const auto kimi = [](const std::string& id, const std::string& arguments) {
    return "<|tool_call_begin|>" + id + "<|tool_call_argument_begin|>" + arguments + "<|tool_call_end|>";
  };
  const std::string section = "<|tool_calls_section_begin|>", section_end = "<|tool_calls_section_end|>";
  add("kimi_k2", section + kimi("functions.get_weather:0", kParis) + section_end, "",
      call("get_weather", kParis, "functions.get_weather:0"));
  add("kimi_k2",
      "Hm." + section + kimi("functions.get_weather:3", kTricky) + kimi(" functions.now:4 ", " {} ") + section_end,
      "Hm.", call("get_weather", kTricky, "functions.get_weather:3") + call("now", "{}", "functions.now:4"));
  add("kimi_k2", section + kimi("now:0", "{}") + section_end + "\n", "", call("now", "{}", "now:0"));

  add("nemotron", R"(<TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}]</TOOLCALL>)", "",
      call("get_weather", kParis));
  add("nemotron",
      R"(Hm. <TOOLCALL>[{"name": "get_weather", "arguments": {"city": "Paris"}}, {"name": "now"}]</TOOLCALL>)"
      "\n",
      "Hm.", call("get_weather", kParis) + call("now", "{}"));
  add("nemotron", R"(<TOOLCALL>{"name": "now", "arguments": {}}</TOOLCALL>)", "", call("now", "{}"));

  const std::string harmony = "<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>";
  add("gpt-oss", harmony + kParis + "<|call|>", "", call("get_weather", kParis));
  add("gpt-oss", harmony + kTricky, "", call("get_weather", kTricky));  // <|call|> ends the answer
  add("gpt-oss", "I look.<|start|>assistant" + harmony + kParis + "<|call|>", "I look.", call("get_weather", kParis));
  add("gpt-oss", " to=functions.now<|channel|>commentary json<|message|>{}<|call|>", "", call("now", "{}"));
  add("gpt-oss", "<|start|>assistant to=functions.now<|channel|>commentary json<|message|>{}<|end|>", "",
      call("now", "{}"));
  return all;
}

}  // namespace sluice::server
