// SPDX-License-Identifier: Apache-2.0
// A grammar over one answer: where in the answer it begins, which tokens may come next, also after drafts.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "engine/request.h"
#include "grammar/compiler.h"

namespace sluice::engine {

class Constraint {
 public:
  // `stops`: the tokens that end the answer; they are allowed where the grammar's text may end, and inside thoughts
  // never. `vocab`: of the logits.
  Constraint(grammar::GrammarPtr grammar, const Thoughts& thoughts, std::vector<int32_t> stops, int64_t vocab);

  // Writes the masks of the next token and of the token after each draft, if those before it were right: [1 +
  // drafts.size()][mask_words]. Returns how many it wrote: none for what follows a draft that is not allowed, as no row
  // will choose that draft. The state is afterwards as it was.
  size_t fill(std::span<const int32_t> drafts, std::span<uint32_t> masks);
  // Goes on by a token that was chosen under its mask and is no stop token. Throws unsupported when the grammar has
  // taken too much processor time: all answers of a step wait for it.
  void accept(int32_t token);

 private:
  enum class Place : uint8_t { beginning, thoughts, text };
  void fill_one(Place place, std::span<uint32_t> mask);
  bool advance(int32_t token);  // of the grammar's text; false: not allowed
  Place after(Place place, int32_t token) const;

  grammar::GrammarState state_;
  Thoughts thoughts_;
  std::vector<int32_t> stops_;
  size_t words_;
  Place place_;
  double seconds_ = 0;  // of processor time in the grammar
  int64_t tokens_ = 0;
};

}  // namespace sluice::engine
