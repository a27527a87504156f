// SPDX-License-Identifier: Apache-2.0
// How a checkpoint becomes a model.
#pragma once

#include <filesystem>
#include <map>
#include <optional>
#include <string>

#include "tensor/dtype.h"

namespace sluice::model {

struct LoadOptions {
  std::filesystem::path path;         // the checkpoint's folder
  bool dummy = false;                 // random weights (weights/dummy.h) in place of the folder's; configs are read
  DType dtype = DType::bf16;          // D: bf16 or f32
  std::optional<DType> kv_dtype;      // of cached keys and values: D or e4m3; nothing: D
  std::string quantization;           // BF16 weights are quantised to this while loading; "": as stored
  std::string quantization_rest;      // the linears that are no routed experts; "": as weights/online.h says
  std::string quantization_head;      // the output head; "": BF16
  std::map<std::string, float> amax;  // of calibrated inputs (calibrate.h), for formats with static input scales
  bool nvfp4_per_token = false;       // activation scales per token; the checkpoint's input scales are ignored
  bool fp8_block_trtllm = false;      // FP8 block: GEMM1's result is rounded before the activation
  bool fp8_f32_sums = true;           // FP8 experts: sums in float32 also where tensor cores keep 14 bits
  bool deterministic = false;         // a token's result does not depend on the rest of its batch
  bool random_routing = false;        // benchmarks: experts are chosen at random, each as often as any other
  std::string moe_backend = "auto";   // "auto" or a backend's name
  std::string draft_moe_backend;      // of the multi-token-prediction layer; "": the same
};

}  // namespace sluice::model
