// SPDX-License-Identifier: Apache-2.0
// Where loaders put the weights of a model that runs on a GPU.
#pragma once

#include <memory>

#include "device/context.h"
#include "weights/device_stage.h"

namespace sluice::ops {

// On ctx.queue. Null where weights are prepared in host memory. `ctx` must live longer.
std::unique_ptr<weights::DeviceStage> make_device_stage(Context& ctx);

}  // namespace sluice::ops
