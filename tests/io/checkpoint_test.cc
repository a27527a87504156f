// SPDX-License-Identifier: Apache-2.0
// Model folders: sound ones, every way of breaking one (M12 of docs/robustness.md), and the trained ones.
#include "io/checkpoint.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

#include "io/safetensors_index.h"
#include "io/safetensors_writer.h"
#include "tests/io/expect_error.h"
#include "tests/io/temp_dir.h"

namespace sluice::io {
namespace {

constexpr const char* kShard1 = "model-00001-of-00002.safetensors";
constexpr const char* kShard2 = "model-00002-of-00002.safetensors";

Tensor ramp(int64_t n, float start) {
  Tensor t(DType::f32, {n});
  for (int64_t i = 0; i < n; ++i) t.as<float>()[i] = start + static_cast<float>(i);
  return t;
}

std::string index_of(const std::string& weight_map) {
  return R"({"metadata":{"total_size":40},"weight_map":)" + weight_map + "}";
}

// Tensors a, b in the first shard, c in the second.
void put_sharded(const TempDir& dir) {
  dir.put("config.json", R"({"model_type":"m"})");
  SafetensorsWriter(dir / kShard1).write_all({{"a", ramp(3, 0)}, {"b", ramp(2, 10)}});
  SafetensorsWriter(dir / kShard2).write_all({{"c", ramp(5, 20)}});
  dir.put("model.safetensors.index.json",
          index_of(std::string(R"({"a":")") + kShard1 + R"(","b":")" + kShard1 + R"(","c":")" + kShard2 + R"("})"));
}

TEST(Checkpoint, UpdatedTensorsTakeThePlacesOfTheFiles) {
  TempDir dir;
  put_sharded(dir);
  const Checkpoint files = Checkpoint::open(dir.path());
  const Checkpoint one = files.updated({{"b", ramp(2, 100)}});
  const Checkpoint two = one.updated({{"a", ramp(3, 200)}, {"b", ramp(2, 300)}});
  EXPECT_EQ(files.tensor("b").as<float>()[0], 10);
  EXPECT_EQ(one.tensor("b").as<float>()[0], 100);
  EXPECT_EQ(one.tensor("a").as<float>()[0], 0);
  EXPECT_EQ(two.tensor("b").as<float>()[1], 301);
  EXPECT_EQ(two.tensor("a").as<float>()[0], 200);
  EXPECT_EQ(two.tensor("c").as<float>()[0], 20);
  EXPECT_EQ(two.names(), files.names());
  EXPECT_EQ(two.bytes(), files.bytes());
  EXPECT_EQ(two.updated_names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(two.without_updates().tensor("a").as<float>()[0], 0);
  EXPECT_TRUE(two.without_updates().updated_names().empty());
  expect_error(ErrorCode::invalid_argument, {"\"x\""}, [&] { files.updated({{"x", ramp(2, 0)}}); });
  expect_error(ErrorCode::invalid_argument, {"\"b\"", "[3]", "[2]"}, [&] { files.updated({{"b", ramp(3, 0)}}); });
  expect_error(ErrorCode::invalid_argument, {"\"b\"", "twice"}, [&] {
    files.updated({{"b", ramp(2, 0)}, {"b", ramp(2, 0)}});
  });
  expect_error(ErrorCode::invalid_argument, {"\"b\"", "float64", "float32"}, [&] {
    files.updated({{"b", Tensor(DType::f64, {2}).zero()}});
  });
}

TEST(Checkpoint, ExtendedTensorsComeBesideTheFilesOrWithoutAny) {
  TempDir dir;
  put_sharded(dir);
  const Checkpoint files = Checkpoint::open(dir.path());
  const Checkpoint more = files.extended({{"x", ramp(4, 100)}, {"b", Tensor(DType::u8, {7}).zero()}});
  EXPECT_EQ(more.names(), (std::vector<std::string>{"a", "b", "c", "x"}));
  EXPECT_EQ(more.bytes(), (3 + 5 + 4) * 4 + 7);
  EXPECT_EQ(more.find("b")->dtype->dtype, DType::u8);
  EXPECT_EQ(more.find("b")->shape, Shape{7});
  EXPECT_EQ(more.tensor("x").as<float>()[3], 103);
  EXPECT_EQ(more.updated_names(), (std::vector<std::string>{"b", "x"}));
  EXPECT_EQ(more.without_updates().bytes(), files.bytes());
  const Checkpoint configs = Checkpoint::open_configs(dir.path());
  const Checkpoint one = configs.extended({{"y", ramp(2, 5)}}),
                   two = one.extended({{"z", ramp(1, 9)}, {"y", ramp(3, 7)}});
  EXPECT_EQ(one.tensor("y").as<float>()[0], 5);
  EXPECT_EQ(one.bytes(), 8);
  EXPECT_EQ(two.names(), (std::vector<std::string>{"y", "z"}));
  EXPECT_EQ(two.tensor("y").as<float>()[2], 9);
  EXPECT_EQ(two.bytes(), 16);
  EXPECT_EQ(two.without_updates().bytes(), 0);
  expect_error(ErrorCode::invalid_argument, {"\"y\"", "twice"}, [&] {
    configs.extended({{"y", ramp(2, 0)}, {"y", ramp(2, 0)}});
  });
}

TEST(Checkpoint, KnowsThatItsFilesWereWrittenTo) {
  TempDir dir;
  put_sharded(dir);
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_NO_THROW(c.check_unchanged());
  // A new file under the old name leaves the mapped one as it was.
  SafetensorsWriter(dir / "other").write_all({{"c", ramp(5, 30)}});
  std::filesystem::rename(dir / "other", dir / kShard2);
  EXPECT_NO_THROW(c.check_unchanged());
  EXPECT_EQ(c.tensor("c").as<float>()[0], 20);
  std::filesystem::last_write_time(dir / kShard1,
                                   std::filesystem::file_time_type::clock::now() + std::chrono::hours(1));
  expect_error(ErrorCode::bad_file, {kShard1, "written to"}, [&] { c.check_unchanged(); });
}

TEST(Checkpoint, Sharded) {
  TempDir dir;
  put_sharded(dir);
  dir.put("hf_quant_config.json", R"({"quantization":{"quant_algo":"NVFP4"}})");
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_EQ(c.names(), (std::vector<std::string>{"a", "b", "c"}));
  EXPECT_EQ(c.tensor("c").as<float>()[4], 24);
  EXPECT_EQ(c.find("b")->shape, Shape{2});
  EXPECT_EQ(c.find("x"), nullptr);
  EXPECT_EQ(c.bytes(), 40);
  EXPECT_EQ(c.source_of("c"), (dir / kShard2).string() + ": tensor \"c\"");
  EXPECT_EQ(c.source_of("x"), dir.path().string());
  EXPECT_EQ(c.config().string("model_type"), "m");
  EXPECT_FALSE(c.generation_config());
  EXPECT_EQ(c.quant_config()->object("quantization").string("quant_algo"), "NVFP4");
  expect_error(ErrorCode::not_found, {dir.path().string(), "\"x\""}, [&] { c.tensor("x"); });
}

TEST(Checkpoint, SingleFileAndLinksLikeTheHubCache) {
  TempDir dir, blobs;
  dir.put("config.json", "{}");
  SafetensorsWriter(blobs / "0123abc").write_all({{"a", ramp(3, 0)}});
  std::filesystem::create_symlink(blobs / "0123abc", dir / "model.safetensors");
  const Checkpoint c = Checkpoint::open(dir.path());
  EXPECT_EQ(c.tensor("a").as<float>()[2], 2);
}

TEST(Checkpoint, TensorsInMemory) {
  TempDir dir;
  dir.put("config.json", R"({"model_type":"m"})");
  const Checkpoint configs = Checkpoint::open_configs(dir.path());
  EXPECT_EQ(configs.config().string("model_type"), "m");
  EXPECT_EQ(configs.bytes(), 0);
  const Checkpoint c = configs.with_tensors({{"a", ramp(3, 0)}, {"b", ramp(2, 10)}});
  EXPECT_EQ(c.config().string("model_type"), "m");
  EXPECT_EQ(c.names(), (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(c.tensor("b").as<float>()[1], 11);
  EXPECT_EQ(c.find("b")->shape, Shape{2});
  EXPECT_EQ(c.find("b")->dtype->name, "F32");
  EXPECT_EQ(c.bytes(), 20);
  EXPECT_EQ(c.source_of("a"), dir.path().string() + ": tensor \"a\"");
  EXPECT_EQ(c.with_tensors({{"c", ramp(1, 0)}}).names(), (std::vector<std::string>{"c"}));
  EXPECT_FALSE(configs.contains("a"));
  expect_error(ErrorCode::not_found, {dir.path().string(), "\"x\""}, [&] { c.tensor("x"); });
  expect_error(ErrorCode::not_found, {"does not exist"}, [&] { Checkpoint::open_configs(dir / "nowhere"); });
  expect_error(ErrorCode::bad_file, {"is a file"}, [&] { Checkpoint::open_configs(dir / "config.json"); });
}

enum class FolderDefect {
  no_folder,
  folder_is_file,
  no_config,
  config_broken,
  config_loop,
  no_weights,
  only_bin,
  index_not_json,
  index_array,
  no_weight_map,
  weight_map_list,
  weight_map_string,
  weight_map_twice,
  weight_map_empty,
  shard_number,
  shard_null,
  shard_nested,
  shard_missing,
  shard_dangling,
  shard_parent,
  shard_absolute,
  shard_subfolder,
  shard_dot,
  shard_empty,
  shard_nul,
  shard_long,
  shard_loop,
  shard_folder,
  shard_truncated,
  tensor_in_two_shards,
  tensor_twice_in_index,
  tensor_not_in_shard,
  tensor_in_other_shard,
  tensor_not_in_index,
  index_deep,
  single_is_folder,
  generation_broken,
  quant_broken,
  count
};

struct FolderCase {
  ErrorCode code;
  std::vector<std::string> words;
};

FolderCase break_folder(const TempDir& dir, FolderDefect defect) {
  using D = FolderDefect;
  constexpr ErrorCode kBad = ErrorCode::bad_file, kNone = ErrorCode::not_found;
  put_sharded(dir);
  const auto path = [&](const char* name) { return (dir / name).string(); };
  const auto index = [&](const std::string& text) { return dir.put("model.safetensors.index.json", text).string(); };
  const auto place_c = [&](const std::string& where) {
    return index(index_of(std::string(R"({"a":")") + kShard1 + R"(","b":")" + kShard1 + R"(","c":)" + where + "}"));
  };
  const auto remove = [&](const char* name) { std::filesystem::remove(dir / name); };
  switch (defect) {
    case D::no_folder:
      std::filesystem::remove_all(dir.path());
      return {kNone, {dir.path().string(), "config.json"}};
    case D::folder_is_file:
      std::filesystem::remove_all(dir.path());
      std::ofstream(dir.path()) << "x";
      return {kBad, {dir.path().string(), "is a file"}};
    case D::no_config:
      remove("config.json");
      return {kNone, {path("config.json")}};
    case D::config_broken:
      dir.put("config.json", "{");
      return {kBad, {path("config.json"), "not JSON"}};
    case D::config_loop:
      remove("config.json");
      std::filesystem::create_symlink(dir / "config.json", dir / "config.json");
      return {kBad, {path("config.json"), "symbolic"}};
    case D::no_weights:
      remove("model.safetensors.index.json");
      return {kNone, {dir.path().string(), "model.safetensors"}};
    case D::only_bin:
      remove("model.safetensors.index.json");
      dir.put("pytorch_model.bin", "x");
      return {kNone, {"pytorch_model.bin", "only safetensors"}};
    case D::index_not_json:
      return {kBad, {index("{]"), "not JSON"}};
    case D::index_array:
      return {kBad, {index("[1]"), "array"}};
    case D::no_weight_map:
      return {kBad, {index(R"({"metadata":{"weight_map":{}}})"), "no weight_map"}};
    case D::weight_map_list:
      return {kBad, {index(index_of("[]")), "weight_map is an array"}};
    case D::weight_map_string:
      return {kBad, {index(index_of("\"x\"")), "weight_map is \"x\""}};
    case D::weight_map_twice:
      return {kBad, {index(R"({"weight_map":{},"weight_map":{}})"), "twice"}};
    case D::weight_map_empty:
      return {kBad, {index(index_of("{}")), "empty"}};
    case D::shard_number:
      return {kBad, {place_c("2"), "\"c\"", "2"}};
    case D::shard_null:
      return {kBad, {place_c("null"), "\"c\"", "null"}};
    case D::shard_nested:
      return {kBad, {place_c("{\"d\":\"x\"}"), "\"c\"", "object"}};
    case D::shard_missing:
      remove(kShard2);
      return {kNone, {path(kShard2), "index.json names it"}};
    case D::shard_dangling:
      remove(kShard2);
      std::filesystem::create_symlink(dir / "gone", dir / kShard2);
      return {kNone, {path(kShard2), "does not exist"}};
    case D::shard_parent:
      return {kBad, {place_c("\"../../etc/passwd\""), "\"c\"", "\"../../etc/passwd\""}};
    case D::shard_absolute:
      return {kBad, {place_c("\"/etc/passwd\""), "\"c\"", "\"/etc/passwd\""}};
    case D::shard_subfolder:
      return {kBad, {place_c("\"sub/x.safetensors\""), "same folder"}};
    case D::shard_dot:
      return {kBad, {place_c("\"..\""), "\"..\"", "same folder"}};
    case D::shard_empty:
      return {kBad, {place_c("\"\""), "\"\"", "same folder"}};
    case D::shard_nul:
      return {kBad, {place_c("\"x\\u0000y\""), "x\\x00y", "same folder"}};
    case D::shard_long:
      return {kBad, {place_c('"' + std::string(5000, 'x') + '"'), "xxx...", "same folder"}};
    case D::shard_loop:
      remove(kShard2);
      std::filesystem::create_symlink(dir / kShard2, dir / kShard2);
      return {kBad, {path(kShard2), "symbolic"}};
    case D::shard_folder:
      remove(kShard2);
      std::filesystem::create_directory(dir / kShard2);
      return {kBad, {path(kShard2), "directory"}};
    case D::shard_truncated:
      std::filesystem::resize_file(dir / kShard2, std::filesystem::file_size(dir / kShard2) - 4);
      return {kBad, {path(kShard2), "\"c\"", "cut short"}};
    case D::tensor_in_two_shards:
      SafetensorsWriter(dir / kShard2).write_all({{"c", ramp(5, 20)}, {"b", ramp(2, 0)}});
      return {kBad, {kShard1, kShard2, "both hold tensor \"b\""}};
    case D::tensor_twice_in_index:
      return {kBad,
              {index(index_of(std::string(R"({"a":")") + kShard1 + R"(","a":")" + kShard2 + R"("})")), "\"a\" twice"}};
    case D::tensor_not_in_shard: {
      const std::string file = index(index_of(std::string(R"({"a":")") + kShard1 + R"(","b":")" + kShard1 +
                                              R"(","c":")" + kShard2 + R"(","d":")" + kShard2 + R"("})"));
      return {kBad, {path(kShard2), "no tensor \"d\"", file}};
    }
    case D::tensor_in_other_shard:
      place_c(std::string("\"") + kShard1 + '"');
      return {kBad, {path(kShard1), "no tensor \"c\""}};
    case D::tensor_not_in_index: {
      const std::string file = index(index_of(std::string(R"({"a":")") + kShard1 + R"(","c":")" + kShard2 + R"("})"));
      return {kBad, {path(kShard1), "\"b\"", file, "does not list"}};
    }
    case D::index_deep:
      return {kBad, {index("{\"metadata\":" + std::string(100'000, '[')), "128"}};
    case D::single_is_folder:
      std::filesystem::create_directory(dir / "model.safetensors");
      return {kBad, {"model.safetensors", "directory"}};
    case D::generation_broken:
      dir.put("generation_config.json", "3");
      return {kBad, {path("generation_config.json"), "object"}};
    case D::quant_broken:
      dir.put("hf_quant_config.json", "");
      return {kBad, {path("hf_quant_config.json"), "empty"}};
    case D::count:
      break;
  }
  return {};
}

TEST(Checkpoint, EveryDefectIsNamed) {
  for (int i = 0; i < static_cast<int>(FolderDefect::count); ++i) {
    SCOPED_TRACE("FolderDefect " + std::to_string(i));
    TempDir dir;
    const FolderCase expected = break_folder(dir, static_cast<FolderDefect>(i));
    expect_error(expected.code, expected.words, [&] { Checkpoint::open(dir.path()); });
  }
}

TEST(Checkpoint, TrainedModelsOpen) {
  const char* root = std::getenv("SLUICE_TEST_MODELS");
  if (root == nullptr) GTEST_SKIP() << "SLUICE_TEST_MODELS names no folder with the trained checkpoints";
  for (const std::string name : {"tiny-qwen3-moe", "tiny-nemotron-h", "tiny-deepseek-v3"}) {
    SCOPED_TRACE(name);
    const Checkpoint c = Checkpoint::open(std::filesystem::path(root) / name);
    const int64_t vocab = c.config().integer("vocab_size", {.min = 1});
    const int64_t hidden = c.config().integer("hidden_size", {.min = 1});
    const std::string embeddings =
        name == "tiny-nemotron-h" ? "backbone.embeddings.weight" : "model.embed_tokens.weight";
    ASSERT_TRUE(c.contains(embeddings));
    EXPECT_EQ(c.tensor(embeddings).shape(), (Shape{vocab, hidden}));
    int64_t bytes = 0;
    for (const std::string& tensor : c.names()) bytes += c.tensor(tensor).bytes();
    EXPECT_EQ(bytes, c.bytes());
    EXPECT_GT(bytes, 15'000'000);
    const SafetensorsFile golden = SafetensorsFile::open(c.folder() / "golden.safetensors");
    EXPECT_EQ(golden.tensor("logits").dtype(), DType::f32);
  }
}

TEST(SafetensorsIndex, HundredThousandTensors) {
  std::string map = "{";
  for (int i = 0; i < 100'000; ++i)
    map += (i ? ",\"" : "\"") + std::string("layers.") + std::to_string(i) + "\":\"model-" + std::to_string(i % 163) +
           ".safetensors\"";
  const SafetensorsIndex index = parse_safetensors_index(index_of(map + "}"), "f");
  EXPECT_EQ(index.tensors.size(), 100'000u);
  EXPECT_EQ(index.shards.size(), 163u);
  EXPECT_EQ(index.shards[index.tensors[164].second], "model-1.safetensors");
}

}  // namespace
}  // namespace sluice::io
