// SPDX-License-Identifier: Apache-2.0
#include "model/memory_fit.h"

#include "weights/loaded_size.h"

namespace sluice::model {

namespace {
std::string gb(int64_t bytes) { return fmt::format("{:.1f} GB", static_cast<double>(bytes) / 1e9); }

// What is there, where the system makes room.
int64_t room_of(DeviceId device, DeviceMemory memory) { return device.reserves_memory() ? memory.free : memory.total; }

std::string room_text(DeviceId device, DeviceMemory memory) {
  return fmt::format("{} has {}{}", to_string(device), gb(room_of(device, memory)),
                     device.reserves_memory() ? fmt::format(" of {} free", gb(memory.total)) : "");
}
}  // namespace

int64_t weight_bytes(const io::Checkpoint& checkpoint, const LoadOptions& options) {
  if (options.quantization.empty()) return weights::loaded_bytes(checkpoint, nullptr);
  const weights::OnlinePolicy online =
      weights::parse_online_policy(options.quantization, options.quantization_rest, options.quantization_head);
  return weights::loaded_bytes(checkpoint, &online);
}

void check_fits(const io::Checkpoint& checkpoint, const LoadOptions& options, DeviceId device, DeviceMemory memory) {
  const int64_t need = weight_bytes(checkpoint, options);
  const int64_t room = room_of(device, memory);
  if (need <= room) return;

  std::string smaller;
  if (!weights::QuantScheme::detect(checkpoint).quantized())
    for (const std::string_view name : weights::online_formats()) {
      const weights::OnlinePolicy policy = weights::parse_online_policy(name);
      const int64_t bytes = weights::loaded_bytes(checkpoint, &policy);
      if (bytes <= room) smaller += fmt::format("{}{} ({})", smaller.empty() ? "" : ", ", name, gb(bytes));
    }
  fail(ErrorCode::out_of_memory, "{}: the weights take {}, and {}; {}", checkpoint.folder().string(), gb(need),
       room_text(device, memory),
       smaller.empty() ? "no quantization makes them fit" : "accepted: quantization " + smaller);
}

void check_cache_fits(int64_t weights, const CacheShape& shape, const CacheConfig& cache, DeviceId device,
                      DeviceMemory memory) {
  const int64_t block = shape.bytes_per_token() * cache.block_size;
  const int64_t states = shape.bytes_per_slot(cache.versions()) * cache.slots;
  const int64_t room = room_of(device, memory) - weights - states;
  if (cache.blocks * block <= room) return;
  const std::string need =
      fmt::format("the cache takes {} for {} tokens{}{}, and {}", gb(cache.blocks * block + states),
                  cache.blocks * cache.block_size, states > 0 ? fmt::format(" and {} states", cache.slots) : "",
                  weights > 0 ? fmt::format(" beside {} of weights", gb(weights)) : "", room_text(device, memory));
  if (room < block)
    fail(ErrorCode::out_of_memory, "{}; that leaves no room for keys and values{}", need,
         states > 0 ? "; fewer answers at once need fewer states" : "");
  fail(ErrorCode::out_of_memory, "{}; accepted: a cache of at most {} tokens", need, room / block * cache.block_size);
}

}  // namespace sluice::model
