// SPDX-License-Identifier: Apache-2.0
// The conversions live in base, because routing needs them too; here they stand beside the other formats.
#pragma once

#include "base/bf16.h"

namespace sluice::format {

using sluice::bf16_t;
using sluice::bf16_to_float;
using sluice::float_to_bf16;
using sluice::round_to_bf16;

}  // namespace sluice::format
