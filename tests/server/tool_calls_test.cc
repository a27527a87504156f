// SPDX-License-Identifier: Apache-2.0
// The formats of tool calls: what each model family's chat template writes, whole and cut at every byte; what is no
// call comes out as it went in.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>

#include "grammar/compiler.h"
#include "grammar/structural_tag.h"
#include "server/tool_calls/structural_tag.h"
#include "server/tool_calls/tool_call_formats.h"
#include "server/tool_calls/xml_arguments.h"
#include "tests/server/tool_transcripts.h"
#include "tests/support/byte_vocabulary.h"
#include "tests/support/random.h"

namespace sluice::server {
namespace {

const Tools& tools() { return transcript_tools(); }

Parsed parse(const CallFormat& format, const std::vector<std::string_view>& pieces,
             size_t most = std::numeric_limits<size_t>::max()) {
  return server::parse(format, tools(), pieces, {.most_calls = most});
}

TEST(ToolCalls, TranscriptsAreTheSameHoweverTheyAreCut) {
  for (const Transcript& c : transcripts()) {
    const CallFormat* format = tool_call_format(c.format);
    ASSERT_NE(format, nullptr) << c.format;
    size_t count = 0;
    for (size_t at = 0; (at = c.calls.find("<<", at)) != c.calls.npos; ++at) ++count;
    expect_everywhere(*format, tools(), c.text, {c.content, c.calls, count});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ToolCalls, EveryFormatHasATranscript) {
  const std::vector<Transcript> all = transcripts();
  for (const CallFormat& format : tool_call_formats())
    EXPECT_TRUE(std::any_of(all.begin(), all.end(), [&](const Transcript& c) {
      return tool_call_format(c.format) == &format;
    })) << format.names[0];
}

// A beginning of a transcript has the calls that are complete in it, and the rest of it as content. What is dropped is
// tags and white space only.
TEST(ToolCalls, AnAnswerThatIsCutShortLosesNothing) {
  for (const Transcript& c : transcripts()) {
    const CallFormat& format = *tool_call_format(c.format);
    for (size_t n = 0; n < c.text.size(); ++n) {
      const std::string text = c.text.substr(0, n);
      const Parsed parsed = parse(format, {text});
      ASSERT_TRUE(c.calls.starts_with(parsed.calls)) << text;
      if (parsed.count == 0) {
        ASSERT_EQ(parsed.content, text);
      }
      const std::string_view all = text;
      ASSERT_EQ(parse(format, {all.substr(0, n / 2), all.substr(n / 2)}), parsed) << text;
    }
  }
}

TEST(ToolCalls, WhatIsNoCallIsContent) {
  const std::vector<std::pair<const char*, std::string>> broken{
      {"hermes", "no calls at all\n"},
      {"hermes", " \n "},
      {"hermes", "<tool_call>"},
      {"hermes", "<tool_call>\n</tool_call>"},
      {"hermes", "<tool_call>\n{\"name\": \"f\", \"arguments\": {}}} \n</tool_call> "},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}}, </tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": [1]}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": \"text\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f g\", \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"\", \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"" + std::string(65, 'f') + "\", \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": 7, \"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"arguments\": {}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"name\": \"g\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"why\": \"so\"}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {}, \"parameters\": {}}</tool_call>"},
      {"hermes", "<tool_call>[{\"name\": \"f\"}]</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 01}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1.}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": tru}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 'x'}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": 1,}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"line\nbreak\"}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"\\x\"}}</tool_call>"},
      {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"never closed}}</tool_call>"},
      {"hermes", "<tool_call>" + std::string(200, '[') + "</tool_call>"},
      {"hermes", "<tool_call>{\"a\": " + std::string(200, '[') + "</tool_call>"},
      {"qwen3_coder", "<tool_call>\nno function\n</tool_call>\n"},
      {"qwen3_coder", "<tool_call>\n<function=f g>\n</function>\n</tool_call>"},
      {"qwen3_coder", "<function=f>\ntext\n</function>"},
      {"qwen3_coder", "<function=f>\n<parameter=a>\n1\n</parameter>\n<parameter=a>\n2\n</parameter>\n</function>"},
      {"qwen3_coder", "<function=f>\n<parameter=>\n1\n</parameter>\n</function>"},
      {"qwen3_coder", "<function=f>\n<parameter=a>\nnever closed"},
      {"qwen3_coder", "<function=" + std::string(300, 'f')},
      {"qwen3_coder", "</tool_call> <tool_call>"},
      {"qwen3_coder", "<function=<parameter=a>1</function>"},
      {"glm45", "<tool_call></tool_call>"},
      {"glm45", "<tool_call>two words<arg_key>a</arg_key><arg_value>b</arg_value></tool_call>"},
      {"glm45", "<tool_call>f<arg_key>a</arg_key>b</tool_call>"},
      {"glm45", "<tool_call>f<arg_key>a</arg_key><arg_value>b</arg_value>"},  // one more may have been to come
      {"glm45", "<tool_call>f\n"},
      {"glm45", "<tool_call>" + std::string(300, 'f')},
      {"deepseekv3", deepseek("<|tool_calls_begin|><|tool_call_begin|>function<|tool_sep|>f\n{}<|tool_call_end|>")},
      {"deepseekv3", deepseek("<|tool_calls_begin|> <|tool_calls_end|> ")},
      {"deepseekv3", deepseek("<|tool_call_begin|>other<|tool_sep|>f\n```json\n{}\n```<|tool_call_end|>")},
      {"deepseekv3", deepseek("<|tool_call_begin|>function<|tool_sep|>f\n```json\n[]\n```<|tool_call_end|>")},
      {"deepseekv31", deepseek("<|tool_call_begin|>f g<|tool_sep|>{}<|tool_call_end|><|tool_calls_end|>")},
      {"deepseekv31", deepseek("<|tool_call_begin|>f<|tool_sep|>{} and<|tool_call_end|>")},
      {"kimi_k2", "<|tool_call_begin|>functions.f<|tool_call_argument_begin|>{}<|tool_call_end|>"},
      {"kimi_k2", "<|tool_call_begin|>functions.f:x<|tool_call_argument_begin|>{}<|tool_call_end|>"},
      {"kimi_k2", "<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{<|tool_call_end|>"},
      {"kimi_k2", "<|tool_call_begin|>" + std::string(600, 'f')},
      {"nemotron", "<TOOLCALL>[]</TOOLCALL>"},
      {"nemotron", "<TOOLCALL>[{\"name\": \"f\"}, 7]</TOOLCALL>"},
      {"nemotron", "<TOOLCALL>[{\"name\": \"f\"}"},
      {"nemotron", "<TOOLCALL>f()</TOOLCALL>"},
      {"gpt-oss", "<|channel|>final<|message|>Hello"},
      {"gpt-oss", "it is to=functions.f and so on"},
      {"gpt-oss", "<|channel|>commentary to=python code<|message|>{}<|call|>"},
      {"gpt-oss", "<|channel|>commentary to=functions.f <|constrain|>json<|message|>{} and<|call|>"},
      {"gpt-oss", " to=functions.f<|message|>{}"},
      {"gpt-oss", "<|channel|>commentary to=functions.f to=functions.g<|message|>{}"},
      {"gpt-oss", "<|channel|>commentary, to=functions.f<|message|>{}"},
  };
  for (const auto& [name, text] : broken) {
    expect_everywhere(*tool_call_format(name), tools(), text, {text, "", 0});
    if (testing::Test::HasFatalFailure()) return;
  }
}

TEST(ToolCalls, CallsBeyondTheLimitAreContent) {
  const std::string one = R"(<tool_call>{"name": "now"}</tool_call>)";
  EXPECT_EQ(parse(*tool_call_format("hermes"), {one + "\n" + one + " x"}, 1),
            (Parsed{"\n" + one + " x", "new<<now {}>>", 1}));
  EXPECT_EQ(parse(*tool_call_format("nemotron"), {R"(<TOOLCALL>[{"name": "now"}, {"name": "f"}]</TOOLCALL>)"}, 1),
            (Parsed{R"({"name": "f"})", "new<<now {}>>", 1}));
}

TEST(ToolCalls, ATextIsToldAsSoonAsItIsCertain) {
  ToolCallParser parser(*tool_call_format("hermes"), tools(), {1, [] { return std::string("new"); }});
  const auto told = [&](std::string_view text) {
    std::string out;
    for (const AnswerPart& part : parser.push(text))
      out += part.kind == AnswerPart::Kind::call ? "<" + part.call.name + ">" : part.text;
    return out;
  };
  EXPECT_EQ(told("Well, "), "Well,");
  EXPECT_EQ(told("yes <"), " yes");
  EXPECT_EQ(told("b> <tool"), " <b>");
  EXPECT_EQ(told("box>"), " <toolbox>");
  EXPECT_EQ(told("<tool_call>{\"name\": \"now\"}"), "");
  EXPECT_EQ(told("</tool_call>"), "<now>{}");
}

// Tags, names, halves of JSON and letters in any order, with a mark here and there that no format knows: the parser
// must come to the same end however the text is cut, and every mark must arrive, in the content or in a call.
TEST(ToolCalls, RandomTextsLoseNothing) {
  auto random = test::rng();
  for (const CallFormat& format : tool_call_formats()) {
    std::vector<std::string> words{"{",
                                   "}",
                                   "[",
                                   "]",
                                   "\"",
                                   ":",
                                   ",",
                                   "1",
                                   " ",
                                   "\n",
                                   "a",
                                   "now",
                                   "{}",
                                   "functions.",
                                   ":0",
                                   "\"name\"",
                                   "null",
                                   "```json\n",
                                   "```",
                                   "\\",
                                   ">",
                                   "function",
                                   "\"name\": \"now\"",
                                   "\"arguments\": {}"};
    for (const auto* tags : {&format.begins, &format.inner})
      for (int copies = 0; copies < 3; ++copies) words.insert(words.end(), tags->begin(), tags->end());
    words.emplace_back(format.open);
    words.emplace_back(format.close);
    std::vector<std::string> good;
    for (const Transcript& c : transcripts())
      if (tool_call_format(c.format) == &format) good.push_back(c.text);
    const auto below = [&](size_t n) { return std::uniform_int_distribution<size_t>(0, n - 1)(random); };
    for (int trial = 0; trial < 400; ++trial) {
      std::string text;
      std::vector<std::string> marks;
      for (size_t n = below(12); n > 0; --n) {
        text += below(8) == 0 ? good[below(good.size())] : words[below(words.size())];
        if (below(4) == 0) text += marks.emplace_back("@" + std::to_string(n) + "#");
      }
      if (!text.empty() && below(2) == 0) text.erase(below(text.size()), 1 + below(3));
      const Parsed whole = parse(format, {text});
      std::vector<std::string_view> pieces;
      for (size_t at = 0; at < text.size();) {
        const size_t n = 1 + below(9);
        pieces.push_back(std::string_view(text).substr(at, n));
        at += n;
      }
      ASSERT_EQ(parse(format, pieces), whole) << text;
      if (whole.count == 0) {
        ASSERT_EQ(whole.content, text);
      }
      for (const std::string& mark : marks) {
        const bool has_it = text.find(mark) != text.npos;
        ASSERT_EQ((whole.content + whole.calls).find(mark) != text.npos, has_it) << mark << " of " << text;
      }
    }
  }
}

// Beginnings of calls that all turn out to be none, at the text's end. Read again from each opening tag, one such text
// takes minutes.
TEST(ToolCalls, LongTextsTakeATimeThatGrowsWithTheirLength) {
  const std::pair<const char*, std::pair<std::string, std::string>> hostile[]{
      {"hermes", {R"(<tool_call>{"name": "f", "arguments": [[[ )", ""}},
      {"qwen3_coder", {"<tool_call><function=f><parameter=KEY>", "<parameter=0></function>"}},
      {"glm45", {"<tool_call>f<arg_key>a</arg_key><arg_value>", "</arg_value>and"}},
      {"kimi_k2", {"<|tool_call_begin|>", ""}},
      {"deepseekv31", {deepseek("<|tool_call_begin|>f<|tool_sep|>"), ""}},
      {"nemotron", {R"(<TOOLCALL>[{"a": ")", ""}},
      {"gpt-oss", {" to=functions.f<|channel|>", ""}},
  };
  for (const auto& [name, parts] : hostile) {
    std::string text;
    for (size_t i = 0; text.size() < 500'000; ++i) {
      std::string piece = parts.first;
      if (const size_t key = piece.find("KEY"); key != piece.npos) piece.replace(key, 3, std::to_string(i));
      text += piece;
    }
    text += parts.second;
    EXPECT_EQ(parse(*tool_call_format(name), {text}), (Parsed{text, "", 0})) << name;
  }
}

TEST(ToolCalls, TheTemplateChoosesTheFormat) {
  const auto chosen = [](const std::string& text) {
    const CallFormat* format = tool_call_format_of(text);
    return format == nullptr ? std::string("none") : std::string(format->names[0]);
  };
  EXPECT_EQ(chosen("{% for m in messages %}{{ m.content }}{% endfor %}"), "none");
  EXPECT_EQ(chosen("<tool_call>\n{\"name\": <function-name>, \"arguments\": <args-json-object>}\n</tool_call>"),
            "hermes");
  EXPECT_EQ(chosen("<tool_call>\n<function=example_function_name>\n<parameter=example_parameter_1>"), "qwen3_coder");
  EXPECT_EQ(chosen("{{ '<tool_call>' + tc.name }}<arg_key>{{ k }}</arg_key>"), "glm45");
  EXPECT_EQ(chosen(deepseek("'<|tool_call_begin|>' + tool['type'] + '<|tool_sep|>' + name + '\\n' + '```json'")),
            "deepseekv3");
  EXPECT_EQ(chosen(deepseek("'<|tool_call_begin|>' + tool['function']['name'] + '<|tool_sep|>'")), "deepseekv31");
  EXPECT_EQ(chosen("<AVAILABLE_TOOLS> {{ '<TOOLCALL>[' }}"), "nemotron");
  EXPECT_EQ(chosen("<|tool_calls_section_begin|><|tool_call_begin|>{{ id }}<|tool_call_argument_begin|>"), "kimi_k2");
  EXPECT_EQ(chosen("<|start|>assistant<|channel|>analysis<|message|>"), "gpt-oss");
  EXPECT_EQ(tool_call_format("nothing"), nullptr);
  for (const char* name :
       {"hermes", "qwen25", "qwen", "qwen3_coder", "qwen3_xml", "deepseekv3", "deepseek_v3", "deepseekv31",
        "deepseek_v31", "glm", "glm45", "glm47", "kimi_k2", "gpt-oss", "openai", "nemotron"})
    EXPECT_NE(tool_call_format(name), nullptr) << name;
}

// A text is the value that the schema has for it.
TEST(ToolCalls, ValuesAreOfTheSchema) {
  const std::pair<const char*, std::vector<std::pair<const char*, const char*>>> cases[]{
      {R"({"const":null})", {{"null", "null"}, {"None", "null"}}},
      {R"({"anyOf":[{"const":null},{"type":"string"}]})", {{"null", "null"}, {"a", R"("a")"}}},
      {R"({"enum":["1",2]})", {{"1", R"("1")"}, {"2", "2"}, {"3", R"("3")"}}},
      {R"({"enum":[1,2.5,null]})", {{"1", "1"}, {" 2.50", "2.50"}, {"None", "null"}, {"3", "3"}, {"x", R"("x")"}}},
      {R"({"enum":["true",false,[1]]})",
       {{"true", R"("true")"}, {"False", "false"}, {"[1]", "[1]"}, {"[2]", R"("[2]")"}}},
      {R"({"type":["string","null"],"enum":["null","a"]})", {{"null", R"("null")"}, {"a", R"("a")"}}},
      {R"({"anyOf":[{"type":"string","enum":["7"]},{"type":"integer","maximum":5}]})",
       {{"7", R"("7")"}, {"5", "5"}, {"6", R"("6")"}}},
      {R"({"anyOf":[{"const":1},{"type":"string"}]})", {{"1", "1"}, {"7", R"("7")"}}},
      {R"({"type":["integer","string"]})", {{"1", "1"}, {"1.5", R"("1.5")"}, {"-", R"("-")"}}},
      {R"({"type":"integer","maximum":5})", {{"7", "7"}, {"1.5", "1.5"}, {"\"a\"", R"("\"a\"")"}}},
      {R"({"type":"boolean"})", {{"True", "true"}, {"\"a\"", R"("\"a\"")"}}},
      {R"({"type":"object"})", {{"{\"a\":1,\"a\":2}", "{\"a\":1,\"a\":2}"}, {"7", R"("7")"}}},
  };
  for (const auto& [schema, values] : cases)
    for (const auto& [text, json] : values)
      EXPECT_EQ(
          xml_value_json(
              text, io::parse_json_value(fmt::format(R"({{"properties":{{"s":{}}}}})", schema), "the schema"), "s"),
          json)
          << schema << " " << text;
}

// Where a format's tags are control tokens of the model, as in most of its checkpoints, a constraint takes them as
// such: in a call's tags, never in its arguments where another one is.
TEST(ToolCalls, ConstraintsTakeTagsThatAreTokens) {
  if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  for (const CallFormat& format : tool_call_formats()) {
    grammar::Vocabulary words = test::byte_vocabulary();
    for (const std::string& tag : call_tags(format))
      if (!tag.empty() && tag.find(' ') == tag.npos) words.bytes.push_back(tag), words.special.push_back(true);
    const auto other = static_cast<int32_t>(words.bytes.size());
    words.bytes.emplace_back("<|im_end|>"), words.special.push_back(true);
    words.size = static_cast<int64_t>(words.bytes.size());
    grammar::GrammarCompiler compiler(words);
    for (const bool required : {false, true}) {
      grammar::Source source =
          grammar::structural_tag(io::parse_json_value(structural_tag(format, tools(), {required, true}), "the tag"));
      source.tags = call_tags(format);
      grammar::GrammarState state(compiler.compile(source));
      const CallTemplate written = format.written("now");
      const bool json_form = std::string_view(written.style) == "json";
      std::string text = std::string(format.separator ? format.open : "") + written.begin +
                         (written.pattern.empty() ? "" : "0<|tool_call_argument_begin|>") + (json_form ? "{}" : "") +
                         written.end + std::string(format.separator ? format.close : "");
      size_t tags = 0;
      for (size_t at = 0; at < text.size();) {
        // The longest token, as a model writes it.
        size_t best = static_cast<unsigned char>(text[at]);
        for (size_t id = 256; id < words.bytes.size(); ++id)
          if (text.substr(at).starts_with(words.bytes[id]) && words.bytes[id].size() > words.bytes[best].size())
            best = id;
        ASSERT_TRUE(state.accept(static_cast<int32_t>(best))) << format.names[0] << " " << text.substr(0, at);
        tags += best >= 256;
        at += words.bytes[best].size();
        ASSERT_FALSE(state.accept(other)) << format.names[0] << " " << text.substr(0, at);
      }
      EXPECT_GE(tags, 2u) << format.names[0];
      EXPECT_TRUE(state.may_end()) << format.names[0];
    }
  }
}

// Calls that must come, or that come in place of another constraint's text, have no text beside them.
TEST(ToolCalls, RequiredCallsStandAlone) {
  if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  grammar::GrammarCompiler compiler(test::byte_vocabulary());
  for (const CallFormat& format : tool_call_formats())
    for (const char* otherwise : {"", R"({"type":"regex","pattern":"other"})"})
      for (const bool parallel : {false, true}) {
        const bool has_other = *otherwise != '\0';
        const auto grammar = compiler.compile(grammar::structural_tag(
            io::parse_json_value(structural_tag(format, tools(), {!has_other, parallel, otherwise}), "the tag")));
        const auto accepts = [&](const std::string& text) {
          grammar::GrammarState state(grammar);
          return state.accept_bytes(text) && state.may_end();
        };
        const CallTemplate written = format.written("now");
        const bool json_form = std::string_view(written.style) == "json";
        const std::string call = written.begin + (written.pattern.empty() ? "" : "0<|tool_call_argument_begin|>") +
                                 (json_form ? "{}" : "") + written.end;
        const auto section = [&](const std::string& calls) {
          return format.separator ? std::string(format.open) + calls + std::string(format.close) : calls;
        };
        const std::string one = section(call),
                          two = section(call + std::string(format.separator.value_or(format.between)) + call);
        EXPECT_TRUE(accepts(one)) << one;
        EXPECT_EQ(accepts(two), parallel) << two;
        EXPECT_EQ(parse(format, {two}).count, 2u) << two;
        EXPECT_EQ(parse(format, {two}).content, "");
        EXPECT_EQ(accepts("other"), has_other);
        for (const std::string& text :
             {one + " and more", one + "\n", "I call " + one, std::string(), one + "\n" + one + "!"})
          EXPECT_FALSE(accepts(text)) << text;
      }
}

// The empty arguments between a call's begin and end are a call of its own format.
TEST(ToolCalls, WhatConstraintsDescribeIsParsed) {
  for (const CallFormat& format : tool_call_formats()) {
    const CallTemplate written = format.written("now");
    const bool json_form = std::string_view(written.style) == "json";
    std::string text = written.begin + (written.pattern.empty() ? "" : "0<|tool_call_argument_begin|>") +
                       (json_form ? "{}" : "") + written.end;
    if (format.separator) text = std::string(format.open) + text + std::string(format.close);
    EXPECT_TRUE(text.starts_with(format.trigger)) << text;
    const Parsed parsed = parse(format, {text});
    EXPECT_EQ(parsed.content, "") << text;
    EXPECT_TRUE(parsed.calls.ends_with("<<now {}>>")) << text;
    for (const bool required : {false, true}) {
      const io::JsonValue tag =
          io::parse_json_value(structural_tag(format, tools(), {required, !required}), "the structural tag");
      const io::JsonValue* list = tag.find("format");
      if (format.separator && !required) list = &list->find("tags")->as<io::JsonValue::Array>()->at(0);
      if (format.separator) list = list->find("content");
      const io::JsonValue* tags = list->find("tags");
      ASSERT_EQ(tags->as<io::JsonValue::Array>()->size(), tools().size());
      EXPECT_EQ(*tags->as<io::JsonValue::Array>()->at(1).find("begin")->as<std::string>(), written.begin);
      EXPECT_EQ(*list->find("at_least_one")->as<bool>(), required || format.separator);
      EXPECT_EQ(*list->find("stop_after_first")->as<bool>(), required);
      const io::JsonValue* content = tags->as<io::JsonValue::Array>()->at(0).find("content");
      if (!written.pattern.empty()) content = &content->find("elements")->as<io::JsonValue::Array>()->at(1);
      EXPECT_EQ(*content->find("json_schema") == tools()[0].parameters, required);
    }
  }
}

}  // namespace
}  // namespace sluice::server
