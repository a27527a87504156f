// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "activation/kind.h"
#include "activation/params.h"
#include "base/hd.h"

namespace sluice::activation {

struct Identity {
  static constexpr Activation kId = Activation::identity;
  static constexpr bool kGated = false;
  HD static float apply(float x, float /*gate*/, const Params& /*p*/) { return x; }
};

}  // namespace sluice::activation
