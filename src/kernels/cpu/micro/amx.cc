// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/micro/micro.h"

namespace sluice::kernels::cpu {
const Micro kAmx = {};
}  // namespace sluice::kernels::cpu
