// SPDX-License-Identifier: Apache-2.0
#include "base/env.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "base/error.h"

namespace sluice {
namespace {

class Env : public testing::Test {
 protected:
  static constexpr EnvVar kNumber{"SLUICE_ENV_TEST", "integer 0 to 20", "3", ""};
  static constexpr EnvVar kFlag{"SLUICE_ENV_TEST", "0|1", "0", ""};
  static constexpr EnvVar kChoice{"SLUICE_ENV_TEST", "low|mid|high", "mid", ""};
  void set(const char* text) { setenv(kNumber.name.data(), text, 1); }
  void TearDown() override { unsetenv(kNumber.name.data()); }
};

TEST_F(Env, UnsetAndEmptyGiveTheDefault) {
  EXPECT_FALSE(env_text(kNumber));
  for (const char* text : {static_cast<const char*>(nullptr), ""}) {
    if (text != nullptr) set(text);
    EXPECT_EQ(env_int(kNumber, 20), 3);
    EXPECT_FALSE(env_flag(kFlag));
    EXPECT_EQ(env_choice(kChoice), "mid");
  }
}

TEST_F(Env, ReadsWhatIsAccepted) {
  set("17");
  EXPECT_EQ(env_int(kNumber, 20), 17);
  set("1");
  EXPECT_TRUE(env_flag(kFlag));
  for (const char* word : {"low", "mid", "high"}) {
    set(word);
    EXPECT_EQ(env_choice(kChoice), word);
  }
}

TEST_F(Env, RefusesTheRestAndNamesIt) {
  for (const char* text : {"-1", "21", "x", "1x", " 1", "99999999999", "lo", "low|mid", "mi"}) {
    set(text);
    EXPECT_THROW(env_int(kNumber, 20), Error) << text;
    EXPECT_THROW(env_flag(kFlag), Error) << text;
    try {
      env_choice(kChoice);
      FAIL() << text;
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      EXPECT_NE(std::string(e.what()).find(text), std::string::npos) << e.what();
      EXPECT_NE(std::string(e.what()).find("SLUICE_ENV_TEST"), std::string::npos) << e.what();
    }
  }
}

TEST_F(Env, ListIsShortAndOurs) {
  EXPECT_LE(kEnvVars.size(), 6u);
  for (const EnvVar& v : kEnvVars) {
    EXPECT_TRUE(v.name.starts_with("SLUICE_"));
    EXPECT_EQ(v.name.data()[v.name.size()], '\0') << "getenv needs the terminator";
  }
}

}  // namespace
}  // namespace sluice
