// SPDX-License-Identifier: Apache-2.0
// Ids and text against Hugging Face's `tokenizers`; time bounds; broken files.
#include "text/tokenizer.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <ctime>
#include <random>

#include "base/env.h"
#include "tests/support/random.h"
#include "tests/text/tokenizer_fixture.h"
#include "text/detokenizer.h"
#include "text/utf8.h"

namespace sluice::text {
namespace {

using nlohmann::json;
using Ids = std::vector<int32_t>;

json load(const std::string& path) { return json::parse(read_file(path)); }

const json& vectors() {
  static const json j = load(SLUICE_SOURCE_DIR "/tests/text/data/tokenizer_vectors.json");
  return j;
}

const json& family(const std::string& name) {
  for (const auto& f : vectors().at("families"))
    if (f.at("name") == name) return f;
  throw std::runtime_error("no family " + name);
}

Tokenizer tokenizer_of(const std::string& name) {
  return Tokenizer(tokenizer_data_of(family(name).at("tokenizer"), name));
}

// Tokens for every byte, " a", "aa" and "aaaa", and two specials.
TokenizerData small_data() {
  TokenizerData d;
  d.source = "small.json";
  std::string alphabet;
  for (int b = 0; b < 256; ++b) {
    std::string token;
    const bool itself = (b >= '!' && b <= '~') || (b >= 0xA1 && b <= 0xAC) || b >= 0xAE;
    static int stand_in = 0;
    if (b == 0) stand_in = 0x100;
    append_code_point(token, static_cast<char32_t>(itself ? b : stand_in++));
    d.vocab.emplace_back(token, b);
  }
  d.vocab.insert(d.vocab.end(), {{"aa", 256}, {"aaaa", 257}, {"ab", 258}});
  d.merges = {{"a", "a"}, {"aa", "aa"}, {"a", "b"}};
  d.added_tokens = {{.content = "<s>", .id = 259, .special = true}, {.content = "</s>", .id = 260, .special = true}};
  PreTokenizerStep step;
  step.kind = PreTokenizerStep::Kind::byte_level;
  step.add_prefix_space = false;
  d.pre_tokenizers = {step};
  return d;
}

std::string sentence_of(const TokenizerData& data) {
  try {
    Tokenizer t(data);
  } catch (const Error& e) {
    return e.what();
  }
  return "accepted";
}

class Families : public testing::TestWithParam<const char*> {};

TEST_P(Families, IdsAndTextEqualHuggingFace) {
  const json& f = family(GetParam());
  const Tokenizer t = tokenizer_of(GetParam());
  const auto& texts = vectors().at("texts");
  ASSERT_GE(texts.size(), 100u);
  for (size_t i = 0; i < texts.size(); ++i) {
    const std::string text = texts[i];
    const Ids ids = f.at("ids")[i];
    EXPECT_EQ(t.encode(text), ids) << i << ": " << texts[i].dump(-1, ' ', true);
    const Ids plain = f.at("plain_ids")[i].is_null() ? ids : f.at("plain_ids")[i].get<Ids>();
    EXPECT_EQ(t.encode(text, {.parse_special = false, .add_special_tokens = false}), plain)
        << i << ": " << texts[i].dump(-1, ' ', true);
    const auto& decoded = f.at("decoded")[i];
    const auto& skipped = f.at("skipped")[i];
    EXPECT_EQ(t.decode(ids), decoded.is_null() ? text : decoded.get<std::string>()) << i;
    EXPECT_EQ(t.decode(ids, true), skipped.is_null() ? text : skipped.get<std::string>()) << i;
  }
}

// Property: pieces of a stream, cut anywhere, add up to the decoded whole and are valid UTF-8 each.
// Over all of Unicode, a character alone and three times: no id stands for more bytes than the tokenizer says.
TEST_P(Families, NoIdStandsForMoreBytesThanItIsSaid) {
  const Tokenizer t = tokenizer_of(GetParam());
  const size_t most = t.most_bytes_of_an_id();
  if (most == 0) return;
  for (char32_t c = 1; c < 0x30000; ++c) {
    if (c >= 0xD800 && c < 0xE000) continue;
    std::string text;
    append_code_point(text, c);
    text += text + text;
    EXPECT_GE(t.encode(text, {.add_special_tokens = false}).size() * most, text.size()) << std::hex << uint32_t{c};
  }
  std::string hangul;  // letters that NFC joins
  for (int i = 0; i < 1000; ++i)
    for (const char32_t c : {0x1112, 0x1161, 0x11AB}) append_code_point(hangul, c);
  EXPECT_GE(t.encode(hangul, {.add_special_tokens = false}).size() * most, hangul.size());
}

TEST_P(Families, StreamEqualsDecodeForEveryPrefix) {
  const Tokenizer t = tokenizer_of(GetParam());
  std::mt19937 rng = test::rng();
  for (int round = 0; round < 20; ++round) {
    const bool skip = round % 2 == 1;
    Detokenizer stream(t, skip);
    Ids ids;
    std::string text;
    for (int i = 0; i < 60; ++i) {
      // Random bytes are mostly invalid, so half of the ids come from an encoded character.
      if (rng() % 2 == 0) {
        ids.push_back(static_cast<int32_t>(rng() % static_cast<uint32_t>(t.vocab_size() + 2)) - 1);
      } else {
        std::string c;
        append_code_point(c, static_cast<char32_t>(rng() % 0xD000 + 1));
        const Ids more = t.encode(c, {.add_special_tokens = false});
        ids.insert(ids.end(), more.begin(), more.end());
      }
    }
    for (size_t n = 0; n < ids.size(); ++n) {
      const std::string piece = stream.push(ids[n]);
      EXPECT_EQ(to_valid_utf8(piece), piece);
      text += piece;
      Detokenizer cut = stream;
      ASSERT_EQ(text + cut.finish(), t.decode(std::span(ids).first(n + 1), skip)) << n;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Vectors, Families,
                         testing::Values("gpt2", "llama3", "qwen", "tekken", "deepseek", "digits", "digit_runs",
                                         "merged"),
                         [](const auto& param) { return std::string(param.param); });

TEST(Tokenizer, SmallModelsEqualTheirGoldens) {
  const char* models = std::getenv("SLUICE_TEST_MODELS");
  if (!models) GTEST_SKIP() << "SLUICE_TEST_MODELS is not set: the trained models' goldens are not tested";
  for (const char* name : {"tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"}) {
    const std::string dir = std::string(models) + "/" + name + "/";
    const Tokenizer t(tokenizer_data_of(load(dir + "tokenizer.json"), dir));
    EXPECT_EQ(t.vocab_size(), 4096);
    for (const auto& golden : load(dir + "tokenizer_golden.json")) {
      const Ids ids = golden.at("ids");
      EXPECT_EQ(t.encode(golden.at("text").get<std::string>()), ids) << golden.at("text").dump(-1, ' ', true);
      EXPECT_EQ(t.decode(ids), golden.at("decoded").get<std::string>());
    }

    const std::string file = read_file(dir + "golden.safetensors");
    uint64_t header_bytes = 0;
    std::memcpy(&header_bytes, file.data(), 8);
    const auto offsets = json::parse(file.substr(8, header_bytes)).at("valid.input_ids").at("data_offsets");
    Ids expected((offsets[1].get<size_t>() - offsets[0].get<size_t>()) / 4);
    std::memcpy(expected.data(), file.data() + 8 + header_bytes + offsets[0].get<size_t>(), expected.size() * 4);
    ASSERT_EQ(expected.size(), 18064u);
    EXPECT_EQ(t.encode(read_file(dir + "valid.txt")), expected) << name;
  }
}

TEST(Tokenizer, LongTextTakesLinearTime) {
#if defined(__SANITIZE_ADDRESS__)
  constexpr size_t kBytes = 500'000;  // ten times slower
#else
  constexpr size_t kBytes = 5'000'000;
#endif
  std::string spaces_then_x(kBytes, ' ');
  spaces_then_x += 'x';
  std::string mixed_marks;  // marks in the wrong order: normal forms sort them
  for (size_t i = 0; i < kBytes / 20; ++i) mixed_marks += "\xCC\x81";
  for (size_t i = 0; i < kBytes / 20; ++i) mixed_marks += "\xCC\xA3";
  const std::pair<const char*, std::string> cases[] = {
      {"5 MB of a", std::string(kBytes, 'a')},
      {"5 MB of 1", std::string(kBytes, '1')},
      {"5 MB of newlines", std::string(kBytes, '\n')},
      {"5 MB of !", std::string(kBytes, '!')},
      {"5 MB of spaces, x", spaces_then_x},
      {"1 MB of marks", mixed_marks},
      {"5 MB of <", std::string(kBytes, '<')},
  };
  for (const char* name : {"llama3", "qwen", "deepseek"}) {
    const Tokenizer t = tokenizer_of(name);
    for (const auto& [what, text] : cases) {
      const std::clock_t start = std::clock();  // the processor's time: a busy machine must not fail this
      const Ids ids = t.encode(text, {.add_special_tokens = false});
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      // 0.2 to 1.6 s on a busy machine; quadratic work would take hours.
      EXPECT_LT(seconds, 20.0) << name << ", " << what;
      if (env_flag(kEnvTestVerbose)) printf("%-9s %-18s %.2f s\n", name, what, seconds);
      if (std::string(name) != "qwen") {  // NFC changes the marks
        EXPECT_EQ(t.decode(ids), text) << name << ", " << what;
      }
    }
  }
}

TEST(Tokenizer, MergesTakeTheLowestRankFromTheLeft) {
  const Tokenizer t(small_data());
  EXPECT_EQ(t.encode("aaa"), (Ids{256, 'a'}));
  EXPECT_EQ(t.encode("aaaaa"), (Ids{257, 'a'}));
  EXPECT_EQ(t.encode("aaaaaaa"), (Ids{257, 256, 'a'}));
  EXPECT_EQ(t.encode("aaab"), (Ids{256, 258}));  // a a before a b
  EXPECT_EQ(t.encode("aab"), (Ids{256, 'b'}));
}

TEST(Tokenizer, InvalidUtf8IsReadAsReplacementCharacters) {
  const Tokenizer t(small_data());
  const auto read = [&](std::string_view bytes) { return t.decode(t.encode(bytes)); };
  const std::string r = "\xEF\xBF\xBD";
  // As Python: bytes.decode(errors="replace").
  EXPECT_EQ(read("a\xFFz"), "a" + r + "z");
  EXPECT_EQ(read("\xE4\xBD"), r);
  EXPECT_EQ(read("\xE4\xBDz"), r + "z");
  EXPECT_EQ(read("\xF0\x9F\x98"), r);
  EXPECT_EQ(read("\xC0\x80"), r + r);
  EXPECT_EQ(read("\xED\xA0\x80"), r + r + r);  // a surrogate
  EXPECT_EQ(read("\xF4\x90\x80\x80"), r + r + r + r);
  EXPECT_EQ(read("\x80\x80"), r + r);
  EXPECT_EQ(read(std::string_view("a\0b", 3)), std::string("a\0b", 3));
}

TEST(Tokenizer, EnoughIsTheBeginningOfAll) {
  const Tokenizer t(small_data());
  const std::string text = "ab aaaa a<s>b aaaaaaaab </s>xyz ab";
  const Ids all = t.encode(text, {.add_special_tokens = false});
  for (size_t enough = 0; enough < all.size() + 2; ++enough) {
    const Ids some = t.encode(text, {.add_special_tokens = false, .enough = enough});
    EXPECT_EQ(some.size() > enough, all.size() > enough) << enough;
    ASSERT_LE(some.size(), all.size());
    EXPECT_TRUE(std::equal(some.begin(), some.end(), all.begin()));
  }
}

TEST(Tokenizer, MostBytesOfAnId) {
  EXPECT_EQ(Tokenizer(small_data()).most_bytes_of_an_id(), 4u);
  TokenizerData normalized = small_data();
  normalized.normalizers = {Normalizer::nfc};
  EXPECT_EQ(Tokenizer(normalized).most_bytes_of_an_id(), 16u);
  TokenizerData swallows = small_data();
  swallows.added_tokens[0].rstrip = true;
  EXPECT_EQ(Tokenizer(swallows).most_bytes_of_an_id(), 0u);
  TokenizerData drops = small_data();
  drops.vocab.erase(drops.vocab.begin() + 7);
  EXPECT_EQ(Tokenizer(drops).most_bytes_of_an_id(), 0u);
}

TEST(Tokenizer, SpecialTokensInTextAreParsedOnlyWhenAsked) {
  TokenizerData d = small_data();
  d.bos_token = "<s>";
  d.add_bos_token = true;
  d.eos_token = "</s>";
  d.add_eos_token = true;
  const Tokenizer t(d);
  EXPECT_EQ(t.encode("x</s>"), (Ids{259, 'x', 260, 260}));
  EXPECT_EQ(t.encode("x</s>", {.add_special_tokens = false}), (Ids{'x', 260}));
  EXPECT_EQ(t.encode("</s>", {.parse_special = false, .add_special_tokens = false}), (Ids{'<', '/', 's', '>'}));
  EXPECT_EQ(t.decode(Ids{259, 'x', 260}, true), "x");
  EXPECT_EQ(t.id_of("</s>"), 260);
  EXPECT_EQ(t.id_of("</t>"), std::nullopt);
  EXPECT_EQ(t.vocab_size(), 261);
}

TEST(Tokenizer, UnknownBytesAreDroppedOrBecomeTheUnknownToken) {
  TokenizerData d = small_data();
  d.vocab.erase(d.vocab.begin() + 'q');
  EXPECT_EQ(Tokenizer(d).encode("xqqy"), (Ids{'x', 'y'}));
  d.unk_token = "aa";
  EXPECT_EQ(Tokenizer(d).encode("xqqy"), (Ids{'x', 257, 'y'}));  // "aa" "aa" merges like any other pair
  d.fuse_unk = true;
  EXPECT_EQ(Tokenizer(d).encode("xqqy"), (Ids{'x', 256, 'y'}));
}

TEST(Tokenizer, BrokenFilesGetOneSentence) {
  const auto changed = [](const auto& change) {
    TokenizerData d = small_data();
    change(d);
    return sentence_of(d);
  };
  EXPECT_EQ(changed([](auto&) {}), "accepted");
  EXPECT_EQ(changed([](auto& d) { d.merges.emplace_back("a", "zz"); }),
            "small.json: merge 3 (\"a\" \"zz\") needs the token \"zz\", which is not in the vocabulary");
  EXPECT_EQ(changed([](auto& d) { d.vocab.emplace_back("zz", 256); }),
            "small.json: tokens \"aa\" and \"zz\" both have the id 256");
  EXPECT_EQ(changed([](auto& d) { d.vocab.emplace_back("aa", 300); }),
            "small.json: the token \"aa\" is in the vocabulary twice");
  EXPECT_EQ(changed([](auto& d) { d.vocab.emplace_back("zz", -1); }),
            "small.json: token \"zz\" has the id -1; ids are 0 to 4194303");
  EXPECT_EQ(changed([](auto& d) { d.vocab.emplace_back("zz", int64_t{1} << 62); }),
            "small.json: token \"zz\" has the id 4611686018427387904; ids are 0 to 4194303");
  EXPECT_EQ(changed([](auto& d) { d.vocab.clear(); }), "small.json: the vocabulary is empty");
  EXPECT_EQ(changed([](auto& d) { d.added_tokens.push_back({.content = "", .id = 261}); }),
            "small.json: the added token with id 261 is an empty string");
  EXPECT_EQ(changed([](auto& d) { d.added_tokens.push_back({.content = "<t>", .id = 260}); }),
            "small.json: tokens \"</s>\" and \"<t>\" both have the id 260");
  EXPECT_EQ(changed([](auto& d) { d.added_tokens.push_back({.content = "aa", .id = 261}); }),
            "small.json: the token \"aa\" has two ids, 256 and 261");
  EXPECT_EQ(changed([](auto& d) { d.added_tokens.push_back({.content = std::string(2000, 'x'), .id = 261}); }),
            "small.json: the added token with id 261 has 2000 bytes; the limit is 1024");
  EXPECT_EQ(changed([](auto& d) { d.byte_fallback = true; }),
            "small.json: the model uses byte_fallback; byte-level BPE is accepted");
  EXPECT_EQ(changed([](auto& d) { d.pre_tokenizers.clear(); }),
            "small.json: the last pre-tokenizer is not ByteLevel; byte-level BPE is the only model that is accepted");
  EXPECT_EQ(changed([](auto& d) { d.unk_token = "<unk>"; }),
            "small.json: the unknown token \"<unk>\" is not in the vocabulary");
  EXPECT_EQ(changed([](auto& d) { d.add_bos_token = true; }),
            "small.json: add_bos_token is true, but the bos token \"\" is not in the vocabulary");
  EXPECT_EQ(changed([](auto& d) { d.prefix_ids = {261}; }),
            "small.json: the post-processor adds the id 261; ids are 0 to 260");
  EXPECT_EQ(changed([](auto& d) { d.vocab.emplace_back("\xFF", 261); }),
            "small.json: the token with id 261 is not valid UTF-8");
}

TEST(Tokenizer, GapsInTheIdsDecodeToNothing) {
  TokenizerData d = small_data();
  d.vocab.emplace_back("abab", 300);
  const Tokenizer t(d);
  EXPECT_EQ(t.vocab_size(), 301);
  EXPECT_EQ(t.decode(Ids{'x', 280, -5, 1 << 30, 'y', 300}), "xyabab");
}

}  // namespace
}  // namespace sluice::text
