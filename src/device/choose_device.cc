// SPDX-License-Identifier: Apache-2.0
#include "device/choose_device.h"

#include <charconv>

#include "base/error.h"
#include "device/cuda.h"

namespace sluice {

namespace {
DeviceChoice choose() {
  std::string reasons;
  for (int i = 0; i < cuda_device_count(); ++i) {
    const Support usable = cuda_device_supported(i);
    if (usable) return {{DeviceId::Kind::cuda, i}, "the first GPU that the kernels of this build run on"};
    reasons.append(reasons.empty() ? "" : "; ").append(usable.reason);
  }
  return {{}, reasons.empty() ? cuda_device_supported(0).reason : reasons};
}
}  // namespace

DeviceChoice choose_device(std::string_view text) {
  if (text == "auto") return choose();
  if (text == "cpu") return {};
  if (text == "cuda") return {{DeviceId::Kind::cuda, 0}, ""};
  constexpr std::string_view kPrefix = "cuda:";
  int index = -1;
  if (text.substr(0, kPrefix.size()) == kPrefix) {
    const std::string_view number = text.substr(kPrefix.size());
    const auto [end, error] = std::from_chars(number.data(), number.data() + number.size(), index);
    if (error != std::errc() || end != number.data() + number.size()) index = -1;
  }
  check(index >= 0, "the device is \"{}\"; accepted: auto, cpu, cuda, cuda:N", text);
  return {{DeviceId::Kind::cuda, index}, ""};
}

}  // namespace sluice
