// SPDX-License-Identifier: Apache-2.0
// What a norm writes.
#pragma once

#include <cstring>
#include <vector>

#include "base/bf16.h"
#include "kernels/sm90/norm/norm.h"

namespace sluice::test {

inline constexpr sm90::Round kNormRounds[] = {sm90::Round::plain, sm90::Round::fp8_static, sm90::Round::fp8_token,
                                              sm90::Round::fp8_group, sm90::Round::mxfp8};

// The scales of the groups of a row.
inline size_t scale_bytes(sm90::Round round, int cols) {
  const auto n = static_cast<size_t>(cols);
  if (round == sm90::Round::fp8_group) return (n + 127) / 128 * 4;
  return round == sm90::Round::mxfp8 ? (n + 31) / 32 : 0;
}

struct NormOutcome {
  std::vector<bf16_t> x, y;
  std::vector<uint8_t> codes, scales;
  std::vector<float> row_scales;
  // The same bits: what was not written is NaN.
  bool operator==(const NormOutcome& o) const {
    const auto same = [](const auto& a, const auto& b) {
      return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(a[0])) == 0;
    };
    return same(x, o.x) && same(y, o.y) && same(codes, o.codes) && same(scales, o.scales) &&
           same(row_scales, o.row_scales);
  }
};

}  // namespace sluice::test
