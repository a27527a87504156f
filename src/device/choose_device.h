// SPDX-License-Identifier: Apache-2.0
// From the words of an option to a device.
#pragma once

#include <string>
#include <string_view>

#include "device/device.h"

namespace sluice {

struct DeviceChoice {
  DeviceId id;
  std::string reason;  // why, if the choice was left to us
};

// "cpu", "cuda" (GPU 0), "cuda:N", or "auto": the first GPU that the kernels of this build run on, else the CPU. Throws
// invalid_argument naming the text and what is accepted; whether a named GPU can be used, make_cuda_device() says.
DeviceChoice choose_device(std::string_view text);

}  // namespace sluice
