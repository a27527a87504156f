// SPDX-License-Identifier: Apache-2.0
#include "activation/activations.h"

#include <cmath>

namespace sluice::activation {

void check_params(Activation a, const float* alpha, const float* beta, const float* limit, int64_t experts) {
  const bool any = alpha != nullptr || beta != nullptr || limit != nullptr;
  check(!any || takes_params(a),
        "alpha, beta or limit was given with activation {}, which ignores them; only swiglu takes them",
        name_of(kActivations, a));
  for (int64_t e = 0; e < experts; ++e) {
    check(alpha == nullptr || std::isfinite(alpha[e]), "alpha of expert {} is {}; it must be finite", e,
          alpha ? alpha[e] : 0);
    check(beta == nullptr || std::isfinite(beta[e]), "beta of expert {} is {}; it must be finite", e,
          beta ? beta[e] : 0);
    check(limit == nullptr || limit[e] > 0, "limit of expert {} is {}; it must be positive", e, limit ? limit[e] : 0);
  }
}

}  // namespace sluice::activation
