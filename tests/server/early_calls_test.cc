// SPDX-License-Identifier: Apache-2.0
// Calls whose arguments are told while they are written: of constrained answers, and of functions that ask for it.
#include <gtest/gtest.h>

#include "server/tool_calls/close_json.h"
#include "server/tool_calls/json_scanner.h"
#include "server/tool_calls/tool_call_formats.h"
#include "tests/server/tool_transcripts.h"
#include "tests/support/random.h"

namespace sluice::server {
namespace {

const ToolCallParser::Options kConstrained{.constrained = true};

const Tools& eager_tools() {
  static const Tools all = [] {
    Tools tools = transcript_tools();
    for (Tool& tool : tools) tool.eager = true;
    return tools;
  }();
  return all;
}

// What each piece of the text tells: contents as they are, "<name>" where a call begins, then "+" and arguments.
std::vector<std::string> told(const char* format, const std::vector<std::string>& pieces,
                              ToolCallParser::Options options, const Tools& tools = transcript_tools()) {
  options.new_id = [] { return std::string("new"); };
  ToolCallParser parser(*tool_call_format(format), tools, options);
  std::vector<std::string> out;
  const auto add = [&](const std::vector<AnswerPart>& parts) {
    std::string all;
    for (const AnswerPart& part : parts)
      all += part.kind == AnswerPart::Kind::call        ? "<" + part.call.name + ">"
             : part.kind == AnswerPart::Kind::arguments ? "+" + part.text
                                                        : part.text;
    out.push_back(all);
  };
  for (const std::string& piece : pieces) add(parser.push(piece));
  add(parser.finish());
  return out;
}
using Told = std::vector<std::string>;

TEST(EarlyCalls, CompleteTranscriptsSayTheSame) {
  for (const Transcript& t : transcripts()) {
    const CallFormat& format = *tool_call_format(t.format);
    const Parsed expected = parse(format, transcript_tools(), {t.text});
    if (t.text.find("{city}") != t.text.npos) continue;  // no call, but it begins like one
    for (const auto& [tools, options] :
         {std::pair{&transcript_tools(), kConstrained}, {&eager_tools(), ToolCallParser::Options{}}}) {
      expect_everywhere(format, *tools, t.text, expected, options);
      if (testing::Test::HasFatalFailure()) return;
    }
  }
}

// Cut anywhere, the calls so far are the beginning of all calls, and do not depend on the pieces.
TEST(EarlyCalls, AnAnswerThatIsCutHasTheArgumentsSoFar) {
  size_t unfinished = 0;
  for (const Transcript& t : transcripts())
    for (size_t n = 0; n < t.text.size() && t.text.find("{city}") == t.text.npos; ++n) {
      const std::string_view text = std::string_view(t.text).substr(0, n);
      const CallFormat& format = *tool_call_format(t.format);
      const Parsed parsed = parse(format, eager_tools(), {text});
      std::string calls = parsed.calls;
      if (calls.ends_with(">>")) calls.resize(calls.size() - 2);
      ASSERT_TRUE(t.calls.starts_with(calls)) << text << "\nhas " << calls;
      if (parsed.calls.empty()) {
        ASSERT_EQ(parsed.content, text);
      }
      unfinished += !parsed.calls.empty() && !t.calls.starts_with(parsed.calls);
      ASSERT_EQ(parse(format, eager_tools(), {text.substr(0, n / 2), text.substr(n / 2)}), parsed) << text;
      ASSERT_EQ(parse(format, eager_tools(), {text.substr(0, n / 3), text.substr(n / 3)}), parsed) << text;
    }
  EXPECT_GT(unfinished, 1000u);
}

TEST(EarlyCalls, PiecesComeWithTheText) {
  EXPECT_EQ(told("hermes",
                 {"Hm. <tool_call>\n{\"na", "me\": \"now\"", ", \"arguments\": ", "{\"a\": \"", "bc", "\", \"d\": 1",
                  "}}", "\n</tool_call> x"},
                 kConstrained),
            (Told{"Hm.", "", "", "<now>+{\"a\": \"", "+bc", "+\", \"d\": 1", "+}", " x", ""}));
  EXPECT_EQ(told("deepseekv31",
                 {deepseek("<|tool_calls_begin|><|tool_call_begin|>now<|tool_sep|>"), "{\"a\"", ": 1",
                  deepseek("}<|tool_call_end|><|tool_calls_end|>")},
                 kConstrained),
            (Told{"", "<now>+{\"a\"", "+: 1", "+}", ""}));
  EXPECT_EQ(told("deepseekv3",
                 {deepseek("<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>now\n```json\n"), "{\"a\"",
                  deepseek(": 1}\n```<|tool_call_end|><|tool_calls_end|>")},
                 kConstrained),
            (Told{"", "<now>+{\"a\"", "+: 1}", ""}));
  EXPECT_EQ(told("kimi_k2",
                 {"<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>",
                  "{\"a\": [", "]}<|tool_call_end|>"},
                 kConstrained),
            (Told{"", "<now>+{\"a\": [", "+]}", ""}));
  EXPECT_EQ(told("nemotron",
                 {"<TOOLCALL>[{\"name\": \"now\", \"arguments\": {\"a\"", ": 1}}, {\"name\": \"now\", \"arguments\": {",
                  "}}]</TOOLCALL>"},
                 kConstrained),
            (Told{"<now>+{\"a\"", "+: 1}<now>+{", "+}", ""}));
  EXPECT_EQ(
      told("gpt-oss", {"<|channel|>commentary to=functions.now <|constrain|>json<|message|>", "{\"a\"", ": 1}<|call|>"},
           kConstrained),
      (Told{"", "<now>+{\"a\"", "+: 1}", ""}));
}

// Where each parameter has tags, strings come as they are written, and all else when it is complete. That a value is
// over is known with the tag after its own.
TEST(EarlyCalls, ParametersBecomeJsonOnTheWay) {
  EXPECT_EQ(
      told("qwen3_coder",
           {"<tool_call>\n<function=get_weather>\n", "<parameter=city>\nS\xC3\xA3o \"Pau", "lo\" of the longest name\n",
            "\nof all\n</parameter>", "\n<parameter=days>\n1", "2\n</parameter>\n</function>", "\n</tool_call>"},
           kConstrained),
      (Told{"", "<get_weather>+{\"city\":\"S\xC3\xA3o \\\"Pau", R"(+lo\" of the longest name)", R"(+\n\nof all)",
            R"(+","days":)", "+12}", "", ""}));
  EXPECT_EQ(
      told("glm45",
           {"<tool_call>get_weather\n<arg_key>city</arg_key>\n", "<arg_value>\xE6\x9D\xB1", "\xE4\xBA\xAC and more",
            " text</arg_value>", "<arg_key>tags</arg_key><arg_value>[1", "]</arg_value></tool_call>"},
           kConstrained),
      (Told{"", "<get_weather>+{\"city\":\"\xE6\x9D\xB1", "+\xE4\xBA\xAC and more", "+ text", R"(+","tags":)", "+[1]}",
            ""}));
}

// A grammar closes every value and goes on with a parameter or the call's end: other tags are the value's own. Without
// one a forgotten tag is forgiven.
TEST(EarlyCalls, ConstrainedValuesHoldTags) {
  const auto qwen = [](const std::string& value) {
    return "<tool_call>\n<function=get_weather>\n<parameter=city>\n" + value +
           "\n</parameter>\n<parameter=days>\n1\n</parameter>\n</function>\n</tool_call>";
  };
  for (const std::string& value :
       {"</function>", "<parameter=days>", "a</parameter>b", "</parameter>", "</parameter> </f"})
    expect_everywhere(*tool_call_format("qwen3_coder"), transcript_tools(), qwen(value),
                      {"", "new<<get_weather {\"city\":\"" + value + "\",\"days\":1}>>", 1}, kConstrained);
  EXPECT_EQ(parse(*tool_call_format("qwen3_coder"), transcript_tools(), {qwen("a\n<parameter=exact>\ntrue")}),
            (Parsed{"", R"(new<<get_weather {"city":"a","exact":true,"days":1}>>)", 1}));
  const auto glm = [](const std::string& value) {
    return "<tool_call>get_weather\n<arg_key>city</arg_key><arg_value>" + value +
           "</arg_value>\n<arg_key>days</arg_key><arg_value>1</arg_value>\n</tool_call>";
  };
  for (const std::string& value : {"a</arg_value>b", "</tool_call>", "<arg_key>"})
    expect_everywhere(*tool_call_format("glm45"), transcript_tools(), glm(value),
                      {"", "new<<get_weather {\"city\":\"" + value + "\",\"days\":1}>>", 1}, kConstrained);
  // More white space than a grammar writes is text.
  const std::string spaces = "</arg_value>" + std::string(33, ' ') + "<arg_key>";
  expect_everywhere(*tool_call_format("glm45"), transcript_tools(), glm(spaces),
                    {"", "new<<get_weather {\"city\":\"" + spaces + "\",\"days\":1}>>", 1}, kConstrained);
}

// Without a constraint, or outside of what one holds, a call is told when it is complete.
TEST(EarlyCalls, OthersWaitForTheirEnd) {
  const Told pieces{"<tool_call>{\"name\": \"now\", \"arguments\": {", "}}", "</tool_call>"};
  EXPECT_EQ(told("hermes", pieces, {}), (Told{"", "", "<now>+{}", ""}));
  EXPECT_EQ(told("hermes", pieces, {}, eager_tools()), (Told{"<now>+{", "+}", "", ""}));
  const Told unknown{"<tool_call>{\"name\": \"never\", \"arguments\": {", "}}", "</tool_call>"};
  EXPECT_EQ(told("hermes", unknown, kConstrained), (Told{"", "", "<never>+{}", ""}));
  EXPECT_EQ(told("hermes", pieces, {.most_calls = 0, .constrained = true}),
            (Told{"", "", "<tool_call>{\"name\": \"now\", \"arguments\": {}}</tool_call>", ""}));
  // The trigger of a constraint is the section's tag.
  const Told bare{deepseek("<|tool_call_begin|>now<|tool_sep|>{"), deepseek("}<|tool_call_end|>")};
  EXPECT_EQ(told("deepseekv31", bare, kConstrained), (Told{"", "<now>+{}", ""}));
  EXPECT_EQ(told("deepseekv31", bare, {}, eager_tools()), (Told{"<now>+{", "+}", ""}));
  // The name comes last.
  EXPECT_EQ(told("hermes", {"<tool_call>{\"arguments\": {", "}, \"name\": \"now\"}</tool_call>"}, kConstrained),
            (Told{"", "<now>+{}", ""}));
}

// What was told stays, and what follows is content.
TEST(EarlyCalls, ACallThatTurnsOutToBeNoneLosesNothing) {
  const auto got = [](const char* format, const std::string& text) {
    const Parsed whole = parse(*tool_call_format(format), eager_tools(), {text});
    expect_everywhere(*tool_call_format(format), eager_tools(), text, whole);
    return whole;
  };
  EXPECT_EQ(got("hermes", R"(a <tool_call>{"name": "now", "arguments": {"a": tru}}</tool_call> b)"),
            (Parsed{"a}}</tool_call> b", R"(new<<now {"a": tru>>)", 0}));
  EXPECT_EQ(got("hermes", R"(<tool_call>{"name": "now", "arguments": {}, "why": 1}</tool_call>)"),
            (Parsed{R"(, "why": 1}</tool_call>)", "new<<now {}>>", 1}));
  EXPECT_EQ(got("nemotron", R"(<TOOLCALL>[{"name": "now", "arguments": {"a": 1}}, 7]</TOOLCALL>)"),
            (Parsed{", 7]</TOOLCALL>", R"(new<<now {"a": 1}>>)", 1}));
  EXPECT_EQ(got("qwen3_coder", "<function=now><parameter=a>1</parameter><parameter=a>2</parameter></function>"),
            (Parsed{"<parameter=a>2</parameter></function>", R"(new<<now {"a":"1">>)", 0}));
  EXPECT_EQ(got("glm45", "<tool_call>now<arg_key>a</arg_key><arg_value>never closed </arg_val"),
            (Parsed{"</arg_val", R"(new<<now {"a":"never closed >>)", 0}));
}

TEST(EarlyCalls, RandomTextsLoseNothing) {
  auto random = test::rng();
  const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
  for (const CallFormat& format : tool_call_formats()) {
    std::vector<std::string> good;
    for (const Transcript& t : transcripts())
      if (tool_call_format(t.format) == &format) good.push_back(t.text);
    for (int trial = 0; trial < 400; ++trial) {
      std::string text;
      while (text.size() < 200) text += good[below(good.size())];
      std::vector<std::string> marks;
      for (size_t n = below(3); n > 0; --n) {
        const std::string mark = marks.emplace_back("@" + std::to_string(n) + "#");
        text.insert(below(text.size()), mark);
      }
      for (size_t n = below(3); n > 0 && !text.empty(); --n) text.erase(below(text.size()), 1 + below(3));
      for (const Tools* tools : {&transcript_tools(), &eager_tools()}) {
        const Parsed whole = parse(format, *tools, {text}, kConstrained);
        std::vector<std::string_view> pieces;
        for (size_t at = 0; at < text.size();) {
          const size_t n = 1 + below(9);
          pieces.push_back(std::string_view(text).substr(at, n));
          at += n;
        }
        ASSERT_EQ(parse(format, *tools, pieces, kConstrained), whole) << text;
        if (whole.calls.empty()) {
          ASSERT_EQ(whole.content, text);
        }
        for (const std::string& mark : marks) {
          const bool has_it = text.find(mark) != text.npos;
          ASSERT_EQ((whole.content + whole.calls).find(mark) != text.npos, has_it) << mark << " of " << text;
        }
      }
    }
  }
}

TEST(EarlyCalls, WhatBrokeOffIsClosed) {
  const std::string all = R"({"a": "x\"}", "b": [1, {"c": null}, "d"], "e": {"f": [[], "\\"]}, "g": true})";
  const std::pair<size_t, const char*> cuts[]{
      {0, "{}"},
      {1, "{}"},
      {9, "{}"},
      {12, R"({"a": "x\"}"})"},
      {20, R"({"a": "x\"}", "b": []})"},
      {22, R"({"a": "x\"}", "b": [1]})"},
      {37, R"({"a": "x\"}", "b": [1, {"c": null}]})"},
      {all.size(), all.c_str()},
  };
  for (const auto& [n, closed] : cuts) EXPECT_EQ(closed_json(std::string_view(all).substr(0, n)), closed);
  for (size_t n = 0; n <= all.size(); ++n)
    EXPECT_TRUE(is_json_object(closed_json(std::string_view(all).substr(0, n)))) << n;
}

}  // namespace
}  // namespace sluice::server
