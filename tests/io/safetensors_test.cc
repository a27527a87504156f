// SPDX-License-Identifier: Apache-2.0
// Reading: every defect is an error that names its place, and sound files of every type come back as written.
#include "io/safetensors.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstring>
#include <ctime>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <thread>

#include "io/safetensors_writer.h"
#include "tests/io/expect_error.h"
#include "tests/io/safetensors_defects.h"
#include "tests/io/temp_dir.h"
#include "tests/support/random.h"

namespace sluice::io {
namespace {

TEST(Safetensors, EveryDefectIsNamed) {
  TempDir dir;
  for (const DefectiveFile& file : safetensors_defects()) {
    SCOPED_TRACE(file.name);
    const auto path = dir.put(file.name + ".safetensors", file.bytes);
    std::vector<std::string> words = file.words;
    words.push_back(path.string());
    expect_error(ErrorCode::bad_file, words, [&] { SafetensorsFile::open(path); });
  }
}

TEST(Safetensors, EveryTruncationIsRefused) {
  const std::string sound = sound_safetensors();
  EXPECT_NO_THROW(parse_safetensors_header(sound, "f"));
  for (size_t n = 0; n < sound.size(); ++n)
    expect_error(ErrorCode::bad_file, {"f"}, [&] { parse_safetensors_header(sound.substr(0, n), "f"); });
}

// Whatever is accepted must lie inside the file and keep every promise of the header.
TEST(Safetensors, EveryChangedByteIsRefusedOrSound) {
  const std::string sound = sound_safetensors();
  int accepted = 0;
  for (size_t at = 0; at < sound.size() - 28; ++at) {
    std::string file = sound;
    for (int value = 0; value < 256; ++value) {
      file[at] = static_cast<char>(value);
      try {
        const SafetensorsHeader header = parse_safetensors_header(file, "f");
        ++accepted;
        int64_t end = 0;
        for (const auto& e : header.entries) {
          EXPECT_EQ(e.begin, end);
          EXPECT_EQ(elements_of(e.shape) * e.dtype->bits, (e.end - e.begin) * 8);
          end = e.end;
        }
        EXPECT_EQ(header.data_offset + end, static_cast<int64_t>(file.size()));
      } catch (const Error& error) {
        EXPECT_EQ(error.code(), ErrorCode::bad_file);
      }
    }
  }
  EXPECT_GT(accepted, 100);  // other letters in names and metadata
}

TEST(Safetensors, ScalarsAndEmptyTensorsAreLegal) {
  TempDir dir;
  const auto path = dir.put("f", pack_safetensors(R"({"s":{"dtype":"F64","shape":[],"data_offsets":[0,8]},)"
                                                  R"("z":{"dtype":"F32","shape":[3,0],"data_offsets":[8,8]},)"
                                                  R"("y":{"dtype":"I64","shape":[0],"data_offsets":[0,0]}})",
                                                  8));
  const SafetensorsFile file = SafetensorsFile::open(path);
  EXPECT_EQ(file.tensor("s").rank(), 0);
  EXPECT_EQ(file.tensor("s").elements(), 1);
  EXPECT_EQ(file.tensor("z").shape(), (Shape{3, 0}));
  EXPECT_EQ(file.tensor("y").elements(), 0);
  EXPECT_FALSE(file.tensor("y").empty());
  const auto none = SafetensorsFile::open(dir.put("none", pack_safetensors("{}", 0)));
  EXPECT_TRUE(none.names().empty());
}

TEST(Safetensors, SixtyFourDimensionsAreLegal) {
  TempDir dir;
  std::string shape = "2";
  for (int i = 1; i < 64; ++i) shape += ",1";
  const std::string header = R"({"w":{"dtype":"F32","shape":[)" + shape + R"(],"data_offsets":[0,8]}})";
  const Tensor t = SafetensorsFile::open(dir.put("f", pack_safetensors(header, 8))).tensor("w");
  EXPECT_EQ(t.rank(), 64);
  EXPECT_EQ(t.elements(), 2);
}

// The sentence of an error must not be made for each of the sizes: that is quadratic, and the test would not end.
TEST(Shape, ElementsOfAMillionDimensions) {
  Shape shape(1'000'000, 1);
  shape.front() = 3;
  EXPECT_EQ(elements_of(shape), 3);
  shape.back() = -1;
  EXPECT_THROW(elements_of(shape), Error);
  expect_error(ErrorCode::invalid_argument, {"[4294967296, 4294967296]", "more than 2^63 elements"}, [] {
    elements_of({int64_t{1} << 32, int64_t{1} << 32});
  });
}

TEST(Safetensors, TypesWithoutDTypeAreListedNotRead) {
  TempDir dir;
  for (const char* dtype : {"F8_E5M2", "U16", "F4", "C64", "U64"}) {
    const int bits = find_file_dtype(dtype)->bits;
    const auto path =
        dir.put(dtype, pack_safetensors(R"({"w":{"dtype":")" + std::string(dtype) +
                                            R"(","shape":[8],"data_offsets":[0,)" + std::to_string(bits) + "]}}",
                                        static_cast<size_t>(bits)));
    const SafetensorsFile file = SafetensorsFile::open(path);
    ASSERT_TRUE(file.contains("w"));
    EXPECT_EQ(file.find("w")->dtype->name, dtype);
    expect_error(ErrorCode::unsupported, {path.string(), "\"w\"", dtype}, [&] { file.tensor("w"); });
  }
}

TEST(Safetensors, MisalignedTensorsAreCopied) {
  TempDir dir;
  // 3 bytes before the F32 and a header of odd length.
  const std::string header = R"({"u":{"dtype":"U8","shape":[3],"data_offsets":[0,3]},)"
                             R"("f":{"dtype":"F32","shape":[2],"data_offsets":[3,11]}})";
  std::string bytes = pack_safetensors(header, 11);
  const auto path = dir.put("f", bytes);
  const SafetensorsFile file = SafetensorsFile::open(path);
  const Tensor t = file.tensor("f");
  EXPECT_EQ(reinterpret_cast<uintptr_t>(t.data()) % 4, 0u);
  EXPECT_EQ(std::memcmp(t.data(), bytes.data() + bytes.size() - 8, 8), 0);
  EXPECT_EQ(file.tensor("u").data(), file.mapping()->data() + 8 + header.size());
}

TEST(Safetensors, ViewsOutliveTheFileObject) {
  TempDir dir;
  Tensor t = SafetensorsFile::open(dir.put("f", sound_safetensors())).tensor("b");
  const std::string bytes = sound_safetensors();
  EXPECT_EQ(std::memcmp(t.data(), bytes.data() + bytes.size() - 16, 16), 0);
  expect_error(ErrorCode::not_found, {"f", "\"c\""},
               [&] { SafetensorsFile::open(dir.put("f2", sound_safetensors())).tensor("c"); });
}

TEST(Safetensors, CutWhileInUse) {
  TempDir dir;
  const auto path = dir.put("f", sound_safetensors());
  const SafetensorsFile file = SafetensorsFile::open(path);
  ASSERT_EQ(truncate(path.c_str(), 20), 0);
  expect_error(ErrorCode::bad_file, {path.string(), "20 bytes"}, [&] { file.tensor("a"); });
}

// The header is refused by its length before anything of that size is allocated.
TEST(Safetensors, LyingLengthAllocatesNothing) {
  rusage before{}, after{};
  getrusage(RUSAGE_SELF, &before);
  const std::string lie = make_defect(SafetensorsDefect::length_past_end).bytes;
  for (int i = 0; i < 100; ++i) EXPECT_THROW(parse_safetensors_header(lie, "f"), Error);
  getrusage(RUSAGE_SELF, &after);
  EXPECT_LT(after.ru_maxrss - before.ru_maxrss, 20'000);  // KiB
}

TEST(Safetensors, ManyTensors) {
  std::string header = "{";
  constexpr int kCount = 200'000;
  for (int i = 0; i < kCount; ++i)
    header += (i ? ",\"" : "\"") + std::string("model.layers.1.mlp.experts.") + std::to_string(i) +
              R"(.weight":{"dtype":"U8","shape":[1],"data_offsets":[)" + std::to_string(i) + "," +
              std::to_string(i + 1) + "]}";
  const std::string file = pack_safetensors(header + "}", kCount);
  const std::clock_t begin = std::clock();  // of the processor: the machine may be busy
  EXPECT_EQ(parse_safetensors_header(file, "f").entries.size(), static_cast<size_t>(kCount));
  const double seconds = static_cast<double>(std::clock() - begin) / CLOCKS_PER_SEC;
  RecordProperty("seconds", std::to_string(seconds));
  EXPECT_LT(seconds, 10.0);  // 0.3 s here, ten times that under sanitizers; a quadratic search takes hours
}

struct RandomTensors {
  std::vector<std::pair<std::string, Tensor>> tensors;
  explicit RandomTensors(std::mt19937_64& rng) {
    std::set<std::string> taken;
    const int count = static_cast<int>(rng() % 12);
    while (static_cast<int>(tensors.size()) < count) {
      static const std::vector<std::string> kParts = {"a", "layer.",          "\"", "\\", "\xc3\xa9", "\n", "/",
                                                      "0", "\xf0\x9f\x99\x82"};
      std::string name;
      for (uint64_t i = 0, n = 1 + rng() % 6; i < n; ++i) name += kParts[rng() % kParts.size()];
      if (!taken.insert(name).second) continue;
      Shape shape;
      for (uint64_t i = 0, n = rng() % 5; i < n; ++i) shape.push_back(static_cast<int64_t>(rng() % 7));
      Tensor t(kDTypes[rng() % kDTypes.size()].value, shape);
      for (int64_t i = 0; i < t.bytes(); ++i)
        static_cast<unsigned char*>(t.data())[i] = static_cast<unsigned char>(rng());
      tensors.emplace_back(name, t);
    }
  }
};

TEST(SafetensorsWriter, RandomTensorsComeBack) {
  auto rng = test::rng<std::mt19937_64>();
  TempDir dir;
  for (int round = 0; round < 200; ++round) {
    SCOPED_TRACE("round " + std::to_string(round));
    RandomTensors random(rng);
    std::map<std::string, std::string> metadata;
    if (rng() % 2) metadata = {{"format", "pt"}, {"quote\"", "\n\xc3\xa9"}};
    SafetensorsWriter(dir / "f", metadata).write_all(random.tensors);

    const SafetensorsFile file = SafetensorsFile::open(dir / "f");
    EXPECT_EQ(file.metadata(), metadata);
    EXPECT_EQ(file.entries().size(), random.tensors.size());
    for (const auto& [name, tensor] : random.tensors) {
      const Tensor back = file.tensor(name);
      EXPECT_EQ(back.dtype(), tensor.dtype());
      EXPECT_EQ(back.shape(), tensor.shape());
      EXPECT_EQ(std::memcmp(back.data(), tensor.data(), static_cast<size_t>(tensor.bytes())), 0);
    }

    // The same tensors in another order give the same bytes.
    const std::string bytes = slurp(dir / "f");
    std::shuffle(random.tensors.begin(), random.tensors.end(), rng);
    SafetensorsWriter(dir / "g", metadata).write_all(random.tensors);
    EXPECT_EQ(slurp(dir / "g"), bytes);

    // Against a plain reading of the format.
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), 8);
    EXPECT_EQ(length % 8, 0u);
    const auto header = nlohmann::json::parse(bytes.substr(8, length));
    for (const auto& [name, tensor] : random.tensors) {
      const auto& info = header.at(name);
      EXPECT_EQ(info.at("shape").get<Shape>(), tensor.shape());
      const int64_t begin = info.at("data_offsets")[0], end = info.at("data_offsets")[1];
      EXPECT_EQ(begin % bytes_of(tensor.dtype()), 0);
      EXPECT_EQ(bytes.substr(8 + length + static_cast<size_t>(begin), static_cast<size_t>(end - begin)),
                std::string(static_cast<const char*>(tensor.data()), static_cast<size_t>(tensor.bytes())));
    }
  }
}

// A pipe takes no offset.
TEST(SafetensorsWriter, APipeGetsTheSameBytes) {
  auto rng = test::rng<std::mt19937_64>();
  TempDir dir;
  ASSERT_EQ(mkfifo((dir / "fifo").c_str(), 0600), 0);
  for (int round = 0; round < 50; ++round) {
    const RandomTensors random(rng);
    SafetensorsWriter(dir / "file").write_all(random.tensors);
    std::string got;
    std::thread reader([&] { got = slurp(dir / "fifo"); });
    SafetensorsWriter(dir / "fifo").write_all(random.tensors);
    reader.join();
    EXPECT_EQ(got, slurp(dir / "file")) << "round " << round;
  }
}

TEST(SafetensorsWriter, RefusesMisuse) {
  TempDir dir;
  const Tensor t = Tensor(DType::f32, {2}).zero();
  SafetensorsWriter writer(dir / "f");
  for (const std::string& name : {std::string(), std::string("a\0b", 3), std::string("__metadata__")})
    expect_error(ErrorCode::invalid_argument, {"not accepted"}, [&] { writer.add(name, DType::f32, {2}); });
  writer.add("a", DType::f32, {2});
  writer.add("b", DType::f32, {2});
  expect_error(ErrorCode::invalid_argument, {"\"a\"", "twice"}, [&] { writer.add("a", DType::f32, {2}); });
  expect_error(ErrorCode::invalid_argument, {"negative"}, [&] { writer.add("x", DType::f32, {-1}); });
  writer.start();
  expect_error(ErrorCode::invalid_argument, {"\"z\"", "not added"}, [&] { writer.write("z", t); });
  expect_error(ErrorCode::invalid_argument, {"\"a\"", "[3]", "[2]"},
               [&] { writer.write("a", Tensor(DType::f32, {3}).zero()); });
  writer.write("a", t);
  expect_error(ErrorCode::invalid_argument, {"\"a\"", "twice"}, [&] { writer.write("a", t); });
  expect_error(ErrorCode::invalid_argument, {"\"b\"", "never written"}, [&] { writer.finish(); });
  writer.write("b", t);
  EXPECT_TRUE(dir.list().empty());  // nothing is there before finish()
  writer.finish();
  EXPECT_EQ(dir.list(), std::vector<std::string>{"f"});
  SafetensorsWriter broken(dir / "g", {{"k", "\xff"}});
  expect_error(ErrorCode::invalid_argument, {"UTF-8"}, [&] { broken.start(); });
}

}  // namespace
}  // namespace sluice::io
