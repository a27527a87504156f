// SPDX-License-Identifier: Apache-2.0
// What the tests of loading share: a loader over a written checkpoint, and experts written one by one.
#pragma once

#include "live_context.h"
#include "weights/load.h"
#include "written_checkpoint.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;

inline const std::string kModule = "model.layers.1.self_attn.q_proj";
inline const std::string kExperts = "model.layers.3.mlp.experts";

struct LoadTest : testing::Test {
  Random random;
  Live live;
  Loader load(Written& written, LoaderOptions options = {}) { return {live.ctx, written.open(), std::move(options)}; }
};

inline void put_experts(Written& to, const ExpertWeights& w, bool fixed_inputs) {
  for (int64_t e = 0; e < w.up.experts; ++e) {
    const std::string module = kExperts + "." + std::to_string(e) + ".";
    put_matrix(to, module + "up_proj", w.up, e);
    if (!w.gate.codes.empty()) put_matrix(to, module + "gate_proj", w.gate, e);
    put_matrix(to, module + "down_proj", w.down, e);
    if (!fixed_inputs) continue;
    // The largest: 0.5 at gate of expert 1, 0.75 at down of the last.
    to.tensors[module + "up_proj.input_scale"] = scalar(0.125f);
    if (!w.gate.codes.empty()) to.tensors[module + "gate_proj.input_scale"] = scalar(e == 1 ? 0.5f : 0.25f);
    to.tensors[module + "down_proj.input_scale"] = scalar(e == w.up.experts - 1 ? 0.75f : 0.0625f);
  }
}

inline ExpertNames names_of(bool gated) {
  ExpertNames names;
  names.module = kExperts;
  if (!gated) names.gate.clear();
  return names;
}

}  // namespace sluice::weights
