// SPDX-License-Identifier: Apache-2.0
#include "apps/progress.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <sstream>
#include <vector>

namespace sluice::apps {
namespace {

std::vector<std::string> lines_of(const std::vector<Progress>& reports) {
  std::FILE* file = std::tmpfile();
  {
    ProgressView view(file);
    for (const Progress& p : reports) view.show(p);
  }
  std::rewind(file);
  std::string text(static_cast<size_t>(1) << 16, '\0');
  text.resize(std::fread(text.data(), 1, text.size(), file));
  std::fclose(file);
  std::istringstream in(text);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) lines.push_back(line);
  return lines;
}

TEST(Progress, LogHasOneAsciiLineEachTenth) {
  std::vector<Progress> reports;
  for (int64_t done = 0; done <= 1000; ++done) reports.push_back({"loading", done * 3'000'000, 3'000'000'000, "B"});
  const auto lines = lines_of(reports);
  ASSERT_EQ(lines.size(), 10u);
  for (size_t i = 0; i < lines.size(); ++i) {
    EXPECT_NE(lines[i].find(std::to_string(10 * (i + 1)) + " %"), std::string::npos) << lines[i];
    EXPECT_EQ(lines[i].find_first_of("\r\x1b["), std::string::npos) << "no bar in a log: " << lines[i];
  }
  EXPECT_NE(lines.back().find("3.0 of 3.0 GB"), std::string::npos) << lines.back();
}

TEST(Progress, EachWorkStartsAnew) {
  const auto lines = lines_of({{"loading", 5, 10, "B"}, {"loading", 10, 10, "B"}, {"scoring", 1, 1, "tokens"}});
  ASSERT_EQ(lines.size(), 3u);
  EXPECT_EQ(lines[2].rfind("scoring", 0), 0u) << lines[2];
  // The same work twice in a row is two works.
  EXPECT_EQ(lines_of({{"loading", 1, 1, "B"}, {"loading", 1, 1, "B"}}).size(), 2u);
}

TEST(Progress, AFullDiskIsNoError) {
  std::FILE* full = std::fopen("/dev/full", "w");
  ASSERT_NE(full, nullptr);
  ProgressView view(full);
  EXPECT_NO_THROW(view.line("a line"));
  EXPECT_NO_THROW(view.show({"loading", 1, 1, "B"}));
  std::fclose(full);
}

TEST(Progress, JumpsAndEmptyWork) {
  EXPECT_EQ(lines_of({{"loading", 0, 100, "B"}, {"loading", 95, 100, "B"}, {"loading", 100, 100, "B"}}).size(), 2u);
  EXPECT_EQ(lines_of({{"loading", 0, 0, "B"}}).size(), 1u);
}

TEST(Progress, TextShowsBarAndRate) {
  EXPECT_EQ(progress_text({"loading", 1'500'000'000, 3'000'000'000, "B"}, 2.0, 4),
            "loading [##  ]  50 %  1.5 of 3.0 GB  0.75 GB/s");
  EXPECT_EQ(progress_text({"scoring", 30, 40, "tokens"}, 3.0, 0), "scoring  75 %  30 of 40 tokens  10.0 tokens/s");
}

}  // namespace
}  // namespace sluice::apps
