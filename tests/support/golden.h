// SPDX-License-Identifier: Apache-2.0
// The folder of trained checkpoints with Hugging Face outputs, and a minimal reader of their golden.safetensors that
// does not depend on src/io.
#pragma once

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

namespace sluice::test {

// SLUICE_TEST_MODELS, or empty.
inline std::string test_models() {
  const char* folder = std::getenv("SLUICE_TEST_MODELS");
  return folder ? folder : "";
}

#define SLUICE_SKIP_WITHOUT_MODELS()         \
  if (::sluice::test::test_models().empty()) \
  GTEST_SKIP() << "SLUICE_TEST_MODELS is not set; it names the folder that holds tiny-qwen3-moe and others"

// A whole safetensors file in memory.
class GoldenFile {
 public:
  explicit GoldenFile(const std::string& path) {
    std::ifstream in(path, std::ios::binary);
    if (!in) throw std::runtime_error("cannot open " + path);
    uint64_t header_bytes = 0;
    in.read(reinterpret_cast<char*>(&header_bytes), 8);
    std::string text(header_bytes, '\0');
    in.read(text.data(), static_cast<std::streamsize>(header_bytes));
    header_ = nlohmann::json::parse(text);
    bytes_.assign(std::istreambuf_iterator<char>(in), {});
  }

  bool has(const std::string& name) const { return header_.contains(name); }
  std::vector<int64_t> shape(const std::string& name) const { return header_.at(name).at("shape"); }
  std::string dtype(const std::string& name) const { return header_.at(name).at("dtype"); }
  std::string metadata(const std::string& key) const { return header_.at("__metadata__").at(key); }

  // The elements as T, which must be as wide as the file's type.
  template <class T>
  std::vector<T> values(const std::string& name) const {
    const std::vector<size_t> at = header_.at(name).at("data_offsets");
    std::vector<T> out((at.at(1) - at.at(0)) / sizeof(T));
    std::memcpy(out.data(), bytes_.data() + at[0], out.size() * sizeof(T));
    return out;
  }

 private:
  nlohmann::json header_;
  std::vector<char> bytes_;
};

// The tensors of a checkpoint's one or more files.
class GoldenModel {
 public:
  explicit GoldenModel(const std::string& model) {
    const std::string folder = test_models() + "/" + model + "/";
    for (const char* name :
         {"model.safetensors", "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"})
      if (std::ifstream(folder + name)) files_.emplace_back(folder + name);
  }
  template <class T>
  std::vector<T> values(const std::string& name) const {
    for (const GoldenFile& file : files_)
      if (file.has(name)) return file.values<T>(name);
    throw std::runtime_error("no file of the checkpoint has " + name);
  }

 private:
  std::vector<GoldenFile> files_;
};

}  // namespace sluice::test
