// SPDX-License-Identifier: Apache-2.0
// The fixture of tests that run at every instruction set that this machine has. row_ops_test.cc lists its levels.
#pragma once

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <string>

#include "kernels/cpu/isa.h"

namespace sluice::kernels::cpu {

class RowOps : public testing::TestWithParam<Isa> {
 protected:
  void SetUp() override {
    if (const Support s = supported(GetParam()); !s) GTEST_SKIP() << s.reason;
  }
};

inline bool same(float a, float b) {
  return std::isnan(a) ? std::isnan(b) : std::bit_cast<uint32_t>(a) == std::bit_cast<uint32_t>(b);
}

inline std::string name_of_isa(const testing::TestParamInfo<Isa>& p) { return std::string(name_of(kIsas, p.param)); }

}  // namespace sluice::kernels::cpu
