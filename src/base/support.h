// SPDX-License-Identifier: Apache-2.0
// The answer to "can you do this?": yes, or a sentence. Not being able to is not an error.
#pragma once

#include <string>

namespace sluice {

struct Support {
  std::string reason;  // empty: supported
  std::string choice;  // what runs, or would on another machine, e.g. "avx512_vnni"; for explain
  explicit operator bool() const { return reason.empty(); }
  static Support yes(std::string choice = "") { return {"", std::move(choice)}; }
  static Support no(std::string reason) { return {std::move(reason), ""}; }
};

}  // namespace sluice
