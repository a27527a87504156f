// SPDX-License-Identifier: Apache-2.0
#include "model/memory_fit.h"

#include <optional>

#include "weights/loaded_size.h"

namespace sluice::model {

void check_fits(const io::Checkpoint& checkpoint, const LoadOptions& options, DeviceId device, DeviceMemory memory) {
  std::optional<weights::OnlinePolicy> online;
  if (!options.quantization.empty())
    online = weights::parse_online_policy(options.quantization, options.quantization_rest);
  const int64_t need = weights::loaded_bytes(checkpoint, online ? &*online : nullptr);
  const int64_t room = device.is_host() ? memory.total : memory.free;
  if (need <= room) return;

  const auto gb = [](int64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9); };
  std::string smaller;
  if (!weights::QuantScheme::detect(checkpoint).quantized())
    for (const std::string_view name : weights::online_formats()) {
      const weights::OnlinePolicy policy = weights::parse_online_policy(name);
      const int64_t bytes = weights::loaded_bytes(checkpoint, &policy);
      if (bytes <= room) smaller += fmt::format("{}{} ({})", smaller.empty() ? "" : ", ", name, gb(bytes));
    }
  fail(ErrorCode::out_of_memory, "{}: the weights take {}, and {} has {}{}; {}", checkpoint.folder().string(), gb(need),
       to_string(device), gb(room), device.is_host() ? "" : fmt::format(" of {} free", gb(memory.total)),
       smaller.empty() ? "no --quantization makes them fit" : "accepted: --quantization " + smaller);
}

}  // namespace sluice::model
