// SPDX-License-Identifier: Apache-2.0
// Rendered text against the Python package jinja2 (tools/chat_template_vectors.py), limits, refusals.
#include "text/chat_template.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>

#include "tests/text/tokenizer_fixture.h"
#include "text/jinja/parser.h"

namespace sluice::text {
namespace {

using nlohmann::ordered_json;

jinja::Value value_of(const ordered_json& j) {
  if (j.is_null()) return nullptr;
  if (j.is_boolean()) return j.get<bool>();
  if (j.is_number_integer()) return j.get<int64_t>();
  if (j.is_number()) return j.get<double>();
  if (j.is_string()) return j.get<std::string>();
  if (j.is_array()) {
    jinja::Items items;
    for (const auto& item : j) items.push_back(value_of(item));
    return jinja::Value::list(std::move(items));
  }
  jinja::Fields fields;
  for (const auto& [key, item] : j.items()) fields.emplace_back(key, value_of(item));
  return jinja::Value::dict(std::move(fields));
}

std::tm noon() {
  std::tm t{};
  t.tm_year = 2024 - 1900;
  t.tm_mon = 6;
  t.tm_mday = 26;
  t.tm_hour = 13;
  t.tm_min = 5;
  t.tm_sec = 9;
  t.tm_wday = 5;
  t.tm_yday = 207;
  return t;
}

std::string rendered(const std::string& text, const jinja::Fields& variables, const jinja::Limits& limits = {}) {
  return jinja::Interpreter(variables, limits, noon()).render(*jinja::parse(text));
}

std::string sentence_of(const std::string& text, const jinja::Fields& variables = {}) {
  try {
    return "rendered: " + rendered(text, variables);
  } catch (const Error& e) {
    return e.what();
  }
}

const ordered_json& vectors() {
  static const auto j = ordered_json::parse(read_file(SLUICE_SOURCE_DIR "/tests/text/data/chat_template_vectors.json"));
  return j;
}

void expect_like_jinja2(const ordered_json& c, const jinja::Fields& variables) {
  const std::string source = c.at("template");
  if (c.contains("error")) {
    EXPECT_THROW(rendered(source, variables), Error) << source << "\njinja2: " << c.at("error");
    return;
  }
  try {
    EXPECT_EQ(rendered(source, variables), c.at("text").get<std::string>()) << source;
  } catch (const Error& e) {
    ADD_FAILURE() << source << "\n" << e.what();
  }
}

TEST(ChatTemplate, ExpressionsEqualJinja2) {
  const jinja::Value variables = value_of(vectors().at("variables"));
  ASSERT_GE(vectors().at("expressions").size(), 120u);
  for (const auto& c : vectors().at("expressions")) expect_like_jinja2(c, variables.fields().fields);
}

TEST(ChatTemplate, TemplatesEqualJinja2) {
  ASSERT_GE(vectors().at("templates").size(), 60u);
  for (const auto& c : vectors().at("templates")) expect_like_jinja2(c, value_of(c.at("variables")).fields().fields);
}

TEST(ChatTemplate, ModelsTemplateRendersAChat) {
  const char* models = std::getenv("SLUICE_TEST_MODELS");
  if (!models) GTEST_SKIP() << "SLUICE_TEST_MODELS is not set: the trained models' template is not tested";
  const auto config = ordered_json::parse(read_file(std::string(models) + "/tiny-nemotron-h/tokenizer_config.json"));
  const ChatTemplate t(config.at("chat_template").get<std::string>(), "tokenizer_config.json");
  ChatOptions options;
  options.messages = value_of(ordered_json::parse(R"([{"role": "user", "content": "Hi there!"}])"));
  EXPECT_EQ(t.render(options), "<|im_start|>user\nHi there!<|im_end|>\n<|im_start|>assistant\n");
  options.add_generation_prompt = false;
  EXPECT_EQ(t.render(options), "<|im_start|>user\nHi there!<|im_end|>\n");
}

TEST(ChatTemplate, OptionsAreVariables) {
  ChatOptions options;
  options.bos_token = "<s>";
  options.extra = {{"enable_thinking", false}};
  const ChatTemplate t("{{ bos_token }}{{ eos_token is defined }}{{ tools is none }}{{ enable_thinking }}", "t.json");
  EXPECT_EQ(t.render(options), "<s>FalseTrueFalse");
  options.tools = jinja::Value::list({});
  options.extra = {{"bos_token", "x"}};
  EXPECT_EQ(t.render(options), "xFalseFalse");
  try {
    ChatTemplate("\n{{ strftime_now('%Y') }}", "t.json").render(options);
    FAIL();
  } catch (const Error& e) {
    EXPECT_STREQ(e.what(),
                 "t.json: chat template line 2: \"strftime_now\" has no date: none was given to the template");
  }
}

TEST(ChatTemplate, RefusalsNameTheLine) {
  EXPECT_EQ(sentence_of("a\n{% include 'x' %}"), "chat template line 2: the tag \"include\" is not supported");
  EXPECT_EQ(sentence_of("{% macro m() %}{% endmacro %}\n\n{% call m() %}{% endcall %}"),
            "chat template line 3: the tag \"call\" is not supported");
  EXPECT_EQ(sentence_of("{{ 1 | urlencode }}"), "chat template line 1: the filter \"urlencode\" is not supported");
  EXPECT_EQ(sentence_of("\n{{ 'a' is filter }}"), "chat template line 2: the test \"filter\" is not supported");
  EXPECT_EQ(sentence_of("{{ '%s' % 1 }}"), "chat template line 1: \"%\" to format a str is not supported");
  EXPECT_EQ(sentence_of("{% if x %}\n\n"), "chat template line 1: the block is not closed with \"endif\"");
  EXPECT_EQ(sentence_of("{{ a.b.c }}", {{"a", jinja::Value::dict({})}}),
            "chat template line 1: \"b\" is undefined, so it has no \"c\"");
  EXPECT_EQ(sentence_of("{{ raise_exception('System role not supported') }}"),
            "the chat template refuses the messages: System role not supported");
  EXPECT_EQ(sentence_of("{% for x in [] recursive %}{% endfor %}"),
            "chat template line 1: a recursive loop is not supported");
  EXPECT_EQ(sentence_of("{% for x in [1] %}{% macro m() %}{% endmacro %}{% endfor %}"),
            "chat template line 1: a macro inside a loop or a macro is not supported");
}

// Each of these ends within about a second, with a sentence (docs/robustness.md, M14).
TEST(ChatTemplate, HostileTemplatesAreBounded) {
  const auto deep = [](const char* open, const char* close, int n) {
    std::string s;
    for (int i = 0; i < n; ++i) s += open;
    for (int i = 0; i < n; ++i) s += close;
    return s;
  };
  std::string long_sum = "{{ 1";
  for (int i = 0; i < 100'000; ++i) long_sum += " + 1";
  const std::pair<const char*, std::string> cases[] = {
      {"range", "{% for x in range(10**9) %}{% endfor %}"},
      {"range of 64 bits", "{{ range(-9223372036854775807, 9223372036854775807) | list }}"},
      {"nested loops", "{% for a in range(10000) %}{% for b in range(10000) %}x{% endfor %}{% endfor %}"},
      {"recursion", "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"},
      {"two macros", "{% macro f() %}{{ g() }}{% endmacro %}{% macro g() %}{{ f() }}{% endmacro %}{{ g() }}"},
      {"branching recursion", "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}"},
      {"doubling text",
       "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"},
      {"doubling ~", "{% set ns = namespace(s='x') %}{% for i in range(99) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}"},
      {"doubling list",
       "{% set ns = namespace(s=[1]) %}{% for i in range(99) %}{% set ns.s = ns.s + ns.s %}{% endfor %}"},
      {"doubling tree",
       "{% set ns = namespace(s=1) %}{% for i in range(99) %}{% set ns.s = [ns.s, ns.s] %}{% endfor %}"},
      {"deep list", "{% set ns = namespace(s=1) %}{% for i in range(9999) %}{% set ns.s = [ns.s] %}{% endfor %}"},
      {"repeated text", "{{ 'x' * 10**15 }}"},
      {"repeated list", "{{ [1] * 10**15 }}"},
      {"replaced", "{{ ('x' * 10**6) | replace('x', 'y' * 10**6) }}"},
      {"replaced empty", "{{ ('x' * 10**6).replace('', 'y' * 10**6) }}"},
      {"indent", "{{ ('\\n' * 10**7) | indent(1000, blank=true) }}"},
      {"join", "{{ range(10**6) | join('x' * 10**6) }}"},
      {"tojson", "{{ range(10**6) | list | tojson(indent=16) }}{{ range(10**6) | list | tojson(indent=16) }}"},
      {"output", "{% set s = 'x' * 10**6 %}{% for i in range(1000) %}{{ s }}{% endfor %}"},
      {"unique", "{{ range(10**6) | unique | list | length }}"},
      {"power", "{{ 10 ** 10 ** 10 }}"},
      {"cycle", "{% set a = namespace() %}{% set a.a = a %}"},
      {"cycle in a list", "{% set a = namespace() %}{% set a.a = [[a]] %}"},
      {"cycle through a loop", "{% set a = namespace() %}{% for x in [a] %}{% set a.a = loop %}{% endfor %}"},
      {"cycle through a method", "{% set a = namespace() %}{% set x = {'k': a} %}{% set a.a = x.items %}"},
      {"parentheses", "{{ " + deep("(", ")", 100'000) + " }}"},
      {"lists", "{{ " + deep("[", "]", 100'000) + " }}"},
      {"not", "{{ " + deep("not ", "", 100'000) + "1 }}"},
      {"minus", "{{ " + deep("- ", "", 100'000) + "1 }}"},
      {"blocks", deep("{% if 1 %}", "{% endif %}", 100'000)},
      {"conditions", "{{ " + deep("1 if 1 else ", "", 100'000) + "1 }}"},
      {"filters", "{{ 1" + deep(" | string", "", 100'000) + " }}"},
      {"attributes", "{{ a" + deep(".a", "", 100'000) + " }}"},
      {"sum", long_sum + " }}"},
      {"search", "{{ ('a' * 10**7) in ('a' * 2 * 10**7) }}{{ (('a' * 10**7) + 'b') in ('a' * 2 * 10**7) }}"},
  };
  for (const auto& [what, text] : cases) {
    const std::clock_t start = std::clock();  // the processor's time: a busy machine must not fail this
    const std::string sentence = sentence_of(text);
    EXPECT_LT(static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC, 20.0) << what;
    if (std::string(what) == "search" || std::string(what) == "tojson") continue;  // allowed, only bounded
    EXPECT_NE(sentence.substr(0, 8), "rendered") << what;
    EXPECT_LT(sentence.size(), 300u) << what;
  }
  EXPECT_EQ(sentence_of("\n{% for x in range(10**9) %}{% endfor %}"),
            "chat template line 2: the template takes more than 10000000 steps");
  EXPECT_EQ(sentence_of("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"),
            "chat template line 1: calls are nested more than 1000 levels deep");
}

TEST(ChatTemplate, LimitsAreTheCallers) {
  jinja::Limits limits;
  limits.output_bytes = 10;
  EXPECT_EQ(rendered("{{ 'x' * 10 }}", {}, limits), "xxxxxxxxxx");
  EXPECT_THROW(rendered("{{ 'x' * 11 }}", {}, limits), Error);
  limits.steps = 5;
  EXPECT_THROW(rendered("{{ 1 + 1 + 1 + 1 }}", {}, limits), Error);
}

TEST(ChatTemplate, InvalidUtf8InTheTemplateIsReplaced) { EXPECT_EQ(rendered("a\xFFz", {}), "a\xEF\xBF\xBDz"); }

}  // namespace
}  // namespace sluice::text
