// SPDX-License-Identifier: Apache-2.0
// Compiled grammars against texts that are known to be valid or not, as bytes and as tokens; masks against single
// tokens; hostile input.
#include <gtest/gtest.h>

#include <random>
#include <thread>

#include "base/error.h"
#include "grammar/compiler.h"
#include "grammar/structural_tag.h"
#include "io/tokenizer_json.h"
#include "sampling/choose.h"
#include "tests/support/random.h"

namespace sluice::grammar {
namespace {

const text::Tokenizer& tokenizer() {
  static const text::Tokenizer t(io::read_tokenizer(std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h"));
  return t;
}
// Six ids more than the tokenizer has, as models pad their logits.
const Vocabulary& vocabulary() {
  static const Vocabulary v = vocabulary_of(tokenizer(), tokenizer().vocab_size() + 6, std::vector<int32_t>{2});
  return v;
}
GrammarCompiler& compiler() {
  static GrammarCompiler c(vocabulary());
  return c;
}

class Grammar : public testing::Test {
 protected:
  void SetUp() override {
    if (!why_not_available().empty()) GTEST_SKIP() << why_not_available();
  }
};

bool accepts(const Source& source, const std::string& text) {
  GrammarState state(compiler().compile(source));
  return state.accept_bytes(text) && state.may_end();
}

// The sentence of the refusal; "" for none.
std::string refusal(const Source& source) {
  try {
    compiler().compile(source);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << error.what();
    return error.what();
  }
  return "";
}
void expect_refused(const Source& source, const std::string& part) {
  EXPECT_NE(refusal(source).find(part), std::string::npos) << source.text.substr(0, 100) << ": " << refusal(source);
}
Source schema(std::string text) { return {Kind::json_schema, std::move(text)}; }
Source regex(std::string text) { return {Kind::regex, std::move(text)}; }
Source ebnf(std::string text) { return {Kind::ebnf, std::move(text)}; }

constexpr const char* kPerson =
    R"({"type":"object","properties":{"name":{"type":"string"},"age":{"type":"integer","minimum":0,"maximum":150},)"
    R"("tags":{"type":"array","items":{"enum":["a","b"]},"maxItems":3}},"required":["name","age"]})";

constexpr const char* kNotes =
    R"({"type":"array","items":{"anyOf":[{"type":"string","maxLength":3},{"type":"object","properties":{"a":{"type":)"
    R"("string","minLength":2,"maxLength":12},"b":{"type":"string","maxLength":12}},"required":["a","b"]}]}})";

TEST_F(Grammar, TakesWhatFitsAndNothingElse) {
  EXPECT_TRUE(accepts(schema(kPerson), R"({"name": "Ann \"x\" \u00e9", "age": 7, "tags": ["a","b"]})"));
  EXPECT_TRUE(accepts(schema(kPerson), "{\n  \"name\": \"\",\n  \"age\": 150\n}"));
  for (const char* wrong :
       {R"({"name": "Ann"})", R"({"name": "Ann", "age": 151})", R"({"name": "Ann", "age": 1, "x": 2})",
        R"({"name": "Ann", "age": 1, "tags": ["c"]})", R"({"name": "Ann", "age": 1)", "7", ""})
    EXPECT_FALSE(accepts(schema(kPerson), wrong)) << wrong;
  EXPECT_TRUE(accepts(regex("[a-c]{2,3}(x|yz)?"), "abcyz"));
  EXPECT_FALSE(accepts(regex("[a-c]{2,3}(x|yz)?"), "abcdx"));
  EXPECT_FALSE(accepts(regex("[a-c]{2,3}(x|yz)?"), "a"));
  EXPECT_TRUE(accepts(ebnf("root ::= \"(\" root \")\" | \"\""), "((()))"));
  EXPECT_FALSE(accepts(ebnf("root ::= \"(\" root \")\" | \"\""), "((())"));
  const std::vector<std::string> choices{"yes", "no \"or\"\n so \\", "\xc3\xa9t\xc3\xa9"};
  for (const std::string& choice : choices) EXPECT_TRUE(accepts(one_of(choices), choice)) << choice;
  EXPECT_FALSE(accepts(one_of(choices), "ye"));
}

TEST_F(Grammar, OpenSchemasTakePropertiesThatTheyDoNotName) {
  Source open = schema(kPerson);
  open.closed = false;
  EXPECT_TRUE(accepts(open, R"({"name": "Ann", "age": 1, "x": [2, null]})"));
  EXPECT_TRUE(accepts(schema(R"({"type":"object","additionalProperties":true})"), R"({"a": {"b": [1, 2.5e3, "c"]}})"));
}

TEST_F(Grammar, ATriggerBeginsAStructure) {
  const std::vector<std::string> triggers{"<tool="};
  const std::vector<TagStructure> structures{
      {"<tool=f>",
       io::parse_json_value(R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]})", ""),
       "</tool>"},
      {"<tool=g>", {true}, "</tool>"}};
  const Source free = structural_tag(triggers, structures);
  EXPECT_TRUE(accepts(free, "no call at all"));
  EXPECT_TRUE(accepts(free, R"(I call <tool=f>{"x": 3}</tool> and <tool=g>[1]</tool>.)"));
  EXPECT_FALSE(accepts(free, R"(<tool=f>{"x": "3"}</tool>)"));
  EXPECT_FALSE(accepts(free, "<tool=h>"));
  const Source one = structural_tag(triggers, structures, {.at_least_one = true, .stop_after_first = true});
  EXPECT_TRUE(accepts(one, R"(<tool=f>{"x": 3}</tool>)"));
  EXPECT_FALSE(accepts(one, "no call at all"));
  for (const Source& source : {free, one}) {
    EXPECT_TRUE(accepts(source, "<tool=f>{\"x\":\n" + std::string(kMostWhiteSpace - 1, ' ') + "3}</tool>"));
    EXPECT_FALSE(accepts(source, "<tool=f>{\"x\":\n" + std::string(kMostWhiteSpace, ' ') + "3}</tool>"));
  }
  // SGLang's form is the same constraint.
  const Source given = structural_tag(io::parse_json_value(
      R"({"type":"structural_tag","triggers":["<tool="],"structures":[{"begin":"<tool=f>","end":"</tool>","schema":)"
      R"({"type":"object","properties":{"x":{"type":"integer"}},"required":["x"]}},)"
      R"({"begin":"<tool=g>","schema":true,"end":"</tool>"}]})",
      ""));
  EXPECT_EQ(given, free);
}

// The mask has a token's bit exactly where the token is accepted; a refused one and a rollback leave the state alone.
// One exception is xgrammar's: in a grammar that calls itself, a token that runs past the end of the inner call may be
// left out ("ib" after "a" in the last grammar). No text is lost by that: a shorter token that begins it is in the
// mask.
TEST_F(Grammar, MasksAreTheTokensThatAreAccepted) {
  const int64_t vocab = vocabulary().size;
  std::mt19937 random = test::rng();
  const Source calls_itself = ebnf("root ::= \"a\" root \"b\" | [^c]");
  for (const Source& source : {schema(kPerson), schema(kNotes), regex("[a-z ]+\\.( [A-Z][a-z]*){0,4}"), calls_itself}) {
    GrammarState state(compiler().compile(source));
    std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocab)), 0xabababab), again(mask);
    std::vector<int32_t> taken;
    for (int step = 0; step < 60; ++step) {
      state.fill_mask(mask);
      const auto has = [&](int32_t id) { return (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0; };
      const auto has_beginning = [&](int32_t id) {
        const std::string& text = vocabulary().bytes[static_cast<size_t>(id)];
        for (int32_t other = 0; other < vocab; ++other)
          if (const std::string& shorter = vocabulary().bytes[static_cast<size_t>(other)];
              has(other) && !shorter.empty() && shorter.size() < text.size() && text.starts_with(shorter))
            return true;
        return false;
      };
      std::vector<int32_t> allowed;
      for (int32_t id = 0; id < vocab; ++id) {
        const bool bit = has(id);
        // All of them would be a million trials: those that are allowed, and some others.
        if (!bit && random() % 16 != 0) continue;
        const bool accepted = state.accept(id);
        ASSERT_TRUE(accepted == bit || (source == calls_itself && accepted && has_beginning(id)))
            << source.text << " token " << id << " at step " << step << " after " << testing::PrintToString(taken);
        if (accepted) state.rollback(1);
        if (bit) allowed.push_back(id);
      }
      state.fill_mask(again);
      ASSERT_EQ(mask, again);
      if (allowed.empty()) {
        EXPECT_TRUE(state.may_end());
        break;
      }
      taken.push_back(allowed[random() % allowed.size()]);
      ASSERT_TRUE(state.accept(taken.back()));
    }
    // Taken back altogether, it begins anew.
    GrammarState fresh(compiler().compile(source));
    state.rollback(static_cast<int>(taken.size()));
    state.fill_mask(mask);
    fresh.fill_mask(again);
    EXPECT_EQ(mask, again);
    for (const int32_t id : taken) ASSERT_TRUE(state.accept(id));
  }
}

TEST_F(Grammar, ControlTokensAreNoText) {
  GrammarState state(compiler().compile(regex("(.|\\n)*")));
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary().size)));
  state.fill_mask(mask);
  int64_t special = 0;
  for (int32_t id = 0; id < vocabulary().size; ++id) {
    const bool bit = (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) != 0;
    if (id >= tokenizer().vocab_size() || tokenizer().is_special(id)) {
      EXPECT_FALSE(bit) << id;
      ++special;
    }
  }
  EXPECT_GT(special, 6);
  EXPECT_TRUE(state.may_end());
}

TEST_F(Grammar, RefusalsSayWhatIsWrong) {
  expect_refused(regex("a("), "1 groups that are not closed");
  expect_refused(regex("a)"), "closes a group at byte 1 that was not opened");
  expect_refused(regex("[a"), "the regular expression cannot be compiled: ");
  expect_refused(ebnf("root ::= \"a\"\nother = \"b\""), "line 2");
  expect_refused(ebnf("start ::= \"a\""), "root");
  expect_refused(ebnf("root ::= nobody"), "nobody");
  expect_refused(schema("{"), "the JSON schema");
  expect_refused(schema(R"({"type":"strnig"})"), "strnig");
  expect_refused(schema(R"({"type":"integer","minimum":5,"maximum":4})"), "minimum");
  expect_refused(schema(R"({"type":"string","pattern":"("})"), "pattern");
  for (const char* lookaround : {"a(?=b)", "(?<=a)b", "a(?!b)", "\\1(a)"})
    EXPECT_NE(refusal(regex(lookaround)), "") << lookaround;
}

// What the library passes over is refused: it must not look as if it held.
TEST_F(Grammar, KeywordsWithoutEffectAreRefused) {
  for (const char* text :
       {R"({"not":{"type":"string"}})", R"({"type":"object","if":{"required":["a"]},"then":{}})",
        R"({"type":"array","items":{},"uniqueItems":true})",
        R"({"type":"array","items":{},"contains":{"type":"null"}})",
        R"({"type":"object","properties":{"a":{"type":"integer"}},"dependentRequired":{"a":["b"]}})",
        R"({"type":"object","properties":{"a":{"type":"null"}},"anyOf":[{"required":["a"]}]})",
        R"({"$ref":"#/$defs/a","minimum":3,"$defs":{"a":{"type":"integer"}}})", R"({"enum":["a","bc"],"minLength":2})",
        R"({"type":"string","enum":["a",1]})", R"({"minLength":2})", R"({"required":["a"]})",
        R"({"allOf":[{"type":"integer"},{"minimum":3}]})", R"({"type":"number","multipleOf":0.5})",
        R"({"type":"string","pattern":"a*","maxLength":3})", R"({"$ref":"http://example.org/schema"})",
        R"({"oneOf":[{"type":"integer"},{"type":"number"}]})"})
    EXPECT_NE(refusal(schema(text)), "") << text;
  // What says nothing about the value is no keyword, and neither is what nobody refers to.
  for (const char* text :
       {R"({"type":"string","title":"t","description":"d","default":"x","examples":["y"],"x-order":3})",
        R"({"$schema":"https://json-schema.org/draft/2020-12/schema","type":"null","$defs":{"a":{"not":{}}}})",
        R"({"$ref":"#/$defs/a","description":"d","$defs":{"a":{"type":"integer"}}})",
        R"({"type":"string","enum":["a"]})", R"({"type":"array","items":{"type":"null"},"uniqueItems":false})"})
    EXPECT_EQ(refusal(schema(text)), "") << text;
}

// Inside of a string, what JSON does not write as it is; xgrammar alone takes some of these. Text comes as tokens of
// one byte, as control characters are left out of the vocabulary.
TEST_F(Grammar, StringsAreJson) {
  Vocabulary v;
  for (int i = 0; i < 256; ++i) v.bytes.emplace_back(1, static_cast<char>(i));
  v.special.assign(256, false);
  v.size = 256;
  GrammarCompiler by_bytes(v);
  const auto accepts = [&](const Source& source, const std::string& text) {
    GrammarState state(by_bytes.compile(source));
    for (const char c : text)
      if (!state.accept(static_cast<unsigned char>(c))) return false;
    return state.may_end();
  };
  for (const char* text :
       {R"({"type":"string"})", R"({"type":"string","maxLength":5})", R"({"type":"string","minLength":1})",
        R"({"type":"string","pattern":"^[^z]*$"})", R"({"type":"string","pattern":"^\\S*$"})",
        R"({"type":"string","pattern":"^(.|\\n)*$"})",
        R"({"anyOf":[{"type":"string","maxLength":9},{"type":"string","format":"uri-reference"}]})"}) {
    EXPECT_TRUE(accepts(schema(text), "\"ab\"")) << text;
    for (const char* broken : {"\"a\x12\"", "\"a\tb\"", "\"a\n\"", "\"a\"b\"", "\"a\\q\"", "\"\\\"", "\"a\\u12\""})
      EXPECT_FALSE(accepts(schema(text), broken)) << text << " takes " << broken;
  }
  EXPECT_TRUE(accepts(schema(R"({"type":"string","format":"email"})"), "\"a.b@c-d.org\""));
  EXPECT_FALSE(accepts(schema(R"({"type":"string","format":"email"})"), R"("\"\q\"@c.org")"));
  EXPECT_TRUE(accepts(schema("{\"type\":\"string\",\"pattern\":\"^[\xc3\xa4-\xc3\xbc]{2}\xf0\x9f\x98\x80$\"}"),
                      "\"\xc3\xa4\xc3\xbc\xf0\x9f\x98\x80\""));
  for (const char* text :
       {R"({"type":"string","pattern":"^\"$"})", R"({"type":"string","pattern":"^a\\\\b$"})",
        R"({"type":"string","pattern":"^.{0,129}$"})", R"({"type":"string","format":"json-pointer"})"})
    EXPECT_NE(refusal(schema(text)), "") << text;
}

std::string times(const std::string& text, size_t n) {
  std::string out;
  for (size_t i = 0; i < n; ++i) out += text;
  return out;
}

// Around every bound and around the number of repetitions from which on they are counted, not written out.
TEST_F(Grammar, StringsHaveTheirLength) {
  using Bounds = std::pair<int, int>;
  for (const auto& [least, most] :
       {Bounds{0, 0}, Bounds{0, 1}, Bounds{1, 1}, Bounds{2, 5}, Bounds{5, 5}, Bounds{0, 127}, Bounds{0, 128},
        Bounds{127, 128}, Bounds{128, 128}, Bounds{0, 129}, Bounds{120, 140}}) {
    const std::string string = fmt::format(R"({{"type":"string","minLength":{},"maxLength":{}}})", least, most);
    const std::string field =
        fmt::format(R"({{"type":"object","properties":{{"x":{},"y":{}}},"required":["x","y"]}})", string, string);
    for (const int length : {0, 1, 2, 4, 5, 6, 119, 120, 126, 127, 128, 129, 130, 140, 141})
      for (const char* character : {"a", "\xc3\xa9"}) {  // one of two bytes
        const std::string text = fmt::format(R"("{}")", times(character, static_cast<size_t>(length)));
        const bool fits = length >= least && length <= most;
        EXPECT_EQ(accepts(schema(string), text), fits) << length << " of " << string;
        EXPECT_EQ(accepts(schema(field), fmt::format(R"({{"x": {}, "y":{}}})", text, text)), fits)
            << length << " of " << field;
      }
    const std::vector<std::string> triggers{"<f>"};
    const std::vector<TagStructure> structures{{"<f>", io::parse_json_value(field, ""), "</f>"}};
    const Source tag = structural_tag(triggers, structures, {.at_least_one = true});
    const std::string longest = times("a", static_cast<size_t>(most));
    const auto call = [&](const std::string& last) {
      return fmt::format(R"(<f>{{"x": "{}", "y": "{}"}}</f>)", longest, last);
    };
    EXPECT_TRUE(accepts(tag, call(longest))) << field;
    EXPECT_FALSE(accepts(tag, call(longest + 'a'))) << field;
  }
}

// The first bytes of a character by RFC 3629, section 4, to which `next` may be added.
bool utf8_goes_on(const std::string& so_far, unsigned char next) {
  if (so_far.empty()) return next < 0x80 || (next >= 0xc2 && next <= 0xf4);
  const auto first = static_cast<unsigned char>(so_far[0]);
  if (so_far.size() > 1) return next >= 0x80 && next <= 0xbf;
  switch (first) {
    case 0xe0:
      return next >= 0xa0 && next <= 0xbf;
    case 0xed:
      return next >= 0x80 && next <= 0x9f;  // no surrogates
    case 0xf0:
      return next >= 0x90 && next <= 0xbf;
    case 0xf4:
      return next >= 0x80 && next <= 0x8f;
    default:
      return next >= 0x80 && next <= 0xbf;
  }
}

// A model of bytes may write any byte that the mask allows: each is one of UTF-8, and all that JSON allows are there.
TEST_F(Grammar, TextsAreUtf8) {
  Vocabulary bytes;
  for (int i = 0; i < 256; ++i) bytes.bytes.emplace_back(1, static_cast<char>(i));
  const std::vector<std::string> longer{"\xED\xA0\x80", "a\xED", "\xB0\x80", "\x9F\xBF", "\x80\xED\xB0\x80"};
  bytes.bytes.insert(bytes.bytes.end(), longer.begin(), longer.end());
  bytes.size = static_cast<int64_t>(bytes.bytes.size());
  bytes.special.assign(bytes.bytes.size(), false);
  GrammarCompiler of_bytes(bytes);
  std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(bytes.size)));
  const auto allowed = [&](GrammarState& state, size_t id) {
    state.fill_mask(mask);
    const bool is = (mask[id / 32] >> (id % 32) & 1) != 0;
    EXPECT_EQ(state.accept(static_cast<int32_t>(id)), is) << "the mask and the state differ in token " << id;
    if (is) state.rollback(1);
    return is;
  };
  for (const Source& source : {schema(R"({"type":"string","maxLength":4})"), schema(R"({"type":"string"})"),
                               regex("\"[^\"]{0,4}\""), ebnf("root ::= \"\\\"\" [^\"]* \"\\\"\"")}) {
    SCOPED_TRACE(source.text);
    GrammarState state(of_bytes.compile(source));
    ASSERT_TRUE(state.accept('"'));
    // Every character's bytes in front of its last one.
    std::vector<std::string> beginnings{""};
    for (size_t i = 0; i < beginnings.size(); ++i) {
      const std::string text = beginnings[i];
      for (const char c : text) ASSERT_TRUE(state.accept(static_cast<unsigned char>(c)));
      state.fill_mask(mask);
      for (int next = 0x80; next < 256; ++next) {
        const bool is = (mask[static_cast<size_t>(next) / 32] >> (next % 32) & 1) != 0;
        ASSERT_EQ(is, utf8_goes_on(text, static_cast<unsigned char>(next))) << i << ", byte " << next;
        const size_t wanted = text.empty() ? 0 : text[0] < '\xE0' ? 2 : text[0] < '\xF0' ? 3 : 4;
        // Of the characters of four bytes, those of which the third byte differs have equal beginnings.
        if (is && (text.empty() || (text.size() + 1 < wanted && (wanted < 4 || text.size() < 2))))
          beginnings.push_back(text + static_cast<char>(next));
      }
      state.rollback(static_cast<int>(text.size()));
    }
    EXPECT_GT(beginnings.size(), 1000u);
    // The same for tokens of several bytes, after the beginning of a character and after a step that was taken back.
    const size_t first = 256;
    EXPECT_FALSE(allowed(state, first)) << "a surrogate";
    ASSERT_TRUE(state.accept(first + 1));  // a, ED
    EXPECT_FALSE(allowed(state, first + 2));
    EXPECT_TRUE(allowed(state, first + 3));
    EXPECT_FALSE(state.accept_bytes("\xA0\x80"));
    EXPECT_TRUE(state.accept_bytes("\x9F"));
    EXPECT_TRUE(allowed(state, 0xb0)) << "the character's last byte";
    state.rollback(1);
    EXPECT_FALSE(allowed(state, 0xa0));
    EXPECT_FALSE(allowed(state, first + 4)) << "a surrogate after a character's end";
    state.rollback(1);
    EXPECT_FALSE(state.accept_bytes("b\xED\xBF\xBF"));
    EXPECT_TRUE(state.accept_bytes("\xED\x9F\xBF\xEE\x80\x80\""));
    EXPECT_TRUE(state.may_end());
  }
}

// Of a class of surrogates alone a model could write the first byte, and then nothing.
TEST_F(Grammar, SurrogatesAloneAreRefused) {
  const std::vector<Source> refused{
      regex("[\\uD800-\\uDFFF]"),
      regex("a[\\uD800-\\uDBFF]?"),
      regex("[\\uD83D][\\uDE00]|b"),
      regex("[\\uD800-\\uE000]"),
      regex("[^\\u0000-\\uD7FF]"),
      regex("a\\uD800"),
      ebnf("root ::= [a\\uD900-\\uD9FF]*"),
      ebnf("root ::= \"a\\uDFFF\""),
      schema(R"({"type":"string","pattern":"^[\\uD800-\\uDFFF]+$"})"),
      {Kind::structural_tag, R"({"type":"structural_tag","format":{"type":"regex","pattern":"[\\uD800-\\uDFFF]"}})"}};
  for (const Source& source : refused) expect_refused(source, "surrogates");
  for (const Source& source : {regex("[\\uD7FF-\\uE000]"), regex("[\\uD000-\\uDFFF]|[\\uD800-\\uDFFF]"),
                               ebnf("root ::= [^a]"), ebnf("root ::= [\\uD7FF\\uD800]")})
    EXPECT_TRUE(accepts(source, "\xED\x9F\xBF")) << source.text << refusal(source);
  EXPECT_TRUE(accepts(regex("[\\uE000-\\uFFFF]+"), "\xEE\x80\x80"));
}

// Inputs that end other servers. Each is answered, and soon.
TEST_F(Grammar, HostileInputIsRefusedInTime) {
  std::vector<Source> hostile;
  for (const size_t n : {60'000u, 100'000u}) {
    hostile.push_back(ebnf("root ::= " + times("(", n)));
    hostile.push_back(ebnf("root ::= " + times("(", n) + "\"a\"" + times(")", n)));
    hostile.push_back(regex(times("(", n) + times(")", n)));
    hostile.push_back(schema(times("[", n)));
    hostile.push_back(schema(times("{\"items\":", n) + "{}" + times("}", n)));
  }
  hostile.push_back(regex(times("(", 4000) + "a" + times(")", 4000)));
  hostile.push_back(regex("^(?<=x)*{3}$"));
  hostile.push_back(regex("a{0,2000000000}"));
  hostile.push_back(regex("((a{1,100}){1,100}){1,100}"));
  hostile.push_back(regex("*a"));
  hostile.push_back(ebnf("root ::= \"a\"{0,2000000000}"));
  hostile.push_back(ebnf("root ::= (((\"a\"{99}){99}){99}){99}"));
  hostile.push_back(schema(R"({"type":"array","items":{},"minItems":1000000000})"));
  hostile.push_back(schema(R"({"type":"string","maxLength":1000000000})"));
  hostile.push_back(schema(R"({"type":"string","pattern":"(a{1,1000}){1,1000}"})"));
  hostile.push_back(schema(R"({"$ref":"#"})"));
  hostile.push_back(schema(R"({"$ref":"#/$defs/a","$defs":{"a":{"$ref":"#/$defs/b"},"b":{"$ref":"#/$defs/a"}}})"));
  hostile.push_back(schema("{\"enum\":[" + times("\"" + times("x", 90) + "\",", 10'000) + "1]}"));
  for (const Source& source : hostile) {
    const auto begin = std::chrono::steady_clock::now();
    EXPECT_NE(refusal(source), "") << source.text.substr(0, 60);
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    EXPECT_LT(seconds, CompilerLimits().patience + 1) << source.text.substr(0, 60);
  }
}

// Unusual but sound: each compiles or is refused within the time, and what compiles can be used.
TEST_F(Grammar, UnusualInputIsBornOrRefused) {
  std::vector<Source> unusual;
  std::string chain = "root ::= r0\n";
  for (int i = 0; i < 2000; ++i) chain += fmt::format("r{} ::= r{}\n", i, i + 1);
  unusual.push_back(ebnf(chain + "r2000 ::= \"x\"\n"));
  unusual.push_back(ebnf("root ::= root \"a\" | \"a\""));
  unusual.push_back(ebnf("root ::= root root | \"a\""));
  unusual.push_back(ebnf("root ::= root"));
  unusual.push_back(ebnf("root ::= a\na ::= b \"x\"\nb ::= a"));
  unusual.push_back(ebnf("root ::= (\"\" | \"\"*)*"));
  unusual.push_back(regex("((a*)*)*"));
  unusual.push_back(regex("(a|aa|aaa)*b{1,2000}"));
  unusual.push_back(schema(R"({"type":"object","properties":{"a":{"$ref":"#"}},"required":["a"]})"));
  unusual.push_back(schema(R"({"anyOf":[{"$ref":"#"},{"type":"null"}]})"));
  unusual.push_back(schema(R"({"type":"array","items":{"$ref":"#"}})"));
  std::string refs = R"({"$ref":"#/$defs/a0","$defs":{)";
  for (int i = 0; i < 1000; ++i)
    refs += fmt::format(R"("a{}":{{"type":"object","properties":{{"x":{{"$ref":"#/$defs/a{}"}}}}}},)", i, i + 1);
  unusual.push_back(schema(refs + R"("a1000":{"type":"null"}}})"));
  std::string values = R"({"enum":[)";
  for (int i = 0; i < 2000; ++i) values += fmt::format(R"("value number {}",)", i);
  unusual.push_back(schema(values + "null]}"));
  for (const Source& source : unusual) {
    const auto begin = std::chrono::steady_clock::now();
    const std::string why = refusal(source);
    if (why.empty()) {
      GrammarState state(compiler().compile(source));
      std::vector<uint32_t> mask(static_cast<size_t>(sampling::mask_words(vocabulary().size)));
      for (int i = 0; i < 20; ++i) {
        state.fill_mask(mask);
        int32_t id = 0;
        while (id < vocabulary().size && (mask[static_cast<size_t>(id) / 32] >> (id % 32) & 1) == 0) ++id;
        if (id == vocabulary().size) break;
        ASSERT_TRUE(state.accept(id));
      }
    }
    const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
    RecordProperty("unusual", fmt::format("{} s, {}: {}", seconds, source.text.substr(0, 40), why));
    EXPECT_LT(seconds, CompilerLimits().patience + 2) << source.text.substr(0, 60);
  }
}

TEST_F(Grammar, TheCacheIsBoundedAndCounts) {
  GrammarCompiler small(vocabulary(), {.cached_grammars = 2});
  const GrammarPtr first = small.compile(regex("a"));
  EXPECT_EQ(small.compile(regex("a")), first);
  small.compile(regex("b"));
  small.compile(regex("c"));
  EXPECT_EQ(small.stats().cached, 2u);
  EXPECT_EQ(small.stats().compiled, 3);
  EXPECT_EQ(small.stats().hits, 1);
  EXPECT_NE(small.compile(regex("a")), first);  // it was the oldest
  EXPECT_THROW(small.compile(regex("(")), Error);
  EXPECT_EQ(small.stats().refused, 1);
  GrammarState still(first);  // a dropped grammar stays with those who use it
  EXPECT_TRUE(still.accept_bytes("a"));
}

TEST_F(Grammar, ManyThreadsAskAtOnce) {
  GrammarCompiler shared(vocabulary());
  std::vector<std::thread> threads;
  std::vector<GrammarPtr> got(16);
  for (size_t i = 0; i < got.size(); ++i)
    threads.emplace_back([&, i] { got[i] = shared.compile(regex(i % 2 == 0 ? "[0-9]+" : "[a-z]+")); });
  for (std::thread& t : threads) t.join();
  for (size_t i = 2; i < got.size(); ++i) EXPECT_EQ(got[i], got[i % 2]);
  EXPECT_EQ(shared.stats().compiled, 2);
}

TEST_F(Grammar, ACompilationThatTakesTooLongIsRefused) {
  // Not looked at before 5 ms, in which kPerson may be done: strings whose repetitions are counted take a hundred times
  // that.
  GrammarCompiler hasty(vocabulary(), {.seconds = 1e-6});
  bool refused = false;
  // This thread may sleep on beyond the 5 ms, on a busy machine until the compilation is over: then the next one.
  for (int length = 200; length < 240 && !refused; length += 2) try {
      hasty.compile(
          schema(fmt::format(R"({{"type": "object", "properties": {{"a": {{"type": "string", "maxLength": {}}},
                                                                          "b": {{"type": "string", "maxLength": {}}}}}}})",
                             length, length + 1)));
    } catch (const Error& error) {
      refused = true;
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(error.what()).find("takes longer than"), std::string::npos) << error.what();
    }
  EXPECT_TRUE(refused) << "within a microsecond";
  while (hasty.stats().pending > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));  // it goes on by itself
}

}  // namespace
}  // namespace sluice::grammar
