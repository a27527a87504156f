// SPDX-License-Identifier: Apache-2.0
// How many drafts a step makes for each sequence: as many as give the most tokens per second, and none where none pay.
//
// A step with d drafts gives 1 + p1 + p1 p2 + ... + (p1 ... pd) tokens per sequence, where pi is how often draft i is
// right if those before it are, and takes the time that such steps took. Both are measured while steps run: pi
// for all sequences together, times for each power of two of sequences and each number of drafts. What has not been
// measured is tried for a few steps. Trials may cost kBudget of the running time and no more, so that in the long run
// steps are never slower than without drafts by more than that.
//
// Without drafts the draft head does not run either (follows()): it then misses tokens, and its next drafts are worse
// until the sequence has moved on. Texts do not depend on drafts (model/drafter.h). It sees no tokens, no model and no
// clock, and is tested without them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace sluice::model {

class DraftDepth {
 public:
  static constexpr double kBudget = 0.01;

  // most: 1 or more.
  explicit DraftDepth(int most);

  // Drafts of each of `sequences` that decode in the next step; 1 or more sequences. Calls without a took() in between
  // change nothing.
  int choose(int64_t sequences);
  // Whether the draft head is worth running over prompts: drafts pay, or there is time to find out whether they would.
  bool follows() const { return best_ > 0 || depth_ > 0 || may_spend(); }
  // The last choose() was done: the step and everything around it took `seconds`, and all its sequences had as many
  // drafts as choose() said. `tokens`: of all sequences together.
  void took(double seconds, int64_t tokens);
  // Another step took `seconds`: one with prompts, or with fewer drafts than choose() said for some sequence. The draft
  // head ran over its prompts for `following` of them; 0: it did not.
  void took_otherwise(double seconds, double following);
  // A sequence's `drafts` drafts were checked and the first `right` of them were right.
  void verified(int64_t drafts, int64_t right);

 private:
  // The last periods of steps of one kind. Their least counts: what is longer than the others had another reason (a
  // graph was recorded, the machine was busy).
  struct Period {
    static constexpr int kKept = 4, kEnough = 3;
    std::array<double, kKept> seconds{};
    int count = 0, next = 0;
    int64_t measured_at = 0;  // step
    void add(double s, int64_t step);
    bool known() const { return count >= kEnough; }
    double least() const;
  };
  struct Chance {
    double value = 0;
    int64_t count = 0;
    int64_t seen_at = 0;  // step
  };

  std::vector<Period>& periods() { return periods_[at_]; }
  double chance(int draft) const;
  bool is_old(const Chance& c) const;
  double tokens_per_sequence(int drafts) const;
  int best_known();
  double optimistic_seconds(int drafts);
  // The number of drafts to try next; -1: none.
  int candidate(int best);
  void begin_trial(int drafts);
  bool may_spend() const { return debt_ <= 0; }
  void spend(double lost, double elapsed);

  int most_;
  std::vector<std::vector<Period>> periods_;  // for each power of two of sequences, by drafts
  std::vector<Chance> chances_;               // of draft i + 1
  size_t at_ = 0;                             // of periods_
  int64_t sequences_ = 0;
  int depth_ = 0, last_depth_ = -1;
  int best_ = 1;
  bool chosen_ = false, steady_ = false;
  int trial_left_ = 0;
  int64_t step_ = 0, next_trial_ = 0, pause_ = 0;
  double debt_ = 0;  // seconds that were lost and not yet earned by kBudget of the running time
};

}  // namespace sluice::model
