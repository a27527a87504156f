// SPDX-License-Identifier: Apache-2.0
// "reference": the operation in plain loops on any machine, in every format, with all traces. Slow; the last resort,
// and the yardstick of bug reports. Independent of the fast kernels: it shares the quantisers and the policies only.
#pragma once

#include <memory>

#include "moe/backend.h"

namespace sluice::moe {

std::unique_ptr<Backend> make_reference_backend();

}  // namespace sluice::moe
