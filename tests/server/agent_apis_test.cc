// SPDX-License-Identifier: Apache-2.0
// Tools through Anthropic's Messages and OpenAI's Responses, before an engine that says what the test wants.
#include <gtest/gtest.h>

#include "grammar/compiler.h"
#include "io/json_text.h"
#include "tests/server/tools_case.h"

namespace sluice::server {
namespace {

constexpr const char *kMessages = "/v1/messages", *kResponses = "/v1/responses", *kCount = "/v1/messages/count_tokens";

const std::string kSchema = R"({"type": "object", "properties": {"city": {"type": "string"}}})";
const std::string kClaudeTools = R"("tools": [{"name": "get_weather", "description": "Looks.", "input_schema": )" +
                                 kSchema +
                                 R"(, "cache_control": {"type": "ephemeral"}}, {"type": "custom", "name": "now"}])";
const std::string kAskClaude = R"({"max_tokens": 50, "messages": [{"role": "user", "content": "a"}])";
const std::string kFlatTools =
    R"("tools": [{"type": "function", "name": "get_weather", "description": "Looks.", "parameters": )" + kSchema +
    R"(, "strict": false}, {"type": "function", "name": "now"}])";
const std::string kAskResponses = R"({"input": "a")";

class AgentApisTest : public ToolsTest {
 protected:
  AgentApisTest() : ToolsTest(std::string("{# </think> #}") + kHermesTemplate) {}

  // The types of an answer's blocks or items, and what is in them.
  static std::string contents(const io::JsonValue& answer, const char* list) {
    std::string out;
    for (size_t i = 0;; ++i) {
      const std::string path = fmt::format("{}.{}.", list, i);
      const std::string type = at(answer, path + "type");
      if (type == "(none)") return out;
      out += type + "(";
      for (const char* key : {"thinking", "text", "content.0.text", "name", "arguments", "status"})
        if (const std::string text = at(answer, path + key); text != "(none)") out += text + ";";
      const io::JsonValue& block = answer.find(list)->as<io::JsonValue::Array>()->at(i);
      if (const io::JsonValue* input = block.find("input")) out += io::to_json_line(*input);
      out += ") ";
    }
  }
};

const std::string kAnswer = "<think>\nHm.\n</think>\n\nI look.\n" + kCall + "\n" + kCall + " Done.";

TEST_F(AgentApisTest, AMessageHasBlocks) {
  const std::string body = kAskClaude + ", " + kClaudeTools + "}";
  const io::JsonValue answer = whole(body, {kAnswer}, FinishReason::stop, kMessages);
  EXPECT_EQ(contents(answer, "content"),
            "thinking(Hm.\n;) text(I look.;) tool_use(get_weather;{\"city\":\"Paris\"}) "
            "tool_use(get_weather;{\"city\":\"Paris\"}) text( Done.;) ");
  EXPECT_EQ(at(answer, "stop_reason"), "tool_use");
  EXPECT_TRUE(at(answer, "content.2.id").starts_with("toolu_"));
  EXPECT_NE(at(answer, "content.2.id"), at(answer, "content.3.id"));
  const io::JsonValue one = whole(
      kAskClaude + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": true}, )" + kClaudeTools + "}",
      {kAnswer}, FinishReason::stop, kMessages);
  EXPECT_EQ(at(one, "content.3.text"), "\n" + kCall + " Done.");
  const io::JsonValue none = whole(kAskClaude + R"(, "tool_choice": {"type": "none"}, )" + kClaudeTools + "}", {kCall},
                                   FinishReason::stop, kMessages);
  EXPECT_EQ(contents(none, "content"), "text(" + kCall + ";) ");
  EXPECT_EQ(at(none, "stop_reason"), "end_turn");
  EXPECT_EQ(prompt().find("<tools>"), std::string::npos);
}

// The blocks that a stream's events make, as Anthropic's clients put them together.
TEST_F(AgentApisTest, AStreamOfAMessageIsTheMessage) {
  const std::string body = kAskClaude + ", " + kClaudeTools + "}";
  for (size_t cut = 0; cut < kAnswer.size(); cut += 7) {
    std::string types, blocks;
    const std::vector<io::JsonValue> all =
        events(body, {kAnswer.substr(0, cut), kAnswer.substr(cut)}, FinishReason::stop, kMessages);
    for (const io::JsonValue& e : all) {
      const std::string type = at(e, "type");
      if (type == "content_block_start") {
        blocks += at(e, "content_block.type") + "(";
        if (const std::string name = at(e, "content_block.name"); name != "(none)") {
          blocks += name + ";";
          EXPECT_TRUE(e.find("content_block")->find("input")->as<io::JsonValue::Object>()->empty());
        }
      }
      if (type == "content_block_stop") blocks += ") ";
      for (const char* key : {"thinking", "text", "partial_json"})
        if (const std::string text = at(e, std::string("delta.") + key); text != "(none)") blocks += text;
    }
    EXPECT_EQ(blocks,
              "thinking(Hm.\n) text(I look.) tool_use(get_weather;{\"city\": \"Paris\"}) "
              "tool_use(get_weather;{\"city\": \"Paris\"}) text( Done.) ");
    EXPECT_EQ(at(all.front(), "type") + at(all.back(), "type"), "message_startmessage_stop");
    EXPECT_EQ(at(all[all.size() - 2], "delta.stop_reason"), "tool_use");
  }
}

TEST_F(AgentApisTest, ToolUseAndResultsComeBackToAModel) {
  const auto rendered = [&](const std::string& result) {
    const std::string body = R"({"max_tokens": 9, "messages": [{"role": "user", "content": "a"}, {"role": "assistant",
        "content": [{"type": "thinking", "thinking": "Hm.", "signature": ""}, {"type": "text", "text": "I look."},
        {"type": "tool_use", "id": "t1", "name": "get_weather", "input": {"city": "Paris"}, "caller": {"type": "direct"}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t1")" +
                             result + R"(}, {"type": "text", "text": "And?"}]}], )" + kClaudeTools + "}";
    const auto exchange = ask(body, kMessages);
    EXPECT_EQ(exchange->response.body, "");
    const std::string text = prompt();
    EXPECT_NE(text.find("<|im_start|>assistant\nI look.\n" + kCall + "<|im_end|>"), std::string::npos) << text;
    EXPECT_NE(text.find("\"parameters\": " + kSchema), std::string::npos) << text;
    EXPECT_EQ(text.find("cache_control"), std::string::npos) << text;
    const std::string count = body.substr(0, body.find("\"max_tokens\": 9, ")) + body.substr(body.find("\"messages\""));
    EXPECT_EQ(at(json(ask(count, kCount)->response.body), "input_tokens"),
              std::to_string(engine_->requests.at(engine_->requests.size()).request.prompt.size()));
    const size_t tool = text.find("<|im_start|>tool\n");
    return text.substr(tool, text.find("And?") - tool);
  };
  const std::string expected = "<|im_start|>tool\n21 degrees<|im_end|>\n<|im_start|>user\n";
  EXPECT_EQ(rendered(R"(, "content": "21 degrees")"), expected);
  EXPECT_EQ(rendered(R"(, "content": [{"type": "text", "text": "21 "}, {"type": "text", "text": "degrees"}])"),
            expected);
  EXPECT_EQ(rendered(R"(, "content": "21 degrees", "is_error": true)"), expected);
  EXPECT_EQ(rendered(R"(, "is_error": true)"), "<|im_start|>tool\nError<|im_end|>\n<|im_start|>user\n");
  EXPECT_EQ(rendered(""), "<|im_start|>tool\n<|im_end|>\n<|im_start|>user\n");
}

TEST_F(AgentApisTest, MessagesThatCannotBeAreRefused) {
  const auto claude = [&](const std::string& more) { return refused(more, kAskClaude, kMessages); };
  const auto tool = [&](const std::string& inner) { return claude(R"("tools": [{"name": "f"}, {)" + inner + "}]"); };
  EXPECT_EQ(claude(R"("tools": 7)"), "tools");
  EXPECT_EQ(claude(R"("tools": [7])"), "tools[0]");
  EXPECT_EQ(tool(""), "tools[1].name");
  EXPECT_EQ(tool(R"("name": "f")"), "tools[1].name");
  EXPECT_EQ(tool(R"("name": "g", "input_schema": 7)"), "tools[1].input_schema");
  EXPECT_EQ(tool(R"("name": "g", "strict": 7)"), "tools[1].strict");
  EXPECT_EQ(tool(R"("name": "g", "eager_input_streaming": 7)"), "tools[1].eager_input_streaming");
  EXPECT_EQ(tool(R"("name": "g", "defer_loading": true)"), "tools[1].defer_loading");
  EXPECT_EQ(tool(R"("name": "g", "input_examples": [{}])"), "tools[1].input_examples");
  EXPECT_EQ(tool(R"("name": "g", "allowed_callers": ["code_execution_20260120"])"), "tools[1].allowed_callers");
  EXPECT_EQ(tool(R"("type": "web_search_20260318", "name": "web_search")"), "tools[1].type");
  EXPECT_EQ(tool(R"("type": "bash_20250124", "name": "bash")"), "tools[1].type");
  EXPECT_EQ(claude(R"("tool_choice": {"type": "any"})"), "tool_choice");
  EXPECT_EQ(claude(kClaudeTools + R"(, "tool_choice": "auto")"), "tool_choice");
  EXPECT_EQ(claude(kClaudeTools + R"(, "tool_choice": {"type": "required"})"), "tool_choice.type");
  EXPECT_EQ(claude(kClaudeTools + R"(, "tool_choice": {"type": "tool", "name": "x"})"), "tool_choice.name");
  EXPECT_EQ(claude(kClaudeTools + R"(, "tool_choice": {"type": "auto", "disable_parallel_tool_use": 1})"),
            "tool_choice.disable_parallel_tool_use");
  EXPECT_EQ(claude(R"("output_config": {"format": {"type": "text"}})"), "output_config.format.type");
  EXPECT_EQ(claude(R"("output_config": {"format": {"type": "json_schema"}})"), "output_config.format.schema");
  EXPECT_EQ(claude(R"("output_config": {"effort": "huge"})"), "output_config.effort");
  EXPECT_EQ(claude(R"("output_config": {"effort": 7})"), "output_config.effort");
  EXPECT_EQ(claude(R"("output_config": 7)"), "output_config");
  EXPECT_EQ(claude(R"("thread": {"type": "create"})"), "thread");
  try {
    anthropic_messages(
        service_, std::make_shared<FakeExchange>("POST", kMessages, kAskClaude + R"(, "thread": {"type": "create"}})"));
    ADD_FAILURE();
  } catch (const ApiError& error) {
    const io::JsonValue thread = json(refusal(kMessages, error).body);
    EXPECT_EQ(at(thread, "error.details.error_code"), "thread_unsupported_request");
  }
  EXPECT_EQ(claude(R"("output_format": 7)"), "output_format");
  const auto message = [&](const std::string& role, const std::string& block) {
    return refused(R"("messages": [{"role": ")" + role + R"(", "content": [)" + block + "]}]", R"({"max_tokens": 1)",
                   kMessages);
  };
  EXPECT_EQ(message("assistant", R"({"type": "tool_use", "id": "t", "name": "f", "input": {}})"),
            "messages[0].content");
  EXPECT_EQ(message("assistant", R"({"type": "tool_use", "name": "f", "input": {}})"), "messages[0].content[0].id");
  EXPECT_EQ(message("user", R"({"type": "tool_result", "content": "a"})"), "messages[0].content[0].tool_use_id");
  EXPECT_EQ(message("user", R"({"type": "tool_result", "tool_use_id": "t", "content": [{"type": "image"}]})"),
            "messages[0].content[0].content[0].type");
  EXPECT_EQ(message("user", R"({"type": "tool_result", "tool_use_id": "t", "is_error": "x"})"),
            "messages[0].content[0].is_error");
}

TEST_F(AgentApisTest, PromisesOfMessagesAreConstraints) {
  const std::string strict = R"("tools": [{"name": "f", "strict": true, "input_schema": {"type": "object",
      "properties": {"a": {"type": "integer"}}, "required": ["a"]}}])";
  const std::string format = R"("output_config": {"format": {"type": "json_schema", "schema": {"type": "integer"}}})";
  for (const auto& [more, field] :
       {std::pair{kClaudeTools + R"(, "tool_choice": {"type": "any"})", "tool_choice"},
        {kClaudeTools + R"(, "tool_choice": {"type": "tool", "name": "now"})", "tool_choice"},
        {strict, "tools[0].strict"},
        {format, "output_config.format.schema"},
        {std::string(R"("output_format": {"type": "json_schema", "schema": {"type": "integer"}})"),
         "output_format.schema"},
        {format + ", " + kClaudeTools, "output_config.format.schema"}}) {
    if (!grammar::why_not_available().empty()) {
      EXPECT_EQ(refused(more, kAskClaude, kMessages), field);
      continue;
    }
    EXPECT_EQ(ask(kAskClaude + ", " + more + "}", kMessages)->response.body, "") << more;
    EXPECT_NE(engine_->requests.at(engine_->requests.size()).request.params.grammar, nullptr) << more;
  }
}

// eager_input_streaming: the input comes as it is written, and a call that breaks off has what there is.
TEST_F(AgentApisTest, EagerInputIsNotHeldBack) {
  const std::string body = kAskClaude + R"(, "tools": [{"name": "get_weather", "eager_input_streaming": true}]})";
  const std::vector<std::string> pieces{"Hm. " + kCall.substr(0, 60), kCall.substr(60, 4)};
  std::string input;
  size_t deltas = 0;
  for (const io::JsonValue& e : events(body, pieces, FinishReason::length, kMessages))
    if (at(e, "delta.type") == "input_json_delta") input += at(e, "delta.partial_json"), ++deltas;
  EXPECT_EQ(input, R"({"city": "Paris)");
  EXPECT_EQ(deltas, 2u);
  const io::JsonValue answer = whole(body, pieces, FinishReason::length, kMessages);
  EXPECT_EQ(contents(answer, "content"), "text(Hm.;) tool_use(get_weather;{}) ");
  EXPECT_EQ(at(answer, "stop_reason"), "max_tokens");
}

TEST_F(AgentApisTest, AResponseHasItems) {
  const std::string body = kAskResponses + ", " + kFlatTools + "}";
  const io::JsonValue answer = whole(body, {kAnswer}, FinishReason::stop, kResponses);
  const std::string call = "function_call(get_weather;{\"city\": \"Paris\"};completed;) ";
  EXPECT_EQ(contents(answer, "output"),
            "reasoning(Hm.\n;completed;) message(I look.;completed;) " + call + call + "message( Done.;completed;) ");
  EXPECT_EQ(at(answer, "status"), "completed");
  EXPECT_TRUE(at(answer, "output.2.call_id").starts_with("call_"));
  EXPECT_TRUE(at(answer, "output.2.id").starts_with("fc_"));
  EXPECT_EQ(at(answer, "tools.1.name"), "now");
  EXPECT_EQ(at(answer, "tool_choice"), "auto");
  const io::JsonValue none = whole(kAskResponses + R"(, "tool_choice": "none", )" + kFlatTools + "}", {kCall},
                                   FinishReason::length, kResponses);
  EXPECT_EQ(contents(none, "output"), "message(" + kCall + ";incomplete;) ");
  EXPECT_EQ(at(none, "tool_choice"), "none");
}

TEST_F(AgentApisTest, AStreamOfAResponseIsTheResponse) {
  const std::string body = kAskResponses + ", " + kFlatTools + "}";
  for (size_t cut = 0; cut < kAnswer.size(); cut += 7) {
    const std::vector<io::JsonValue> all =
        events(body, {kAnswer.substr(0, cut), kAnswer.substr(cut)}, FinishReason::stop, kResponses);
    std::string deltas, texts, items;
    int sequence = 0;
    for (const io::JsonValue& e : all) {
      const std::string type = at(e, "type");
      EXPECT_EQ(at(e, "sequence_number"), std::to_string(sequence++));
      if (type == "response.output_item.added") {
        deltas += at(e, "item.type") + "(";
        EXPECT_EQ(at(e, "item.status"), "in_progress");
      }
      if (type.ends_with(".delta")) deltas += at(e, "delta");
      if (type.ends_with("arguments.done")) texts += at(e, "name") + at(e, "arguments");
      if (type == "response.output_item.done") deltas += ") ", items += io::to_json_line(*e.find("item")) + ",";
    }
    const std::string call = "function_call({\"city\": \"Paris\"}) ";
    EXPECT_EQ(deltas, "reasoning(Hm.\n) message(I look.) " + call + call + "message( Done.) ");
    EXPECT_EQ(texts, "get_weather{\"city\": \"Paris\"}get_weather{\"city\": \"Paris\"}");
    items.pop_back();
    EXPECT_EQ(io::to_json_line(*all.back().find("response")->find("output")), "[" + items + "]");
    EXPECT_EQ(at(all.back(), "type"), "response.completed");
  }
}

// One event has one token here; those of thoughts and calls have no place in the answer.
TEST_F(AgentApisTest, LogProbabilitiesAreThoseOfTheText) {
  const std::string body = kAskResponses + R"(, "include": ["message.output_text.logprobs"], )" + kFlatTools + "}";
  const std::vector<std::string> pieces{"<think>Hm.", " Hm.</think>", "I", " look.", kCall, " Done."};
  const io::JsonValue answer = whole(body, pieces, FinishReason::stop, kResponses);
  EXPECT_EQ(contents(answer, "output"),
            "reasoning(Hm. Hm.;completed;) message(I look.;completed;) function_call(get_weather;{\"city\": "
            "\"Paris\"};completed;) message( Done.;completed;) ");
  EXPECT_EQ(at(answer, "output.1.content.0.logprobs.1.logprob"), "-0.5");
  EXPECT_EQ(at(answer, "output.1.content.0.logprobs.2"), "(none)");
  EXPECT_EQ(at(answer, "output.3.content.0.logprobs.0.logprob"), "-0.5");
  EXPECT_EQ(at(answer, "output.3.content.0.logprobs.1"), "(none)");
  size_t tokens = 0;
  for (const io::JsonValue& e : events(body, pieces, FinishReason::stop, kResponses))
    if (at(e, "type") == "response.output_text.delta") tokens += e.find("logprobs")->as<io::JsonValue::Array>()->size();
  EXPECT_EQ(tokens, 3u);
}

TEST_F(AgentApisTest, FunctionCallsAndTheirOutputsComeBackToAModel) {
  ask(R"({"input": [{"role": "user", "content": "a"}, {"type": "reasoning", "summary": [], "content":
      [{"type": "reasoning_text", "text": "Hm."}]}, {"type": "message", "role": "assistant", "content": [{"type":
      "output_text", "text": "I look."}]}, {"type": "function_call", "id": "fc_1", "call_id": "c1", "name": "get_weather",
      "arguments": "{\"city\": \"Paris\"}", "status": "completed"}, {"type": "function_call_output", "call_id": "c1",
      "output": [{"type": "input_text", "text": "21 degrees"}]}], "include": ["reasoning.encrypted_content"], )" +
          kFlatTools + "}",
      kResponses);
  EXPECT_NE(prompt().find("<|im_start|>assistant\nI look.\n" + kCall +
                          "<|im_end|>\n<|im_start|>tool\n21 degrees<|im_end|>\n<|im_start|>assistant\n"),
            std::string::npos)
      << prompt();
  EXPECT_NE(prompt().find(R"({"type": "function", "function": {"name": "get_weather", "description": "Looks.", )"),
            std::string::npos)
      << prompt();
}

TEST_F(AgentApisTest, ResponsesThatCannotBeAreRefused) {
  const auto no = [&](const std::string& more) { return refused(more, kAskResponses, kResponses); };
  for (const char* type : {"web_search", "file_search", "computer_use_preview", "code_interpreter", "mcp",
                           "image_generation", "local_shell", "custom"}) {
    EXPECT_EQ(no(fmt::format(R"("tools": [{{"type": "function", "name": "f"}}, {{"type": "{}"}}])", type)),
              "tools[1].type");
  }
  EXPECT_EQ(no(R"("tools": [{"type": "function", "function": {"name": "f"}}])"), "tools[0].name");
  EXPECT_EQ(no(R"("tools": [{"type": "function", "name": "f", "parameters": 7}])"), "tools[0].parameters");
  EXPECT_EQ(no(R"("tool_choice": "required")"), "tool_choice");
  EXPECT_EQ(no(kFlatTools + R"(, "tool_choice": "any")"), "tool_choice");
  EXPECT_EQ(no(kFlatTools + R"(, "tool_choice": {"type": "function", "name": "x"})"), "tool_choice.name");
  EXPECT_EQ(no(kFlatTools + R"(, "tool_choice": {"type": "web_search"})"), "tool_choice.type");
  EXPECT_EQ(
      no(kFlatTools + R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "mcp"}]})"),
      "tool_choice.tools[0].type");
  EXPECT_EQ(no(kFlatTools + R"(, "parallel_tool_calls": 7)"), "parallel_tool_calls");
  EXPECT_EQ(no(R"("include": ["file_search_call.results"])"), "include");
  for (const char* thoughts : {R"([{"type": "reasoning", "summary": []}])",
                               R"([{"type": "reasoning", "content": [{"type": "reasoning_text", "text": "Hm."}]}])"})
    EXPECT_EQ(refused(fmt::format(R"("input": {})", thoughts), R"({"store": false)", kResponses), "input");
  EXPECT_EQ(no(R"("text": {"format": {"type": "grammar"}})"), "text.format.type");
  EXPECT_EQ(no(R"("text": {"format": {"type": "json_schema", "name": "x"}})"), "text.format.schema");
  EXPECT_EQ(no(R"("text": {"format": 7})"), "text.format");
}

TEST_F(AgentApisTest, PromisesOfResponsesAreConstraints) {
  const std::string format =
      R"("text": {"format": {"type": "json_schema", "name": "n", "strict": true, "schema": {"type": "integer"}}})";
  const std::string allowed =
      R"(, "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function",
      "name": "now"}]})";
  for (const auto& [more, field] :
       {std::pair{kFlatTools + R"(, "tool_choice": "required")", "tool_choice"},
        {kFlatTools + R"(, "tool_choice": {"type": "function", "name": "now"})", "tool_choice"},
        {kFlatTools + allowed, "tool_choice"},
        {std::string(R"("tools": [{"type": "function", "name": "f", "strict": true}])"), "tools[0].strict"},
        {std::string(R"("text": {"format": {"type": "json_object"}})"), "text.format"},
        {format, "text.format.schema"},
        {format + ", " + kFlatTools, "text.format.schema"}}) {
    if (!grammar::why_not_available().empty()) {
      EXPECT_EQ(refused(more, kAskResponses, kResponses), field);
      continue;
    }
    EXPECT_EQ(ask(kAskResponses + ", " + more + "}", kResponses)->response.body, "") << more;
    EXPECT_NE(engine_->requests.at(engine_->requests.size()).request.params.grammar, nullptr) << more;
  }
  if (!grammar::why_not_available().empty()) return;
  const std::string body = kAskResponses + R"(, "tool_choice": "required", )" + kFlatTools + "}";
  const io::JsonValue cut = whole(body, {kCall.substr(0, 61)}, FinishReason::length, kResponses);
  EXPECT_EQ(contents(cut, "output"), "function_call(get_weather;{\"city\": \"Pa;incomplete;) ");
  EXPECT_EQ(at(cut, "status"), "incomplete");
}

// A template that says what it is told.
class EffortTest : public ToolsTest {
 protected:
  EffortTest() : ToolsTest("{{ reasoning_effort }}|{{ enable_thinking }}|{{ thinking }}|{{ messages[0].content }}") {}

  std::string said(const std::string& begin, const std::string& more, const char* path) {
    const auto exchange = ask(begin + more + "}", path);
    EXPECT_EQ(exchange->response.body, "") << more;
    return prompt();
  }
};

TEST_F(EffortTest, HowMuchAModelIsToThinkReachesTheTemplate) {
  const auto chat = [&](const std::string& more) { return said(kAsk, more, "/v1/chat/completions"); };
  EXPECT_EQ(chat(""), "|||a");
  EXPECT_EQ(chat(R"(, "reasoning_effort": "low")"), "low|True|True|a");
  EXPECT_EQ(chat(R"(, "reasoning_effort": "none")"), "none|False|False|a");
  EXPECT_EQ(chat(R"(, "reasoning_effort": "high", "chat_template_kwargs": {"enable_thinking": false})"),
            "high|False|True|a");
  const auto claude = [&](const std::string& more) { return said(kAskClaude, more, kMessages); };
  EXPECT_EQ(claude(R"(, "output_config": {"effort": "max"})"), "max|||a");
  EXPECT_EQ(claude(R"(, "output_config": {"effort": "low"}, "thinking": {"type": "adaptive"})"), "low|True||a");
  const auto response = [&](const std::string& more) { return said(kAskResponses, more, kResponses); };
  EXPECT_EQ(response(R"(, "reasoning": {"effort": "minimal", "summary": "auto"})"), "minimal|True|True|a");
  EXPECT_EQ(response(R"(, "reasoning": {"summary": null})"), "|||a");
  EXPECT_EQ(response(R"(, "chat_template_kwargs": {"enable_thinking": false})"), "|False||a");
  const io::JsonValue answer =
      whole(kAskResponses + R"(, "reasoning": {"effort": "high"}})", {"b"}, FinishReason::stop, kResponses);
  EXPECT_EQ(at(answer, "reasoning.effort"), "high");
  EXPECT_EQ(refused(R"("reasoning_effort": "huge")"), "reasoning_effort");
  EXPECT_EQ(refused(R"("reasoning": {"effort": "huge"})", kAskResponses, kResponses), "reasoning.effort");
  EXPECT_EQ(refused(R"("chat_template_kwargs": {"tools": []})", kAskResponses, kResponses), "chat_template_kwargs");
}

}  // namespace
}  // namespace sluice::server
