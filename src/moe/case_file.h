// SPDX-License-Identifier: Apache-2.0
// One fused-MoE call as a safetensors file: for bug reports, other implementations' vectors and replaying a conformance
// case. docs/reference.md lists every tensor.
#pragma once

#include <filesystem>
#include <string_view>

#include "io/safetensors.h"
#include "moe/backend.h"

namespace sluice::moe {

struct CaseFile {
  MoeSpec spec;  // bias, act_params, routed and tokens follow from the tensors
  int64_t tokens = 0;
  weights::ExpertWeights weights;  // views of the file, copies where gate and up had to be parted
  Tensor hidden, logits, bias, ids, given_weights;

  MoeArgs args() const;  // all but output, workspace and copies
};

// Metadata `spec` (a spec line) and, for gated experts, `w13_order`: gate_up, up_gate or interleaved. Throws bad_file,
// in one sentence, for a missing, misshapen, mistyped, superfluous or contradicting tensor and for scales that are not
// numbers.
CaseFile read_case(const io::SafetensorsFile& file);

// Runs the case on a backend of select() and writes `output`, with `trace` also expert_ids, expert_weights and the
// rounding points trace.input, trace.up, trace.gate, trace.activated, trace.down. Returns the backend's name.
std::string_view run_case(Context& ctx, const CaseFile& c, std::string_view backend, bool trace,
                          const std::filesystem::path& out);

}  // namespace sluice::moe
