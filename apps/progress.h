// SPDX-License-Identifier: Apache-2.0
// Draws Context::progress: one bar with a rate on a terminal, a plain line each 10 % in a log.
#pragma once

#include <chrono>
#include <cstdio>
#include <string>
#include <string_view>

#include "device/context.h"

namespace sluice::apps {

class ProgressView {
 public:
  explicit ProgressView(std::FILE* out);
  ~ProgressView();
  ProgressView(const ProgressView&) = delete;
  ProgressView& operator=(const ProgressView&) = delete;

  void show(const Progress& progress);
  // A log line; an unfinished bar is cleared first, so that the two never share a line.
  void line(std::string_view text);
  void clear();  // removes an unfinished bar

 private:
  using Clock = std::chrono::steady_clock;
  void write(const std::string& text);

  std::FILE* out_;
  bool terminal_;
  bool drawn_ = false;
  std::string what_;  // of the running work
  Clock::time_point start_, drawn_at_;
  int64_t next_step_ = 0;  // log: the next tenth to report
};

// "loading [#####     ]  50 %  1.2 of 2.4 GB  0.83 GB/s"; `bar_width` 0 leaves the bar out.
std::string progress_text(const Progress& progress, double seconds, int bar_width);

}  // namespace sluice::apps
