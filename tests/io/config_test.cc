// SPDX-License-Identifier: Apache-2.0
#include "io/config.h"

#include <gtest/gtest.h>

#include <cmath>
#include <random>

#include "tests/io/config_defects.h"
#include "tests/io/expect_error.h"
#include "tests/io/temp_dir.h"

namespace sluice::io {
namespace {

Config parse(const std::string& text) { return Config::parse(text, "config.json"); }

TEST(Config, EveryDefectIsNamed) {
  TempDir dir;
  for (const DefectiveFile& file : config_defects()) {
    SCOPED_TRACE(file.name);
    const auto path = dir.put(file.name + ".json", file.bytes);
    std::vector<std::string> words = file.words;
    words.push_back(path.string());
    expect_error(ErrorCode::bad_file, words, [&] { read_like_a_model(Config::load(path)); });
  }
}

TEST(Config, EveryTruncationIsRefused) {
  const std::string sound = kSoundConfig;
  EXPECT_NO_THROW(read_like_a_model(parse(sound)));
  for (size_t n = 0; n < sound.size(); ++n)
    expect_error(ErrorCode::bad_file, {"config.json"}, [&] { read_like_a_model(parse(sound.substr(0, n))); });
}

TEST(Config, ReadsValues) {
  const Config c = parse(R"({"i": 7, "n": 1.5, "b": true, "s": "x", "null": null, "list": [1, 2], "one": 3,
    "names": ["a", "b"], "o": {"theta": 2, "inner": {"k": "v"}}, "os": [{"q": 1}, {"q": 2}], "big": 1000000000000000019884624838656})");
  EXPECT_EQ(c.integer("i", {.min = 0, .max = 7}), 7);
  EXPECT_EQ(c.integer("absent", {.min = -5}, -5), -5);
  EXPECT_EQ(c.integer("null", {}, 9), 9);
  EXPECT_FALSE(c.has("null"));
  EXPECT_EQ(c.number("n", {}), 1.5);
  EXPECT_EQ(c.number("i", {}), 7.0);
  EXPECT_EQ(c.number("big", {}), 1e30);
  EXPECT_TRUE(c.boolean("b"));
  EXPECT_TRUE(c.boolean("absent", true));
  EXPECT_EQ(c.string("s"), "x");
  EXPECT_EQ(c.string("absent", "y"), "y");
  EXPECT_EQ(c.integers("list", {}), (std::vector<int64_t>{1, 2}));
  EXPECT_EQ(c.integers("one", {}), (std::vector<int64_t>{3}));
  EXPECT_EQ(c.numbers("list", {}), (std::vector<double>{1, 2}));
  EXPECT_EQ(c.strings("names"), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(c.object("o").number("theta", {}), 2);
  EXPECT_EQ(c.object("o").object("inner").string("k"), "v");
  EXPECT_EQ(c.object("o").keys(), (std::vector<std::string>{"theta", "inner"}));
  EXPECT_FALSE(c.find_object("absent"));
  EXPECT_EQ(c.objects("os").at(1).integer("q", {}), 2);
  EXPECT_TRUE(c.is_string("s"));
  EXPECT_TRUE(c.is_object("o"));
  EXPECT_FALSE(c.is_object("s"));
}

TEST(Config, HandlesOutliveTheRoot) {
  const auto inner = [] { return parse(R"({"o": {"p": {"k": 4}}})").object("o").object("p"); }();
  EXPECT_EQ(inner.integer("k", {}), 4);
}

TEST(Config, InfinityInEverySpelling) {
  for (const std::string text : {R"({"limit": [0.0, {"__float__": "Infinity"}]})", R"({"limit": [0.0, Infinity]})"}) {
    const auto limit = parse(text).numbers("limit", {.min = 0});
    EXPECT_EQ(limit, (std::vector<double>{0, std::numeric_limits<double>::infinity()})) << text;
  }
  EXPECT_EQ(parse(R"({"x": -Infinity})").number("x", {}), -std::numeric_limits<double>::infinity());
  EXPECT_EQ(parse(R"({"x": "NaN \" Infinity"})").string("x"), "NaN \" Infinity");
  expect_error(ErrorCode::bad_file, {"x", "NaN"}, [] { parse(R"({"x": NaN})").number("x", {}); });
  expect_error(ErrorCode::bad_file, {"x", "Infinity", "100"}, [] {
    parse(R"({"x": Infinity})").number("x", {0, 100});
  });
  EXPECT_TRUE(std::signbit(parse(R"({"x": -0})").number("x", {})));
}

TEST(Config, AlternativeNames) {
  const ConfigKeys experts{"num_experts", "num_local_experts", "n_routed_experts"};
  EXPECT_EQ(parse(R"({"n_routed_experts": 16})").integer(experts, {.min = 1}), 16);
  EXPECT_EQ(parse(R"({"num_experts": 16, "n_routed_experts": 16})").integer(experts, {.min = 1}), 16);
  expect_error(ErrorCode::bad_file, {"num_experts is 16", "n_routed_experts is 8", "agree"},
               [&] { parse(R"({"num_experts": 16, "n_routed_experts": 8})").integer(experts, {.min = 1}); });
  expect_error(ErrorCode::bad_file, {"num_experts or num_local_experts or n_routed_experts is missing"},
               [&] { parse("{}").integer(experts, {.min = 1}); });
  // The sentence names the key that the file has.
  expect_error(ErrorCode::bad_file, {"config.json: n_routed_experts is 0", "at least 1"},
               [&] { parse(R"({"n_routed_experts": 0})").integer(experts, {.min = 1}); });
}

TEST(Config, Sentences) {
  const Config c =
      parse(R"({"e": 65537, "s": [1, "x"], "rope": {"theta": -1, "list": [{"k": true}]}, "act": "swish"})");
  const auto say = [](const auto& run) -> std::string {
    try {
      run();
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(say([&] { c.integer("e", {.min = 1, .max = 65536}); }),
            "config.json: e is 65537; it must be an integer from 1 to 65536");
  EXPECT_EQ(say([&] { c.integers("s", {.min = 0}); }),
            "config.json: s holds \"x\" at [1]; it must be an integer of at least 0");
  EXPECT_EQ(say([&] { c.object("rope").number("theta", {.min = 0}); }),
            "config.json: rope.theta is -1; it must be a number of at least 0");
  EXPECT_EQ(say([&] { c.object("rope").objects("list")[0].integer("k", {}); }),
            "config.json: rope.list[0].k is true; it must be an integer");
  EXPECT_EQ(say([&] { c.string("none"); }), "config.json: none is missing; it must be a string");
  EXPECT_EQ(say([&] { c.integer("none", {.min = 1, .max = 9}, 0); }),
            "config.json: none is missing and would be 0; it must be an integer from 1 to 9");
  EXPECT_EQ(say([&] {
              c.number("none", {0.5, 1}, 2);
            }),
            "config.json: none is missing and would be 2; it must be a number from 0.5 to 1");
  constexpr std::array<Named<int>, 2> kActs{{{1, "silu"}, {2, "relu2"}}};
  EXPECT_EQ(say([&] { c.choice("act", kActs); }), "config.json: act is \"swish\"; accepted: silu, relu2");
  expect_error(ErrorCode::unsupported, {"act"}, [&] { c.choice("act", kActs); });
}

}  // namespace
}  // namespace sluice::io
