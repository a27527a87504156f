// SPDX-License-Identifier: Apache-2.0
// tokenizer.json as it is read, and refused: by the reader for its form, by text::Tokenizer for what it means.
#include "io/tokenizer_json.h"

#include <gtest/gtest.h>

#include <cstdlib>
#include <nlohmann/json.hpp>

#include "io/file.h"
#include "tests/io/expect_error.h"
#include "tests/io/temp_dir.h"
#include "tests/io/tokenizer_defects.h"
#include "text/tokenizer.h"

namespace sluice::io {
namespace {

using text::TokenizerData;

TEST(TokenizerJson, ReadsEveryMember) {
  TempDir dir;
  dir.put("tokenizer.json", kSoundTokenizer);
  dir.put("tokenizer_config.json", kSoundTokenizerConfig);
  const TokenizerData d = read_tokenizer(dir.path());
  EXPECT_EQ(d.source, (dir / "tokenizer.json").string());
  EXPECT_EQ(d.vocab, (std::vector<std::pair<std::string, int64_t>>{{"a", 0}, {"b", 1}, {"ab", 2}}));
  EXPECT_EQ(d.merges, (std::vector<std::pair<std::string, std::string>>{{"a", "b"}}));
  ASSERT_EQ(d.added_tokens.size(), 1u);
  EXPECT_EQ(d.added_tokens[0].content, "<s>");
  EXPECT_EQ(d.added_tokens[0].id, 3);
  EXPECT_TRUE(d.added_tokens[0].special);
  EXPECT_EQ(d.normalizers, std::vector<text::Normalizer>{text::Normalizer::nfc});
  ASSERT_EQ(d.pre_tokenizers.size(), 3u);
  EXPECT_EQ(d.pre_tokenizers[0].pattern, "\\p{L}+");
  EXPECT_TRUE(d.pre_tokenizers[0].is_regex);
  EXPECT_TRUE(d.pre_tokenizers[1].individual_digits);
  EXPECT_FALSE(d.pre_tokenizers[2].use_regex);
  EXPECT_EQ(d.prefix_ids, std::vector<int64_t>{3});
  EXPECT_TRUE(d.suffix_ids.empty());
  EXPECT_TRUE(d.byte_level_decoder);
  EXPECT_TRUE(d.add_bos_token);
  EXPECT_EQ(d.bos_token, "<s>");
  EXPECT_EQ(d.eos_token, "<s>");
  EXPECT_EQ(d.pad_token, "");
  EXPECT_EQ(d.chat_template, "{{ messages }}");
}

TEST(TokenizerJson, MergesInBothSpellings) {
  std::string pairs = kSoundTokenizer;
  pairs.replace(pairs.find("\"a b\""), 5, R"(["a","b"])");
  EXPECT_EQ(parse_tokenizer(pairs, "f", "", "").merges, parse_tokenizer(kSoundTokenizer, "f", "", "").merges);
}

TEST(TokenizerJson, ChatTemplateComesFromThreePlaces) {
  TempDir dir;
  dir.put("tokenizer.json", kSoundTokenizer);
  EXPECT_EQ(read_tokenizer(dir.path()).chat_template, "");
  dir.put("tokenizer_config.json",
          R"({"chat_template":[{"name":"tool_use","template":"t"},{"name":"default","template":"d"}]})");
  EXPECT_EQ(read_tokenizer(dir.path()).chat_template, "d");
  dir.put("chat_template.jinja", "j");
  EXPECT_EQ(read_tokenizer(dir.path()).chat_template, "j");
  for (const char* config : {"[]", R"({"bos_token":3})", R"({"bos_token":{"id":1}})", R"({"add_bos_token":"yes"})",
                             R"({"chat_template":7})", R"({"chat_template":[3]})", "{"}) {
    dir.put("tokenizer_config.json", config);
    expect_error(ErrorCode::bad_file, {"tokenizer_config.json"}, [&] { read_tokenizer(dir.path()); });
  }
}

TEST(TokenizerJson, EveryDefectIsNamed) {
  EXPECT_NO_THROW(text::Tokenizer(parse_tokenizer(kSoundTokenizer, "f", kSoundTokenizerConfig, "g")));
  TempDir dir;
  for (const DefectiveTokenizer& file : tokenizer_defects()) {
    SCOPED_TRACE(file.name);
    const auto path = dir.put("tokenizer.json", file.bytes);
    std::vector<std::string> words = file.words;
    words.push_back(path.string());
    expect_error(file.code, words, [&] { text::Tokenizer(read_tokenizer(dir.path())); });
  }
}

TEST(TokenizerJson, TrainedModelsTokenizeLikeTheirGoldens) {
  const char* root = std::getenv("SLUICE_TEST_MODELS");
  if (root == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODELS names no folder with the trained checkpoints";
  for (const std::string name : {"tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"}) {
    const auto folder = std::filesystem::path(root) / name;
    const TokenizerData d = read_tokenizer(folder);
    EXPECT_EQ(d.added_tokens.size(), 4u) << name;
    EXPECT_FALSE(d.chat_template.empty()) << name;
    EXPECT_EQ(d.eos_token, "<|endoftext|>") << name;
    const auto plain = nlohmann::json::parse(read_file(folder / "tokenizer.json", 1 << 30));
    EXPECT_EQ(d.vocab.size(), plain["model"]["vocab"].size());
    EXPECT_EQ(d.merges.size(), plain["model"]["merges"].size());
    for (const auto& [token, id] : d.vocab) EXPECT_EQ(plain["model"]["vocab"].at(token), id);
    EXPECT_NO_THROW(text::Tokenizer{d});
  }
}

}  // namespace
}  // namespace sluice::io
