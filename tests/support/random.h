// SPDX-License-Identifier: Apache-2.0
// Random data with a seed that can be given back: a new one per run, or SLUICE_TEST_SEED. It is printed once per
// program, before anything can crash, and again under every test that fails.
#pragma once

#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <random>
#include <stdexcept>
#include <string>

namespace sluice::test {

namespace detail {
inline bool used = false;        // by the test that runs
inline uint32_t generators = 0;  // that it has asked for
}  // namespace detail

// The same for all of the program. Throws when SLUICE_TEST_SEED is not an integer in [0, 2^32).
inline uint32_t seed() {
  static const uint32_t value = [] {
    uint32_t s = std::random_device{}();
    // Not base/env.h: tests of the shared library have no other function of Sluice's than its own.
    if (const char* given = std::getenv("SLUICE_TEST_SEED"); given != nullptr && *given != '\0') {
      const std::string text = given;
      const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), s);
      if (error != std::errc() || end != text.data() + text.size())
        throw std::invalid_argument("SLUICE_TEST_SEED is \"" + text + "\"; it must be an integer from 0 to 4294967295");
    }
    std::printf("SLUICE_TEST_SEED=%u\n", s);
    std::fflush(stdout);
    return s;
  }();
  detail::used = true;
  return value;
}

namespace detail {
class Listener : public testing::EmptyTestEventListener {
  void OnTestStart(const testing::TestInfo&) override { used = false, generators = 0; }
  void OnTestEnd(const testing::TestInfo& info) override {
    if (!used || !info.result()->Failed()) return;
    std::printf("%s.%s had the random data of SLUICE_TEST_SEED=%u\n", info.test_suite_name(), info.name(), seed());
  }
};
inline const bool listening = [] {
  testing::UnitTest::GetInstance()->listeners().Append(new Listener);
  return true;
}();
}  // namespace detail

// Numbers that depend on the seed and on how many generators this test has asked for before, not on other tests: one
// test alone (--gtest_filter) repeats what it did among all.
template <class Engine = std::mt19937>
Engine rng() {
  std::seed_seq both{seed(), detail::generators++};
  return Engine(both);
}

}  // namespace sluice::test
