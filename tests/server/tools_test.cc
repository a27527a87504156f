// SPDX-License-Identifier: Apache-2.0
// Tools in requests and calls in answers, before an engine that says what the test wants.
#include <gtest/gtest.h>

#include "grammar/compiler.h"
#include "server/tools.h"
#include "tests/server/tools_case.h"

namespace sluice::server {
namespace {

constexpr const char* kThinks = "{# </think> #}";

const std::string kTools =
    R"("tools": [{"type": "function", "function": {"name": "get_weather", "description": "Looks.",
    "parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}},
    {"type": "function", "function": {"name": "now", "strict": false}}])";

TEST_F(ToolsTest, AWholeAnswerHasItsCalls) {
  const io::JsonValue one = whole(kAsk + ", " + kTools + "}", {kCall.substr(0, 20), kCall.substr(20)});
  EXPECT_EQ(at(one, "choices.0.message.content"), "(none)");
  EXPECT_EQ(at(one, "choices.0.message.tool_calls.0.type"), "function");
  EXPECT_EQ(at(one, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(at(one, "choices.0.message.tool_calls.0.function.arguments"), R"({"city": "Paris"})");
  const std::string id = at(one, "choices.0.message.tool_calls.0.id");
  EXPECT_EQ(id.size(), 29u) << id;
  EXPECT_TRUE(id.starts_with("call_")) << id;
  EXPECT_EQ(at(one, "choices.0.finish_reason"), "tool_calls");

  const io::JsonValue two = whole(kAsk + ", " + kTools + "}", {"I look.\n" + kCall + "\n" + kCall});
  EXPECT_EQ(at(two, "choices.0.message.content"), "I look.");
  EXPECT_EQ(at(two, "choices.0.message.tool_calls.1.function.name"), "get_weather");
  EXPECT_NE(at(two, "choices.0.message.tool_calls.1.id"), at(two, "choices.0.message.tool_calls.0.id"));

  const io::JsonValue none = whole(kAsk + ", " + kTools + "}", {"No", " need."});
  EXPECT_EQ(at(none, "choices.0.message.content"), "No need.");
  EXPECT_EQ(at(none, "choices.0.message.tool_calls"), "(none)");
  EXPECT_EQ(at(none, "choices.0.finish_reason"), "stop");
}

TEST_F(ToolsTest, AStreamHasThemInOpenAIsForm) {
  const std::vector<io::JsonValue> chunks = stream(kAsk + R"(, "logprobs": true, )" + kTools + "}",
                                                   {"Hm. ", kCall.substr(0, 30), kCall.substr(30) + "\n" + kCall});
  std::vector<std::string> got;
  size_t logprobs = 0;
  for (const io::JsonValue& c : chunks) {
    const std::string call = "choices.0.delta.tool_calls.0.";
    if (at(c, call + "index") != "(none)")
      got.push_back(at(c, call + "index") + " " + at(c, call + "type") + " " + at(c, call + "function.name") + " " +
                    at(c, call + "function.arguments"));
    else if (at(c, "choices.0.finish_reason") != "(none)")
      got.push_back(at(c, "choices.0.finish_reason"));
    else
      got.push_back("text " + at(c, "choices.0.delta.content"));
    EXPECT_EQ(at(c, call + "id") != "(none)", at(c, call + "type") != "(none)");
    if (at(c, "choices.0.logprobs") != "(none)") ++logprobs;
  }
  const std::vector<std::string> expected{"text ",
                                          "text Hm.",
                                          "text ",  // the tokens of what is not known yet have log probabilities
                                          "0 function get_weather ",
                                          R"(0 (none) (none) {"city": "Paris"})",
                                          "1 function get_weather ",
                                          R"(1 (none) (none) {"city": "Paris"})",
                                          "tool_calls"};
  EXPECT_EQ(got, expected);
  EXPECT_EQ(logprobs, 3u);  // an event each
}

TEST_F(ToolsTest, StreamsAndWholeAnswersAgreeForEveryChoice) {
  const std::string text = "Well,\n" + kCall + "\nand <tool_call>{broken}</tool_call> " + kCall + " end.";
  for (size_t cut = 0; cut < text.size(); cut += 5) {
    const std::string body = kAsk + R"(, "n": 2, )" + kTools + "}";
    const std::vector<std::string> pieces{text.substr(0, cut), text.substr(cut)};
    const auto exchange = ask(body);
    say({text}, FinishReason::stop, 1);
    say(pieces);
    const io::JsonValue answer = json(exchange->response.body);
    const auto streamed = ask(body.substr(0, body.size() - 1) + R"(, "stream": true})");
    say({text}, FinishReason::stop, 1);
    say(pieces);
    std::string content[2], arguments[2];
    for (size_t begin = 0, end; (end = streamed->streamed.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string line = streamed->streamed.substr(begin + 6, end - begin - 6);
      if (line == "[DONE]") break;
      const io::JsonValue chunk = json(line);
      const size_t choice = at(chunk, "choices.0.index") == "1" ? 1 : 0;
      for (const auto& [path, to] : {std::pair{"choices.0.delta.content", content},
                                     {"choices.0.delta.tool_calls.0.function.arguments", arguments}})
        if (at(chunk, path) != "(none)") to[choice] += at(chunk, path);
    }
    for (const size_t i : {0u, 1u}) {
      const std::string message = fmt::format("choices.{}.message.", i);
      EXPECT_EQ(at(answer, message + "content"), "Well,\nand <tool_call>{broken}</tool_call> end.") << cut;
      EXPECT_EQ(content[i], "Well,\nand <tool_call>{broken}</tool_call> end.") << cut;
      EXPECT_EQ(at(answer, message + "tool_calls.0.function.arguments") +
                    at(answer, message + "tool_calls.1.function.arguments"),
                arguments[i]);
    }
  }
}

TEST_F(ToolsTest, ACutAnswerSaysSoAndLosesNothing) {
  const std::string half = "Hm.\n" + kCall.substr(0, 40);
  const io::JsonValue cut = whole(kAsk + ", " + kTools + "}", {half}, FinishReason::length);
  EXPECT_EQ(at(cut, "choices.0.message.content"), half);
  EXPECT_EQ(at(cut, "choices.0.finish_reason"), "length");
  const io::JsonValue after = whole(kAsk + ", " + kTools + "}", {kCall + half}, FinishReason::length);
  EXPECT_EQ(at(after, "choices.0.message.content"), half);
  EXPECT_EQ(at(after, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(at(after, "choices.0.finish_reason"), "length");
  std::string streamed;
  for (const io::JsonValue& c : stream(kAsk + ", " + kTools + "}", {"Hm.\n", half.substr(4)}, FinishReason::length))
    if (at(c, "choices.0.delta.content") != "(none)") streamed += at(c, "choices.0.delta.content");
  EXPECT_EQ(streamed, half);
}

TEST_F(ToolsTest, TheTemplateShowsTheTools) {
  ask(kAsk + ", " + kTools + "}");
  EXPECT_NE(prompt().find(R"({"type": "function", "function": {"name": "get_weather", "description": "Looks.", )"
                          R"("parameters": {"type": "object", "properties": {"city": {"type": "string"}}}}})"),
            std::string::npos)
      << prompt();
  const std::string shown = at(json(ask(kAsk + ", " + kTools + "}", "/v1/apply-template")->response.body), "prompt");
  EXPECT_NE(shown.find("\"name\": \"now\""), std::string::npos) << shown;
}

TEST_F(ToolsTest, ChoiceNoneHidesThem) {
  for (const char* more : {R"(, "tool_choice": "none")", ""}) {
    const bool none = *more != '\0';
    const std::string body = kAsk + more + (none ? ", " + kTools : std::string(R"(, "tools": [])")) + "}";
    const io::JsonValue answer = whole(body, {kCall});
    EXPECT_EQ(prompt().find("<tools>"), std::string::npos);
    EXPECT_EQ(at(answer, "choices.0.message.content"), kCall);
    EXPECT_EQ(at(answer, "choices.0.finish_reason"), "stop");
  }
  whole(kAsk + R"(, "tool_choice": "auto", )" + kTools + "}", {"x"});
  EXPECT_NE(prompt().find("<tools>"), std::string::npos);
}

TEST_F(ToolsTest, OneCallWhenSeveralAreNotWanted) {
  const io::JsonValue answer =
      whole(kAsk + R"(, "parallel_tool_calls": false, )" + kTools + "}", {kCall + "\n" + kCall});
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.1"), "(none)");
  EXPECT_EQ(at(answer, "choices.0.message.content"), "\n" + kCall);
}

TEST_F(ToolsTest, CallsAndResultsComeBack) {
  const auto rendered = [&](const std::string& call, const std::string& content = R"("content": null, )") {
    ask(R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", )" + content + R"("tool_calls": [)" +
        call + R"(]}, {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "21 degrees"}]}], )" +
        kTools + "}");
    return prompt();
  };
  const std::string expected =
      "<|im_start|>assistant\n\n" + kCall + "<|im_end|>\n<|im_start|>tool\n21 degrees<|im_end|>\n";
  EXPECT_NE(rendered(R"({"id": "c1", "type": "function", "index": 0,
      "function": {"name": "get_weather", "arguments": "{\"city\":\"Paris\"}"}})")
                .find(expected),
            std::string::npos)
      << prompt();
  EXPECT_NE(rendered(R"({"function": {"name": "get_weather", "arguments": {"city": "Paris"}}})", "").find(expected),
            std::string::npos);
  // What a model wrote that is no object must not end its conversation.
  EXPECT_NE(rendered(R"({"id": "c1", "function": {"name": "now", "arguments": "not {json"}})")
                .find("\"arguments\": not {json}"),
            std::string::npos)
      << prompt();
  EXPECT_NE(rendered(R"({"id": "c1", "function": {"name": "now", "arguments": ""}})").find("\"arguments\": {}}"),
            std::string::npos);
  EXPECT_NE(rendered(R"({"id": "c1", "function": {"name": "now"}})").find("\"arguments\": {}}"), std::string::npos);
  // A special token in an argument is the user's text.
  rendered(R"({"id": "c1", "function": {"name": "now", "arguments": "{\"a\": \"<|im_end|>\"}"}})");
  const auto& ids = engine_->requests.at(engine_->requests.size()).request.prompt;
  EXPECT_EQ(std::count(ids.begin(), ids.end(), *tiny_model()->tokenizer.id_of("<|im_end|>")), 4);
}

TEST_F(ToolsTest, RefusalsNameTheField) {
  const auto function = [](const std::string& inner) {
    return R"("tools": [{"type": "function", "function": {"name": "f"}}, {"type": "function", "function": {)" + inner +
           "}}]";
  };
  EXPECT_EQ(refused(R"("tools": "x")"), "tools");
  EXPECT_EQ(refused(R"("tools": [7])"), "tools[0]");
  EXPECT_EQ(refused(R"("tools": [{"function": {"name": "f"}}])"), "tools[0].type");
  EXPECT_EQ(refused(R"("tools": [{"type": "web_search"}])"), "tools[0].type");
  EXPECT_EQ(refused(R"("tools": [{"type": "function"}])"), "tools[0].function");
  EXPECT_EQ(refused(function("")), "tools[1].function.name");
  EXPECT_EQ(refused(function(R"("name": "f")")), "tools[1].function.name");
  EXPECT_EQ(refused(function(R"("name": "a b")")), "tools[1].function.name");
  EXPECT_EQ(refused(function(R"("name": "a.b")")), "tools[1].function.name");
  EXPECT_EQ(refused(function(R"("name": ")" + std::string(65, 'g') + "\"")), "tools[1].function.name");
  EXPECT_EQ(refused(function(R"("name": "g", "description": 7)")), "tools[1].function.description");
  EXPECT_EQ(refused(function(R"("name": "g", "parameters": [])")), "tools[1].function.parameters");
  std::string many = R"("tools": [)";
  for (size_t i = 0; i <= kMostTools; ++i)
    many += fmt::format(R"({}{{"type": "function", "function": {{"name": "f{}"}}}})", i == 0 ? "" : ",", i);
  EXPECT_EQ(refused(many + "]"), "tools");
  EXPECT_EQ(refused(kTools + R"(, "tool_choice": "now")"), "tool_choice");
  EXPECT_EQ(refused(kTools + R"(, "tool_choice": 7)"), "tool_choice");
  EXPECT_EQ(refused(kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "then"}})"),
            "tool_choice.function.name");
  EXPECT_EQ(refused(kTools + R"(, "tool_choice": {"type": "function"})"), "tool_choice.function");
  EXPECT_EQ(refused(kTools + R"(, "tool_choice": {"type": "custom"})"), "tool_choice.type");
  const auto allowed = [&](const std::string& inner) {
    return refused(kTools + R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": )" + inner + "}");
  };
  EXPECT_EQ(allowed("null"), "tool_choice.allowed_tools");
  EXPECT_EQ(allowed(R"({"mode": "none"})"), "tool_choice.allowed_tools.mode");
  EXPECT_EQ(allowed("{}"), "tool_choice.allowed_tools.tools");
  EXPECT_EQ(allowed(R"({"tools": [7]})"), "tool_choice.allowed_tools.tools[0]");
  EXPECT_EQ(allowed(R"({"tools": [{"type": "custom"}]})"), "tool_choice.allowed_tools.tools[0].type");
  EXPECT_EQ(allowed(R"({"tools": [{"type": "function", "function": {"name": "then"}}]})"),
            "tool_choice.allowed_tools.tools[0].function.name");
  EXPECT_EQ(refused(R"("tool_choice": "required")"), "tool_choice");
  EXPECT_EQ(refused(kTools + R"(, "parallel_tool_calls": "no")"), "parallel_tool_calls");
  const auto message = [&](const std::string& calls) {
    const io::JsonValue answer =
        json(ask(R"({"messages": [{"role": "assistant", "tool_calls": )" + calls + "}]}")->response.body);
    return at(answer, "error.param");
  };
  EXPECT_EQ(message("7"), "messages[0].tool_calls");
  EXPECT_EQ(message("[7]"), "messages[0].tool_calls[0].function");
  EXPECT_EQ(message("[{}]"), "messages[0].tool_calls[0].function");
  EXPECT_EQ(message(R"([{"function": {}}])"), "messages[0].tool_calls[0].function.name");
  EXPECT_EQ(message(R"([{"function": {"name": "f", "arguments": 7}}])"),
            "messages[0].tool_calls[0].function.arguments");
  EXPECT_EQ(message(R"([{"id": 7, "function": {"name": "f"}}])"), "messages[0].tool_calls[0].id");
}

// What must come, and what must fit its schema, is a constraint of the answer; without the library it is refused.
TEST_F(ToolsTest, PromisesAreConstraints) {
  const std::string strict = R"("tools": [{"type": "function", "function": {"name": "f", "strict": true,
      "parameters": {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}}}])";
  const auto allowed = [](const char* mode) {
    return kTools + R"(, "tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": ")" + mode +
           R"(", "tools": [{"type": "function", "function": {"name": "now"}}]}})";
  };
  const std::string object = R"(, "response_format": {"type": "json_object"})";
  for (const auto& [more, field] :
       {std::pair{kTools + R"(, "tool_choice": "required")", "tool_choice"},
        {kTools + R"(, "tool_choice": {"type": "function", "function": {"name": "now"}})", "tool_choice"},
        {allowed("auto"), "tool_choice"},
        {allowed("required"), "tool_choice"},
        {strict, "tools[0].function.strict"},
        {kTools + R"(, "tool_choice": "required")" + object, "tool_choice"},
        {kTools + object, "response_format"}}) {
    if (!grammar::why_not_available().empty()) {
      EXPECT_EQ(refused(more), field);
      continue;
    }
    EXPECT_EQ(ask(kAsk + ", " + more + "}")->response.body, "");
    EXPECT_NE(engine_->requests.at(engine_->requests.size()).request.params.grammar, nullptr) << more;
  }
  ask(kAsk + ", " + kTools + "}");
  EXPECT_EQ(engine_->requests.at(engine_->requests.size()).request.params.grammar, nullptr);
}

// A constraint holds the call, so that its arguments can be told while they are written, streamed or not.
TEST_F(ToolsTest, PromisedCallsComePieceByPiece) {
  if (!grammar::why_not_available().empty()) GTEST_SKIP() << grammar::why_not_available();
  const std::string body = kAsk + R"(, "tool_choice": "required", )" + kTools + "}";
  const std::vector<std::string> pieces{kCall.substr(0, 50), kCall.substr(50, 11), kCall.substr(61)};
  std::string arguments;
  size_t with_arguments = 0;
  for (const io::JsonValue& c : stream(body, pieces)) {
    const std::string more = at(c, "choices.0.delta.tool_calls.0.function.arguments");
    if (more != "(none)") arguments += more;
    with_arguments += more != "(none)" && !more.empty();
  }
  EXPECT_EQ(arguments, R"({"city": "Paris"})");
  EXPECT_EQ(with_arguments, 3u);
  const io::JsonValue answer = whole(body, pieces);
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.0.function.arguments"), arguments);
  EXPECT_EQ(at(answer, "choices.0.finish_reason"), "tool_calls");
  const io::JsonValue cut = whole(body, {pieces[0], pieces[1]}, FinishReason::length);
  EXPECT_EQ(at(cut, "choices.0.message.tool_calls.0.function.arguments"), R"({"city": "Pa)");
  EXPECT_EQ(at(cut, "choices.0.message.content"), "(none)");
  EXPECT_EQ(at(cut, "choices.0.finish_reason"), "length");
  EXPECT_EQ(at(whole(body, {pieces[0], pieces[1]}), "choices.0.finish_reason"), "stop");  // by a stop string
}

class PlainTest : public ToolsTest {
 protected:
  PlainTest() : ToolsTest("{% for m in messages %}{{ m.content }}{% endfor %}") {}
};

TEST_F(PlainTest, ToolsThatTheModelWouldNotSeeAreRefused) {
  EXPECT_EQ(refused(kTools), "tools");
  EXPECT_EQ(ask(kAsk + R"(, "tools": []})")->answered, 0);
}

class UnknownFormatTest : public ToolsTest {
 protected:
  UnknownFormatTest() : ToolsTest("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}") {}
};

TEST_F(UnknownFormatTest, CallsThatWouldNotBeFoundAreRefused) {
  EXPECT_EQ(refused(kTools), "tools");
  EXPECT_EQ(ask(kAsk + R"(, "tool_choice": "none", )" + kTools + "}")->answered, 0);
}

class NamedFormatTest : public ToolsTest {
 protected:
  NamedFormatTest()
      : ToolsTest("{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}", [] {
          ServiceConfig config;
          config.tool_call_parser = "nemotron_json";
          return config;
        }()) {}
};

TEST_F(NamedFormatTest, AParserCanBeNamed) {
  const io::JsonValue answer = whole(kAsk + ", " + kTools + "}", {R"(<TOOLCALL>[{"name": "now"}]</TOOLCALL>)"});
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.0.function.name"), "now");
}

class ThinkingTest : public ToolsTest {
 protected:
  ThinkingTest() : ToolsTest(std::string(kThinks) + kHermesTemplate) {}
};

TEST_F(ThinkingTest, CallsInThoughtsAreThoughts) {
  const std::string text = "<think>\nI could say " + kCall + "\n</think>\n\nSo:\n" + kCall;
  const io::JsonValue answer = whole(kAsk + ", " + kTools + "}", {text});
  EXPECT_EQ(at(answer, "choices.0.message.reasoning_content"), "I could say " + kCall + "\n");
  EXPECT_EQ(at(answer, "choices.0.message.content"), "So:");
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(at(answer, "choices.0.message.tool_calls.1"), "(none)");

  const io::JsonValue together = whole(kAsk + R"(, "separate_reasoning": false, )" + kTools + "}", {text});
  EXPECT_EQ(at(together, "choices.0.message.reasoning_content"), "(none)");
  EXPECT_EQ(at(together, "choices.0.message.content"), "<think>\nI could say " + kCall + "\n</think>\n\nSo:");
  EXPECT_EQ(at(together, "choices.0.message.tool_calls.0.function.name"), "get_weather");
  EXPECT_EQ(at(together, "choices.0.message.tool_calls.1"), "(none)");

  const io::JsonValue unfinished = whole(kAsk + ", " + kTools + "}", {"<think>" + kCall}, FinishReason::length);
  EXPECT_EQ(at(unfinished, "choices.0.message.reasoning_content"), kCall);
  EXPECT_EQ(at(unfinished, "choices.0.message.tool_calls"), "(none)");
}

class HarmonyTest : public ToolsTest {
 protected:
  HarmonyTest()
      : ToolsTest(
            "{{ tools }}{% for m in messages %}{{ m.content }}{% endfor %}<|start|>assistant"
            "{# <|channel|>analysis<|message|> #}") {}
};

TEST_F(HarmonyTest, ChannelsAreThoughtsTextAndCalls) {
  const std::string text =
      "<|channel|>analysis<|message|>They ask.<|end|><|start|>assistant<|channel|>commentary<|message|>I look.<|end|>"
      "<|start|>assistant<|channel|>commentary to=functions.get_weather <|constrain|>json<|message|>{\"city\": "
      "\"Paris\"}";
  for (size_t cut = 0; cut < text.size(); ++cut) {
    const io::JsonValue answer = whole(kAsk + ", " + kTools + "}", {text.substr(0, cut), text.substr(cut)});
    ASSERT_EQ(at(answer, "choices.0.message.reasoning_content"), "They ask.") << cut;
    ASSERT_EQ(at(answer, "choices.0.message.content"), "I look.") << cut;
    ASSERT_EQ(at(answer, "choices.0.message.tool_calls.0.function.arguments"), R"({"city": "Paris"})") << cut;
    ASSERT_EQ(at(answer, "choices.0.finish_reason"), "tool_calls");
  }
  const io::JsonValue plain = whole(
      kAsk + "}", {"<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant<|channel|>final<|message|>", "Hello"});
  EXPECT_EQ(at(plain, "choices.0.message.reasoning_content"), "Hm.");
  EXPECT_EQ(at(plain, "choices.0.message.content"), "Hello");
  EXPECT_EQ(at(whole(kAsk + "}", {"Hello", " you"}), "choices.0.message.content"), "Hello you");
}

class DeepSeekTest : public ToolsTest {
 protected:
  DeepSeekTest()
      : ToolsTest(
            "{{ '' if tools else '' }}{% for m in messages %}{% if m['content'] is none %}{% for c in m['tool_calls'] "
            "%}"
            "{{ 'CALL ' + c['function']['name'] + ' ' + c['function']['arguments'] + '!' }}{% endfor %}{% else %}"
            "{{ m['content'] }}{% endif %}{% endfor %}") {}
};

// DeepSeek-V3's template adds arguments as text, and finds calls by a missing content.
TEST_F(DeepSeekTest, TemplatesMayWantTheTextOfArguments) {
  ask(R"({"messages": [{"role": "assistant", "content": null, "tool_calls": [{"id": "c",
      "function": {"name": "now", "arguments": "{\"a\":  1}"}}]}, {"role": "tool", "content": "x"}]})");
  EXPECT_EQ(prompt(), R"(CALL now {"a":  1}!x)");
}

TEST(ToolsConfig, UnknownParsersAreNotTaken) {
  for (const bool tools : {false, true}) {
    ServiceConfig config;
    (tools ? config.tool_call_parser : config.reasoning_parser) = "nothing";
    Service service(config);
    EXPECT_THROW(service.set_ready(tiny_model(), std::make_shared<FakeEngine>()), Error);
  }
}

}  // namespace
}  // namespace sluice::server
