// SPDX-License-Identifier: Apache-2.0
// Ends a text at the first stop string, wherever the pieces of the text begin and end.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::engine {

class StopMatcher {
 public:
  // include: the stop string stays in the text.
  StopMatcher(std::vector<std::string> stops, bool include) : stops_(std::move(stops)), include_(include) {}

  // Appends to `out` what is certain after one more piece: everything but the longest end that may begin a stop string.
  // True when a stop string is complete; the one that ends first, of several the longest. Nothing may be pushed then.
  bool push(std::string_view piece, std::string& out);
  // The text is over: appends what was held back.
  void finish(std::string& out);
  const std::string& matched() const { return matched_; }

 private:
  size_t complete_at(size_t end) const;  // length of the longest stop string that ends there; 0: none
  size_t undecided() const;              // bytes at the end of held_ that begin a stop string

  std::vector<std::string> stops_;
  bool include_;
  std::string held_, matched_;
};

}  // namespace sluice::engine
