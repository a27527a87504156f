// SPDX-License-Identifier: Apache-2.0
#include "moe/select.h"

#include <gtest/gtest.h>

#include "moe/backends.h"

namespace sluice::moe {
namespace {

const MoeSpec kGood = parse_moe_spec("experts=8 top_k=2 hidden=64 inter=32");

TEST(Select, AutoTakesTheFirstThatSupports) {
  const Backend* first = nullptr;
  for (const auto& [backend, support] : ask_backends(kGood))
    if (support && first == nullptr) first = backend;
  ASSERT_NE(first, nullptr);
  EXPECT_EQ(&select(kGood), first);
  EXPECT_EQ(ask_backends(kGood).size(), backends().size());
}

TEST(Select, ANamedBackendRunsOrRefusesInItsOwnWords) {
  for (const auto& [backend, support] : ask_backends(kGood)) {
    if (support) {
      EXPECT_EQ(&select(kGood, backend->name()), backend);
      continue;
    }
    try {
      select(kGood, backend->name());
      ADD_FAILURE() << backend->name();
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::unsupported);
      EXPECT_NE(std::string(e.what()).find(support.reason), std::string::npos) << e.what();
    }
  }
}

TEST(Select, UnknownNamesAndBadSpecsAreRefused) {
  try {
    select(kGood, "tpu");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(std::string(e.what()), "the MoE backend is \"tpu\"; accepted: " + backend_names());
  }
  MoeSpec bad = kGood;
  bad.top_k = 9;
  EXPECT_THROW(select(bad), Error);
}

TEST(Select, TheReferenceBackendIsLastAndTakesEverything) {
  EXPECT_EQ(backends().back()->name(), "reference");
  EXPECT_TRUE(backends().back()->supports(kGood));
}

}  // namespace
}  // namespace sluice::moe
