// SPDX-License-Identifier: Apache-2.0
#include "weights/quant_scheme.h"

#include <algorithm>

#include "base/error.h"
#include "weights/scheme_reader.h"

namespace sluice::weights {

QuantScheme QuantScheme::detect(const io::Config& config, const std::optional<io::Config>& hf_quant_config) {
  return SchemeReader().read(config, hf_quant_config);
}

QuantScheme QuantScheme::detect(const io::Checkpoint& checkpoint) {
  return detect(checkpoint.config(), checkpoint.quant_config());
}

void QuantScheme::check_not_quantized(std::string_view quantization) const {
  check(!quantized(),
        "quantization is \"{}\", but {} says that the checkpoint is quantised already ({}); leave the option out",
        quantization, source_, method_);
}

ModuleFormat QuantScheme::of(std::string_view module) const {
  const auto matches = [&](const NamePattern& p) {
    try {
      return p.matches(module);
    } catch (const Error& e) {  // a regular expression that is too slow is not the caller's here
      if (e.code() != ErrorCode::invalid_argument) throw;
      throw Error(ErrorCode::bad_file, e.what());
    }
  };
  if (std::any_of(excluded_.begin(), excluded_.end(), matches)) return {};
  for (const Rule& rule : rules_)
    if (rule.targets.empty() || std::any_of(rule.targets.begin(), rule.targets.end(), matches)) return rule.format;
  if (layers_.empty()) return {};

  // The module itself, then what is below it (fused experts), then what it is a part of.
  const std::string name = normal_name(module);
  const auto by_name = [](const Layer& layer, const std::string& n) { return layer.module < n; };
  const auto at_or_after = [&](const std::string& n) {
    return std::lower_bound(layers_.begin(), layers_.end(), n, by_name);
  };
  if (const auto it = at_or_after(name); it != layers_.end() && it->module == name) return it->format;
  if (const auto it = at_or_after(name + "."); it != layers_.end() && it->module.starts_with(name + "."))
    return it->format;
  for (size_t dot = name.rfind('.'); dot != std::string::npos && dot > 0; dot = name.rfind('.', dot - 1)) {
    const std::string parent = name.substr(0, dot);
    if (const auto it = at_or_after(parent); it != layers_.end() && it->module == parent) return it->format;
  }
  return {};
}

}  // namespace sluice::weights
