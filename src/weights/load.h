// SPDX-License-Identifier: Apache-2.0
// Loads linears and experts from a checkpoint, in the format that they are stored in, or quantised while loading.
// Every tensor is read once, in parallel, straight from the mapped files: packed from there (Codes::in_place), or
// copied to host memory or to a GPU's. Only the bytes of this rank's shard are read.
#pragma once

#include <map>
#include <optional>
#include <string>

#include "device/context.h"
#include "io/checkpoint.h"
#include "weights/device_stage.h"
#include "weights/expert_weights.h"
#include "weights/gate_up.h"
#include "weights/online.h"
#include "weights/scratch_tensors.h"
#include "weights/shard.h"

namespace sluice::weights {

struct StoredNames;

struct LoaderOptions {
  // Formats for modules that are stored in BF16. A checkpoint that is quantised already is refused.
  std::optional<OnlinePolicy> online;
  // Static NVFP4 inputs (calibrated scale) become nvfp4_token; the checkpoint's input scales are then ignored.
  bool nvfp4_per_token = false;
  // Largest |x| of inputs from a calibration run (ActivationObserver), for online formats with static inputs. Modules
  // that did not run then stay in BF16 (an MTP layer).
  std::map<std::string, float> amax;
  // The BF16 tensors are dummies (dummy.h): they are rounded to the module's format in the quantisation config, if
  // there is one, and static inputs without calibration get a scale for |x| <= kDummyAmax.
  bool dummy = false;
  Shard shard;  // of experts; linears are always whole
  // Of a model on a GPU: what weights can be put there. Lives longer than the loader.
  DeviceStage* stage = nullptr;
};

// What a caller gets of codes that are used as they are stored.
enum class Codes : uint8_t {
  copied,
  // Views of the mapped files, for a caller who packs them at once: a second copy in memory costs the time of a load
  // again (first touch of fresh pages), and a view must not be kept, because the file may be cut or written to after
  // the loading. Codes that are converted, or of which only some columns or every other row is wanted, are copied.
  in_place
};

struct LoadedLinear {
  QuantTensor w;  // experts = 1, [1, N, K]
  format::InputFormat inputs = format::InputFormat::plain;
  float input_scale = 1.0f;  // decode factor of fp8_static and nvfp4 inputs
};

// The tensor names of an architecture's experts; the defaults are Hugging Face's.
struct ExpertNames {
  std::string module;              // "model.layers.3.mlp.experts"
  std::string gate = "gate_proj";  // "" when there is no gate (NemotronH); MiniMax: w1
  std::string up = "up_proj";      // w3
  std::string down = "down_proj";  // w2
  // Of fused tensors (experts.gate_up_proj [E, 2I, H], experts.down_proj [E, H, I]): the order of the rows, and
  // whether BF16 tensors are stored transposed ([E, H, 2I], [E, I, H]: gpt-oss in BF16, Llama 4).
  GateUpOrder order = GateUpOrder::gate_up;
  bool transposed = false;
};

struct ExpertShape {
  int64_t experts = 0, inter = 0, hidden = 0;  // global, as config.json says
};

struct LoadedExperts {
  // This rank's part (shard.h's part_of() says which), I padded with zeros to whole groups of 16 or 32 where the format
  // has them (248 -> 256): MoeSpec::inter is weights.up.rows.
  ExpertWeights weights;
  ModuleFormat format;
};

class Loader {
 public:
  // Throws unsupported for an unknown quantisation method, invalid_argument for `online` on a quantised checkpoint.
  Loader(Context& context, io::Checkpoint checkpoint, LoaderOptions options = {});

  const io::Checkpoint& checkpoint() const { return checkpoint_; }
  const QuantScheme& scheme() const { return scheme_; }

  // [rows, cols] = [N, K]. Throws not_found, bad_file: see stored.h.
  LoadedLinear linear(std::string_view module, int64_t rows, int64_t cols, Codes codes = Codes::copied);
  // The same in the memory of options.stage: codes, and block scales that were made there.
  LoadedLinear staged_linear(std::string_view module, int64_t rows, int64_t cols);

  // The embedding [V, H] as output head: in BF16 the tensor itself, else a copy, where `embedding` lies.
  LoadedLinear tied_head(std::string_view module, const Tensor& embedding) const;

  // Per-expert tensors (experts.{e}.{gate,up,down}), fused ones, or gpt-oss's blocks, whichever the checkpoint has.
  // Gate and up keep their own scales: other stacks requantise both with the larger one. input_scale1 and
  // input_scale2 are the largest over ALL experts, so that every rank of an expert-parallel group rounds alike.
  // Biases of fused tensors ([E, 2I], [E, H]) are taken along; alpha, beta and limit are for the model to fill.
  LoadedExperts experts(const ExpertNames& names, const ExpertShape& shape, Codes codes = Codes::copied);
  // Experts in place as stacks, for backends that read these (moe::Backend::reads_apart).
  ExpertWeights stacked(ExpertWeights w);

  // The same in the memory of options.stage. Nothing where they must be cut, padded, transposed or taken out of
  // interleaved rows, or where the GPU has no room for a layer beside the prepared one: the host does that.
  std::optional<LoadedExperts> staged_experts(const ExpertNames& names, const ExpertShape& shape);

  // The same of dummy weights that are made in the memory of options.stage, with the same values.
  LoadedLinear dummy_linear(std::string_view module, int64_t rows, int64_t cols);
  std::optional<LoadedExperts> dummy_experts(const ExpertNames& names, const ExpertShape& shape);

  // A small float tensor (norms, biases, router weights) as float32.
  Tensor floats(std::string_view name, const Shape& shape) const;

  // A tensor as it is stored, copied by every thread. Throws as Checkpoint::tensor.
  Tensor copy(std::string_view name) const;

  // Everything is loaded: reports the bytes that were read elsewhere or not needed, so that the progress bar ends full.
  void end_progress();

 private:
  struct ExpertMatrix;
  ModuleFormat target(std::string_view module, const ModuleFormat& stored, const std::string& observed) const;
  float online_input_scale(format::InputFormat inputs, const std::string& observed) const;
  void warn_if_not_excluded(std::string_view module, const ModuleFormat& stored);
  void report(int64_t bytes);
  std::vector<ExpertMatrix> find_matrices(const ExpertNames& names, const ExpertShape& shape, ExpertWeights& w) const;
  ModuleFormat format_of_experts(const ExpertNames& names, const std::vector<ExpertMatrix>& matrices) const;
  float static_input_scale(const ModuleFormat& stored, const ModuleFormat& wanted,
                           const std::vector<StoredNames>& names, const std::string& observed) const;
  void read_input_scales(const ExpertNames& names, const std::vector<ExpertMatrix>& matrices,
                         const ModuleFormat& stored, const ModuleFormat& wanted, ExpertWeights& w) const;
  QuantTensor open_stack(const ExpertMatrix& matrix, const ModuleFormat& stored) const;
  bool stage_takes(const ExpertShape& shape, format::Format stored, format::Format wanted) const;
  void upload_experts(const std::vector<ExpertMatrix>& matrices, const ModuleFormat& stored, int64_t experts);
  void take_experts(const std::vector<ExpertMatrix>& matrices, const ModuleFormat& stored, const ModuleFormat& wanted,
                    Range experts, Range inter);
  QuantTensor stacked(QuantTensor w);
  MakeTensor make_scratch();
  void read_biases(const ExpertNames& names, const ExpertShape& shape, Range experts, Range inter,
                   ExpertWeights& w) const;

  Context& context_;
  io::Checkpoint checkpoint_;
  std::shared_ptr<const io::Checkpoint> file_;  // the same, for QuantTensor::file
  LoaderOptions options_;
  QuantScheme scheme_;
  ScratchTensors scratch_;  // stacks of experts
  int64_t done_ = 0;
  bool warned_ = false;
};

}  // namespace sluice::weights
