// SPDX-License-Identifier: Apache-2.0
// Weights where they lie in a checkpoint's files: found under any of their published names, checked, and seen as a
// QuantTensor without copying the codes.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "io/checkpoint.h"
#include "weights/quant_scheme.h"
#include "weights/quant_tensor.h"

namespace sluice::weights {

// The tensors of one matrix, or of a stack of them. A name is empty where the checkpoint has no such tensor.
struct StoredNames {
  std::string weight, scale, global, input;
  bool reciprocal = false;  // global and input are encode factors (compressed-tensors' *_global_scale)
  bool blocks = false;      // gpt-oss: codes [.., K/32, 16]
};

// "model.layers.0.self_attn.q_proj" -> its .weight or .weight_packed, and the scales that go with it.
StoredNames linear_names(const io::Checkpoint& checkpoint, std::string_view module);
// "model.layers.3.mlp.experts" and "gate_up_proj" -> experts.gate_up_proj (or _blocks), and its scales.
StoredNames fused_names(const io::Checkpoint& checkpoint, std::string_view module, std::string_view projection);

// What the scheme says, corrected by what the tensor is: a module that is stored in a float type without scales is
// BF16 whatever a config forgot to exclude. Throws bad_file when codes have no scheme that explains them.
ModuleFormat stored_format(const io::Checkpoint& checkpoint, const QuantScheme& scheme, std::string_view module,
                           const StoredNames& names);

// The scales that codes in `names.weight` cannot be read without, each by the name that it has or else by a published
// one. Looks at names and types only.
std::vector<std::string> needed_scales(const io::Checkpoint& checkpoint, const QuantScheme& scheme,
                                       std::string_view module, const StoredNames& names, bool per_token);

struct StoredShape {
  int64_t experts = 1, rows = 0, cols = 0;
  bool stacked = false;  // the tensors have a leading dimension of experts
};

// Codes as a view of the file (copied only where float32 or float16 weights become BF16), scales as float32 or bytes.
// Throws not_found or bad_file, naming file, tensor, value and what is expected: a missing scale, a wrong element type
// or shape, a scale that is NaN, infinite or negative (UE8M0 255). Codes are not looked at: see check_codes().
// fp8_tensor stacks may have one scale per expert, or, with `half` 0 or 1, two (gate, up), of which it chooses one.
QuantTensor open_stored(const io::Checkpoint& checkpoint, const StoredNames& names, format::Format format,
                        const StoredShape& shape, int half = -1);

// The decode factor of static inputs (fp8_static, nvfp4): the largest of all input scales beside these weights, so that
// every rank that reads them all rounds alike. Throws bad_file when one is missing, or not positive and finite.
float read_static_input_scale(const io::Checkpoint& checkpoint, const std::vector<StoredNames>& names,
                              format::InputFormat inputs);

// Any float tensor as float32, checked for its shape. Throws not_found, bad_file.
Tensor read_floats(const io::Checkpoint& checkpoint, std::string_view name, const Shape& shape);

// Throws bad_file when an e4m3 code among the rows of matrix `expert` is NaN. `name` is for the sentence.
void check_codes(const io::Checkpoint& checkpoint, std::string_view name, const QuantTensor& w, int64_t expert);
// Throws bad_file when a BF16 value among them is infinite or NaN. For matrices that are quantised: the scale of such a
// value makes the others zero, which looks like a model.
void check_finite(const io::Checkpoint& checkpoint, std::string_view name, const QuantTensor& w, int64_t expert);

}  // namespace sluice::weights
