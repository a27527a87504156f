// SPDX-License-Identifier: Apache-2.0
// A checkpoint written in another number format: `sluice quantize`.
#pragma once

#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "device/context.h"
#include "io/checkpoint.h"
#include "weights/online.h"

namespace sluice::weights {

struct SaveOptions {
  OnlinePolicy formats;                    // that export_format.h can write
  bool modelopt = false;                   // in ModelOpt's convention where there are several
  std::vector<std::string> exclude;        // more that stay in BF16: NamePattern's globs and re:
  std::map<std::string, float> amax;       // largest inputs by module (ActivationObserver), for static inputs
  int64_t shard_bytes = int64_t{4} << 30;  // a file ends with the module that passes this size
};

// Of the names of formats that parse_online_policy() takes. calibrated: static inputs for fp8 (fp8_static); NVFP4's are
// always static but with weight_only. Throws invalid_argument: an unknown name, NVFP4 without calibration, or
// calibration where inputs have no static scale.
SaveOptions save_options(std::string_view name, std::string_view rest, std::string_view head, bool calibrated,
                         bool weight_only);

// Whether save_quantized() can write `folder`, said before the work. A symbolic link stands for the folder that it
// leads to. Throws invalid_argument unless it is absent or an empty folder that is neither the current one nor a mount
// point, not_found when the folder that it shall lie in does not exist, io when nothing can be created there.
void check_output_folder(const std::filesystem::path& folder);

// The same for what shall be done to every tensor. Throws invalid_argument for a pattern of `exclude` that is none or
// that matches no module or a part of a layer's experts, unsupported for tensors that cannot be rewritten. Calibration
// need not have run.
void check_plan(Context& ctx, const io::Checkpoint& in, const SaveOptions& options);

// Writes `folder`: config.json with the quantization_config that says what was done, hf_quant_config.json for
// ModelOpt's formats, safetensors files with an index, and the tokenizer's files. Quantised modules of the input are
// read through their scales; modules that have no calibration record, where inputs are static, stay in BF16 (an MTP
// layer that did not run). A head that is the embedding and is to be quantised becomes lm_head, a matrix of its own,
// and config.json says so: embeddings are never quantised. Loading the result gives the same bytes as quantising `in`
// while it is loaded. Nothing is left of an unfinished folder: it is written beside `folder` and renamed. Throws
// what check_output_folder() and check_plan() throw, and what Loader and the file system throw.
void save_quantized(Context& ctx, const io::Checkpoint& in, const std::filesystem::path& folder,
                    const SaveOptions& options);

}  // namespace sluice::weights
