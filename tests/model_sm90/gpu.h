// SPDX-License-Identifier: Apache-2.0
// The GPU, and whole models on it.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <regex>

#include "device/cuda.h"
#include "kernels/sm90/device.h"
#include "model/models.h"
#include "tests/io/temp_dir.h"

#define SLUICE_SKIP_WITHOUT_DEVICE() \
  if (const std::string problem = sluice::sm90::device_problem(); !problem.empty()) GTEST_SKIP() << problem

namespace sluice::model {

// The GPU's machine may have the repository elsewhere: then the tests run in its root.
inline std::string in_repository(const std::string& path) {
  return std::filesystem::exists(path) ? path : std::string(SLUICE_SOURCE_DIR) + "/" + path;
}

struct Gpu {
  ThreadPool pool{2};
  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<Queue> queue = device->make_queue();
  Context ctx{.pool = pool, .queue = *queue};

  // What is allocated next holds NaN where nothing has been written.
  void poison(int64_t bytes) {
    const auto memory = device->allocate(bytes);
    const std::vector<std::byte> ones(static_cast<size_t>(bytes), std::byte{0xff});
    queue->copy(memory.get(), ones.data(), bytes);
    queue->wait();
  }
};

// A fixture's configuration with heads and widths that the tensor cores take.
inline std::string config_of(const std::string& family) {
  const std::string text = io::slurp(in_repository("tests/fixtures/" + family + "/config.json"));
  const auto with = [](const std::string& in, const char* name, int value) {
    return std::regex_replace(in, std::regex(std::string("\"") + name + "\": [0-9]+"),
                              std::string("\"") + name + "\": " + std::to_string(value));
  };
  std::string out = with(with(text, "hidden_size", 256), "max_position_embeddings", 8192);
  if (family == "qwen3-moe")
    out = with(with(with(out, "head_dim", 128), "num_attention_heads", 8), "moe_intermediate_size", 64);
  return out;
}

inline std::unique_ptr<Model> load(Context& ctx, const std::string& name, bool deterministic,
                                   const std::string& quantization = "") {
  LoadOptions o;
  o.dtype = DType::bf16;
  o.deterministic = deterministic;
  o.quantization = quantization;
  o.path = in_repository("models/" + name);
  if (name.starts_with("tiny-")) return load_model(ctx, o);
  const io::TempDir dir;
  dir.put("config.json", config_of(name));
  o.path = dir.path();
  o.dummy = true;
  return load_model(ctx, o);
}

}  // namespace sluice::model
