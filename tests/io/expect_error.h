// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "base/error.h"

namespace sluice::io {

// `run` must throw Error with this code, in one line that holds every word.
template <class Run>
void expect_error(ErrorCode code, const std::vector<std::string>& words, const Run& run) {
  try {
    run();
    ADD_FAILURE() << "no error; expected one naming \"" << (words.empty() ? "" : words.back()) << '"';
  } catch (const Error& error) {
    const std::string text = error.what();
    EXPECT_EQ(error.code(), code) << text;
    EXPECT_EQ(text.find('\n'), text.npos) << text;
    EXPECT_LT(text.size(), 1000u) << text;
    for (const auto& word : words)
      EXPECT_NE(text.find(word), text.npos) << "\"" << word << "\" is missing in: " << text;
  }
}

}  // namespace sluice::io
