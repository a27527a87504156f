// SPDX-License-Identifier: Apache-2.0
// What xgrammar says while it works, on the thread that it works on.
#pragma once

#include <string>
#include <vector>

namespace sluice::grammar {

// While one lives, warnings of its thread are kept; all others are dropped. xgrammar reports through functions without
// an argument for the caller, so the way to it is the thread.
class KeptWarnings {
 public:
  KeptWarnings();
  ~KeptWarnings();
  KeptWarnings(const KeptWarnings&) = delete;
  KeptWarnings& operator=(const KeptWarnings&) = delete;

  const std::vector<std::string>& all() const { return warnings_; }
  void add(const std::string& warning) { warnings_.push_back(warning); }

 private:
  std::vector<std::string> warnings_;
};

// The sentence in what xgrammar throws, without the time and the place in its source.
std::string sentence_of(const std::exception& error);
// The sentence of a warning where what it is about is refused: xgrammar says that it ignores that.
std::string refusal_of(std::string warning);

}  // namespace sluice::grammar
