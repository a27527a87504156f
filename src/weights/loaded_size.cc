// SPDX-License-Identifier: Apache-2.0
#include "weights/loaded_size.h"

#include "base/math.h"
#include "format/formats.h"
#include "weights/tied_head.h"

namespace sluice::weights {

namespace {
constexpr std::string_view kWeight = ".weight";

// The module that a BF16 tensor is the weight of. Fused experts are tensors under "experts" without ".weight".
std::string_view module_of(std::string_view tensor) {
  if (tensor.ends_with(kWeight)) return tensor.substr(0, tensor.size() - kWeight.size());
  return kind_of(tensor) == ModuleKind::experts ? tensor : std::string_view();
}

double bytes_of_matrix(const Shape& shape, const format::FormatInfo& format) {
  double elements = 1, scales = 1;
  for (size_t i = 0; i < shape.size(); ++i) {
    const bool row = i + 2 == shape.size(), col = i + 1 == shape.size();
    const int group = row ? format.group_n : col ? format.group_k : 1;  // 0: one scale for all
    elements *= static_cast<double>(shape[i]);
    scales *= group == 0 ? 1 : static_cast<double>(ceil_div<int64_t>(shape[i], group));
  }
  const double scale_bytes = format.scale == format::ScaleType::none  ? 0
                             : format.scale == format::ScaleType::f32 ? 4
                                                                      : 1;
  return elements * format.bits / 8 + scales * scale_bytes;
}
}  // namespace

int64_t loaded_bytes(const io::Checkpoint& checkpoint, const OnlinePolicy* online) {
  if (online == nullptr) return checkpoint.bytes();
  double bytes = 0;
  for (const std::string& name : checkpoint.names()) {
    const io::SafetensorsEntry& entry = *checkpoint.find(name);
    const std::string_view module = module_of(name);
    const format::Format format = module.empty() ? format::Format::bf16 : online->of(module).weights;
    bytes += format == format::Format::bf16 || entry.shape.size() < 2
                 ? static_cast<double>(entry.end - entry.begin)
                 : bytes_of_matrix(entry.shape, format::info(format));
  }
  const format::Format head = online->head.weights;
  if (const auto tied = head == format::Format::bf16 ? std::nullopt : tied_embedding(checkpoint))
    bytes += bytes_of_matrix(checkpoint.find(*tied + ".weight")->shape, format::info(head));
  return static_cast<int64_t>(bytes);
}

}  // namespace sluice::weights
