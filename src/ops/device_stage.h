// SPDX-License-Identifier: Apache-2.0
// Where loaders put the weights of a model that runs on a GPU.
#pragma once

#include <memory>

#include "device/context.h"
#include "weights/device_stage.h"

namespace sluice::ops {

// Works in the order of ctx.queue. Null where weights are prepared in host memory. `ctx` must outlive the result.
std::unique_ptr<weights::DeviceStage> make_device_stage(Context& ctx);

}  // namespace sluice::ops
