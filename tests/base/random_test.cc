// SPDX-License-Identifier: Apache-2.0
// The tests' own random data: a test alone draws what it draws among others.
#include "tests/support/random.h"

#include <utility>

namespace sluice::test {
namespace {

class Random : public testing::TestWithParam<int> {};

TEST_P(Random, EveryTestBeginsWithTheSameNumbers) {
  const auto draw = [] {
    const uint32_t first = rng()();
    return std::pair(first, rng()());
  };
  static const auto before = draw();
  if (GetParam() == 0) {
    EXPECT_NE(before.first, before.second) << "two generators of one test";
    rng();
  } else {
    EXPECT_EQ(draw(), before);
  }
}
INSTANTIATE_TEST_SUITE_P(Twice, Random, testing::Values(0, 1, 2));

}  // namespace
}  // namespace sluice::test
