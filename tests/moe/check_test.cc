// SPDX-License-Identifier: Apache-2.0
// What is refused before a device is touched, and in which words.
#include "moe/check.h"

#include <gtest/gtest.h>

namespace sluice::moe {
namespace {

TEST(CheckWorkspace, SizeAndAlignment) {
  alignas(256) static char memory[512];
  const auto refusal = [](const void* at, int64_t size, int64_t needed) -> std::string {
    try {
      check_workspace(at, size, 9, needed, 256);
    } catch (const Error& e) {
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(memory, 512, 512), "");
  EXPECT_EQ(refusal(nullptr, 0, 0), "");
  EXPECT_EQ(refusal(nullptr, 512, 1), "workspace is null; a call of 9 tokens needs 1 bytes");
  EXPECT_EQ(refusal(memory, 511, 512), "workspace_size is 511; a call of 9 tokens needs 512 bytes");
  EXPECT_EQ(refusal(memory + 64, 256, 256), "workspace is not aligned to 256 bytes");
}

}  // namespace
}  // namespace sluice::moe
