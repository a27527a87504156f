// SPDX-License-Identifier: Apache-2.0
// The host as a device: aligned memory, and a queue whose work is done when the call returns.
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <limits>
#include <string>

#include "base/error.h"
#include "base/math.h"
#include "device/device.h"

namespace sluice {

namespace {
constexpr size_t kHugePage = size_t{2} << 20;

// The number after a word in a file of the kernel's; INT64_MAX where there is none ("max", no such file).
int64_t number_in(const char* path, std::string_view word) {
  std::ifstream in(path);
  std::string token;
  if (!word.empty())
    while (in >> token && token != word) {
    }
  int64_t value = 0;
  return in >> value ? value : std::numeric_limits<int64_t>::max();
}

class DoneEvent : public Event {
 public:
  void wait() override {}
};

class CpuQueue : public Queue {
 public:
  Device& device() const override { return host_device(); }
  void* stream() const override { return nullptr; }
  void copy(void* to, const void* from, int64_t bytes) override {
    if (bytes > 0) std::memcpy(to, from, static_cast<size_t>(bytes));
  }
  void zero(void* memory, int64_t bytes) override {
    if (bytes > 0) std::memset(memory, 0, static_cast<size_t>(bytes));
  }
  void wait() override {}
  std::unique_ptr<Event> record() override { return std::make_unique<DoneEvent>(); }
  void wait_for(const Event&) override {}
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }
};

class CpuDevice : public Device {
 public:
  DeviceId id() const override { return {}; }
  // A container's limit (cgroup v2) counts where it is the smaller one.
  DeviceMemory memory() override {
    const auto bytes_of = [](const char* word) {
      const int64_t kib = number_in("/proc/meminfo", word);
      return kib > std::numeric_limits<int64_t>::max() / 1024 ? std::numeric_limits<int64_t>::max() : kib * 1024;
    };
    const int64_t limit = number_in("/sys/fs/cgroup/memory.max", "");
    const int64_t used =
        limit == std::numeric_limits<int64_t>::max() ? 0 : number_in("/sys/fs/cgroup/memory.current", "");
    return {std::min(bytes_of("MemTotal:"), limit),
            std::min(bytes_of("MemAvailable:"), std::max<int64_t>(limit - used, 0))};
  }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    // Large blocks start on a huge page and ask for them: first touch of 4 KiB pages runs at 0.4 GB/s.
    const size_t alignment = bytes >= static_cast<int64_t>(kHugePage) ? kHugePage : kAlignment;
    const size_t size = round_up<size_t>(static_cast<size_t>(std::max<int64_t>(bytes, 1)), alignment);
    void* p = std::aligned_alloc(alignment, size);
    if (p == nullptr) fail(ErrorCode::out_of_memory, "could not allocate {} bytes", bytes);
    if (alignment == kHugePage) madvise(p, size, MADV_HUGEPAGE);
    return {p, std::free};
  }
  std::shared_ptr<void> allocate_staging(int64_t bytes) override { return allocate(bytes); }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CpuQueue>(); }
};
}  // namespace

Device& host_device() {
  static CpuDevice device;
  return device;
}

Queue& host_queue() {
  static CpuQueue queue;
  return queue;
}

std::string to_string(DeviceId id) { return id.is_host() ? "cpu" : fmt::format("cuda:{}", id.index); }

}  // namespace sluice
