// SPDX-License-Identifier: Apache-2.0
#include "model/draft_depth.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace sluice::model {

namespace {
// No measurement of other values than these is kept; each says what it follows from.

// A trial's first step is not steady, and on a GPU its second one records a graph: four remain, as many as a Period
// keeps.
constexpr int kTrialSteps = 6;
// Steps until the next trial after one that gained nothing: doubled each time up to the second. A trial is then a tenth
// of the steps at first and 0.07 % of them in the end; kBudget bounds what it may cost in any case.
constexpr int64_t kShortPause = 64, kLongPause = 8192;
// Steps after which what was measured is measured again: contexts grow, and a few drafts may have been wrong by chance.
// Six of so many steps are 0.3 %, which kBudget has room for even where a step with drafts takes four times as long.
constexpr int64_t kOld = 2048;
// How much better a number of drafts must look to be taken instead of none, or to be tried: twice kBudget, so that what
// trials cost is gained.
constexpr double kMargin = 1.02;
// An average over the last verifications: its standard error is at most sqrt(1/4 / 64) = 6 %. After a rest it forgets
// faster, as the texts are others.
constexpr int64_t kWindow = 64, kWindowAfterRest = 4;
// How often a draft is taken to be right before one was made. Only what is tried first depends on it.
constexpr double kUnknownChance = 0.7;
constexpr int kLoads = 17;  // 1, 2 to 3, 4 to 7, ... sequences
}  // namespace

DraftDepth::DraftDepth(int most)
    : most_(most),
      periods_(kLoads, std::vector<Period>(static_cast<size_t>(most) + 1)),
      chances_(static_cast<size_t>(most)) {}

void DraftDepth::Period::add(double s, int64_t step) {
  seconds[static_cast<size_t>(next)] = s;
  next = (next + 1) % kKept;
  count = std::min(count + 1, kKept);
  measured_at = step;
}

double DraftDepth::Period::least() const { return *std::min_element(seconds.begin(), seconds.begin() + count); }

// Draft i + 1 is as often right as draft i where it was never made, or not for long while draft 1 was: what its last
// trial said would otherwise keep it from being made again.
double DraftDepth::chance(int draft) const {
  for (; draft >= 0; --draft)
    if (const Chance& c = chances_[static_cast<size_t>(draft)]; c.count > 0 && !is_old(c)) return c.value;
  return kUnknownChance;
}

double DraftDepth::tokens_per_sequence(int drafts) const {
  double tokens = 1, right = 1;
  for (int i = 0; i < drafts; ++i) tokens += right *= chance(i);
  return tokens;
}

bool DraftDepth::is_old(const Chance& c) const { return chances_.front().seen_at - c.seen_at > kOld; }

// Among the measured ones. None are best unless others are clearly better.
int DraftDepth::best_known() {
  const std::vector<Period>& of = periods();
  int best = 0;
  double rate = kMargin / of[0].least();
  for (int d = 1; d <= most_; ++d) {
    const Period& p = of[static_cast<size_t>(d)];
    if (!p.known() || tokens_per_sequence(d) / p.least() <= rate) continue;
    best = d;
    rate = tokens_per_sequence(d) / p.least();
  }
  return best;
}

// The least that a step of `drafts` drafts can take: what one of fewer takes, or a value between its neighbours'.
double DraftDepth::optimistic_seconds(int drafts) {
  const std::vector<Period>& of = periods();
  int less = drafts, more = drafts + 1;
  while (less > 0 && !of[static_cast<size_t>(less)].known()) --less;
  while (more <= most_ && !of[static_cast<size_t>(more)].known()) ++more;
  const double shorter = of[static_cast<size_t>(less)].least();
  if (more > most_ || less == drafts) return shorter;
  const double longer = of[static_cast<size_t>(more)].least();
  return shorter + (longer - shorter) * (drafts - less) / (more - less);
}

// One draft, a neighbour of the best or the most: whichever of those that are not known would be best if it took no
// longer than it must. Without drafts and with all times known, the best of those that would pay if all were right.
int DraftDepth::candidate(int best) {
  const std::vector<Period>& of = periods();
  if (step_ - of[0].measured_at > kOld) return 0;
  double rate = kMargin * tokens_per_sequence(best) / of[static_cast<size_t>(best)].least();
  int found = -1;
  const auto consider = [&](int d, double tokens_per_second) {
    if (tokens_per_second > rate) found = d, rate = tokens_per_second;
  };
  for (int d = 1; d <= most_; ++d) {
    const Period& p = of[static_cast<size_t>(d)];
    const bool near = d == 1 || d == best - 1 || d == best + 1 || (d == most_ && of[1].known());
    if (near && (!p.known() || step_ - p.measured_at > kOld))
      consider(d, tokens_per_sequence(d) / optimistic_seconds(d));
  }
  if (best > 0 || found > 0) return found;
  const double plain = rate;
  rate = 0;
  for (int d = 1; d <= most_; ++d)
    if (const Period& p = of[static_cast<size_t>(d)]; p.known() && (1 + d) / p.least() > plain)
      consider(d, tokens_per_sequence(d) / p.least());
  return found;
}

void DraftDepth::spend(double lost, double elapsed) { debt_ = std::max(0.0, debt_ + lost - kBudget * elapsed); }

void DraftDepth::begin_trial(int drafts) {
  depth_ = drafts;
  trial_left_ = kTrialSteps;
  next_trial_ = step_ + kTrialSteps + pause_;
  pause_ = std::clamp(2 * pause_, kShortPause, kLongPause);
  Period& p = periods()[static_cast<size_t>(drafts)];
  p.count = p.next = 0;  // of other contexts, perhaps of other texts
  if (drafts > 0 && best_ == 0)
    for (Chance& c : chances_) c.count = std::min(c.count, kWindowAfterRest);
}

int DraftDepth::choose(int64_t sequences) {
  const auto at =
      std::min<size_t>(static_cast<size_t>(std::bit_width(static_cast<uint64_t>(sequences))) - 1, kLoads - 1);
  if (at != at_) trial_left_ = 0, next_trial_ = step_, pause_ = 0, chosen_ = false;
  at_ = at;
  sequences_ = sequences;
  if (chosen_) return depth_;
  chosen_ = true;
  if (trial_left_ > 0) return depth_;
  if (!periods()[0].known()) return begin_trial(0), depth_;
  best_ = best_known();
  depth_ = best_;
  if (step_ < next_trial_ || !may_spend()) return depth_;
  if (const int d = candidate(best_); d >= 0) begin_trial(d);
  return depth_;
}

void DraftDepth::took(double seconds, int64_t tokens) {
  chosen_ = false;
  ++step_;
  spend(0, seconds);
  const bool steady = std::exchange(steady_, true) && last_depth_ == depth_;
  last_depth_ = depth_;
  std::vector<Period>& of = periods();
  Period& p = of[static_cast<size_t>(depth_)];
  if (steady) p.add(seconds, step_);
  // What plain steps would have taken for the same tokens.
  if (depth_ > 0) {
    const double plain = of[0].least() * static_cast<double>(tokens) / static_cast<double>(sequences_);
    spend(seconds - plain, 0);
  }
  if (trial_left_ == 0 || --trial_left_ > 0) return;
  if (depth_ > 0 && p.known() && best_known() == depth_ && depth_ != best_) pause_ = 0, next_trial_ = step_;
}

void DraftDepth::took_otherwise(double seconds, double following) {
  steady_ = false;
  spend(0, seconds);
  if (following <= 0 || best_ > 0) return;
  spend(following, 0);
  next_trial_ = step_;  // while the draft head knows the whole text
}

void DraftDepth::verified(int64_t drafts, int64_t right) {
  for (int64_t i = 0; i < std::min<int64_t>(drafts, right + 1); ++i) {
    Chance& c = chances_[static_cast<size_t>(i)];
    if (is_old(c)) c.count = 0;
    c.seen_at = step_;
    c.count = std::min(c.count + 1, kWindow);
    c.value += ((i < right ? 1.0 : 0.0) - c.value) / static_cast<double>(c.count);
  }
}

}  // namespace sluice::model
