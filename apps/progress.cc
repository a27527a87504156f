// SPDX-License-Identifier: Apache-2.0
#include "progress.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>

namespace sluice::apps {

namespace {
constexpr int kBarWidth = 24;
constexpr auto kRedraw = std::chrono::milliseconds(80);
constexpr int64_t kSteps = 10;

// Bytes count in MB or GB by the total; other units as they are.
struct Scale {
  double factor;
  std::string_view unit;
};
Scale scale_of(const Progress& p) {
  if (p.unit != "B") return {1.0, p.unit};
  if (p.total >= 1'000'000'000) return {1e-9, "GB"};
  return {1e-6, "MB"};
}
}  // namespace

std::string progress_text(const Progress& p, double seconds, int bar_width) {
  const int64_t done = std::clamp<int64_t>(p.done, 0, std::max<int64_t>(p.total, 0));
  const double share = p.total > 0 ? static_cast<double>(done) / static_cast<double>(p.total) : 1.0;
  const Scale scale = scale_of(p);
  std::string bar;
  if (bar_width > 0) {
    const auto filled = static_cast<size_t>(share * bar_width);
    bar = " [" + std::string(filled, '#') + std::string(static_cast<size_t>(bar_width) - filled, ' ') + "]";
  }
  const int digits = scale.factor == 1.0 ? 0 : 1;
  std::string text = fmt::format("{}{} {:3.0f} %  {:.{}f} of {:.{}f} {}", p.what, bar, 100.0 * share,
                                 static_cast<double>(done) * scale.factor, digits,
                                 static_cast<double>(p.total) * scale.factor, digits, scale.unit);
  if (seconds > 0 && done > 0) {
    const double rate = static_cast<double>(done) / seconds;
    text += p.unit == "B" ? fmt::format("  {:.2f} GB/s", rate * 1e-9) : fmt::format("  {:.1f} {}/s", rate, p.unit);
  }
  return text;
}

ProgressView::ProgressView(std::FILE* out) : out_(out), terminal_(isatty(fileno(out)) == 1) {}

ProgressView::~ProgressView() { clear(); }

void ProgressView::show(const Progress& p) {
  const auto now = Clock::now();
  if (p.what != what_) {
    clear();
    what_ = p.what;
    start_ = now;
    drawn_at_ = {};
    next_step_ = 1;
  }
  const bool last = p.done >= p.total;
  const double seconds = std::chrono::duration<double>(now - start_).count();
  if (terminal_) {
    if (!last && now - drawn_at_ < kRedraw) return;
    write(fmt::format("\r{}\x1b[K{}", progress_text(p, seconds, kBarWidth), last ? "\n" : ""));
    drawn_at_ = now;
    drawn_ = !last;
  } else {
    const int64_t step = last ? kSteps : p.done * kSteps / p.total;
    if (step < next_step_) return;
    write(progress_text(p, seconds, 0) + "\n");
    next_step_ = step + 1;
  }
  if (last) what_.clear();
}

// A log that cannot be written (a full disk) ends no server: fmt::print would throw.
void ProgressView::write(const std::string& text) {
  std::fwrite(text.data(), 1, text.size(), out_);
  std::fflush(out_);
}

void ProgressView::line(std::string_view text) {
  clear();
  write(fmt::format("{}\n", text));
}

void ProgressView::clear() {
  if (!drawn_) return;
  write("\r\x1b[K");
  drawn_ = false;
}

}  // namespace sluice::apps
