// SPDX-License-Identifier: Apache-2.0
// A checkpoint with everything that save_quantized() writes, and a folder to write to.
#pragma once

#include "live_context.h"
#include "weights/calibration.h"
#include "weights/load.h"
#include "weights/save.h"
#include "written_checkpoint.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;

struct SaveTest : testing::Test, Live {
  static inline const std::string kExperts = "model.layers.1.mlp.experts", kMtp = "model.layers.2.mlp.experts";
  static constexpr int64_t kCount = 3, kInter = 56, kHidden = 144;  // 56: a short last group of 16 and of 32
  static constexpr ExpertShape kShape{kCount, kInter, kHidden};
  Random random;
  io::TempDir out;
  std::filesystem::path folder = out.path() / "quantised";

  // A model with everything that a checkpoint has: attention, router, experts, head, norms, a float32 bias.
  void put_model(Written& w) {
    const auto matrix = [&](const std::string& module, int64_t rows, int64_t cols) {
      put_matrix(w, module, random_quant(random, Format::bf16, 1, rows, cols));
    };
    matrix("model.embed_tokens", 64, kHidden);
    matrix("lm_head", 64, kHidden);
    matrix("model.layers.2.shared_head.head", 64, kHidden);
    matrix("model.layers.0.self_attn.q_proj", 96, kHidden);
    matrix("model.layers.0.mlp.down_proj", kHidden, 200);
    matrix("model.layers.1.mlp.gate", kCount, kHidden);
    for (const std::string& experts : {kExperts, kMtp})
      for (int64_t e = 0; e < kCount; ++e)
        for (const char* projection : {"gate_proj", "up_proj", "down_proj"}) {
          const bool down = std::string(projection) == "down_proj";
          matrix(experts + "." + std::to_string(e) + "." + projection, down ? kHidden : kInter,
                 down ? kInter : kHidden);
        }
    w.tensors["model.norm.weight"] = random_bf16(random, {kHidden});
    w.tensors["model.layers.1.mlp.gate.e_score_correction_bias"] = random_floats(random, {kCount});
    w.config = R"({"architectures": ["Qwen3MoeForCausalLM"], "rope_theta": 10000.0, "eps": 1e-06, "bos": null,
                   "time_step_limit": [0.0, Infinity], "num_experts": 3, "text": "a \"b\" \\ \n"})";
    w.dir.put("tokenizer.json", "{\"model\": 1}");
    w.dir.put("golden.safetensors", "not a tokenizer file");
  }
  static ExpertNames named(const std::string& module) {
    ExpertNames names;
    names.module = module;
    return names;
  }
  std::map<std::string, float> amax() const {
    return {{expert_inputs(kExperts).gemm1, 3.5f},
            {expert_inputs(kExperts).gemm2, 11.0f},
            {"model.layers.0.self_attn.q_proj", 7.0f},
            {"model.layers.0.mlp.down_proj", 2.0f},
            {"lm_head", 5.0f}};
  }
};

}  // namespace sluice::weights
