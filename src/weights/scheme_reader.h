// SPDX-License-Identifier: Apache-2.0
// Reads the quantisation configs of all tools into a QuantScheme (quant_scheme.h).
#pragma once

#include "weights/quant_scheme.h"

namespace sluice::weights {

class SchemeReader {
 public:
  QuantScheme read(const io::Config& config, const std::optional<io::Config>& hf_quant_config);

 private:
  void read_config(const io::Config& quant);                   // config.json's object, dispatching on quant_method
  void read_modelopt(const io::Config& quant);                 // nested or flat: quant_algo, exclude_modules | ignore
  void read_mixed(const io::Config& quant);                    // quant_algo MIXED_PRECISION: quantized_layers
  void read_fp8(const io::Config& quant);                      // quant_method fp8
  void read_mx(const io::Config& quant, ModuleFormat format);  // quant_method mxfp8, mxfp4
  void read_compressed_tensors(const io::Config& quant);
  ModuleFormat read_group(const io::Config& group);
  void exclude(const io::Config& quant, const io::ConfigKeys& keys);

  QuantScheme scheme_;
};

}  // namespace sluice::weights
