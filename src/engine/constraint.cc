// SPDX-License-Identifier: Apache-2.0
#include "engine/constraint.h"

#include <algorithm>

#include "base/error.h"
#include "base/thread_time.h"
#include "sampling/choose.h"

namespace sluice::engine {

namespace {
// What an answer's grammar may take. The mask of a real schema takes 0.01 to 10 ms with 150,000 tokens. A pattern such
// as (\w*a?|[ -~])+c has masks and steps that grow with the text, to 0.2 s after 550 bytes or, of another vocabulary,
// after 50, and no limit of size catches it when it is compiled.
constexpr double kBaseSeconds = 2.0, kSecondsPerToken = 0.01;

struct Timed {
  explicit Timed(double& to) : sum(to) {}
  ~Timed() { sum += thread_seconds() - begin; }
  double& sum;
  const double begin = thread_seconds();
};

uint32_t bit(int32_t token) { return uint32_t{1} << (token % 32); }
uint32_t& word(std::span<uint32_t> mask, int32_t token) { return mask[static_cast<size_t>(token) / 32]; }
}  // namespace

Constraint::Constraint(grammar::GrammarPtr grammar, const Thoughts& thoughts, std::vector<int32_t> stops, int64_t vocab)
    : state_(std::move(grammar)),
      thoughts_(thoughts),
      stops_(std::move(stops)),
      words_(static_cast<size_t>(sampling::mask_words(vocab))),
      place_(thoughts.close < 0  ? Place::text
             : thoughts.open < 0 ? Place::thoughts
                                 : Place::beginning) {}

void Constraint::fill_one(Place place, std::span<uint32_t> mask) {
  if (place == Place::thoughts) {
    // An answer that ended here would have no text, let alone one that fits.
    std::fill(mask.begin(), mask.end(), ~uint32_t{0});
    for (const int32_t stop : stops_) word(mask, stop) &= ~bit(stop);
    return;
  }
  {
    const Timed timed(seconds_);
    state_.fill_mask(mask);
  }
  if (state_.may_end())
    for (const int32_t stop : stops_) word(mask, stop) |= bit(stop);
  if (place == Place::beginning) word(mask, thoughts_.open) |= bit(thoughts_.open);
}

bool Constraint::advance(int32_t token) {
  const Timed timed(seconds_);
  return state_.accept(token);
}

Constraint::Place Constraint::after(Place place, int32_t token) const {
  if (place == Place::beginning) return token == thoughts_.open ? Place::thoughts : Place::text;
  return place == Place::thoughts && token == thoughts_.close ? Place::text : place;
}

size_t Constraint::fill(std::span<const int32_t> drafts, std::span<uint32_t> masks) {
  Place place = place_;
  size_t written = 0;
  int steps = 0;
  for (;;) {
    const std::span<uint32_t> mask = masks.subspan(written * words_, words_);
    fill_one(place, mask);
    if (written++ == drafts.size()) break;
    const int32_t draft = drafts[written - 1];
    if ((word(mask, draft) & bit(draft)) == 0) break;
    const Place next = after(place, draft);
    // A stop token that the mask allows is no text of the grammar, and nothing follows it.
    if (next == Place::text && place != Place::thoughts) {
      if (!advance(draft)) break;
      ++steps;
    }
    place = next;
  }
  state_.rollback(steps);
  return written;
}

void Constraint::accept(int32_t token) {
  const Place next = after(place_, token);
  if (next == Place::text && place_ != Place::thoughts && !advance(token))
    fail(ErrorCode::internal, "the grammar refuses the token {} that its mask allowed", token);
  place_ = next;
  ++tokens_;
  if (seconds_ > kBaseSeconds + kSecondsPerToken * static_cast<double>(tokens_))
    fail(ErrorCode::unsupported,
         "the answer's constraint took {:.1f} s of processor time for {} tokens; accepted: {} s and {} s per token",
         seconds_, tokens_, kBaseSeconds, kSecondsPerToken);
}

}  // namespace sluice::engine
