// SPDX-License-Identifier: Apache-2.0
// The number of drafts against a machine that is simulated: steps of known times, drafts of known chances.
#include "model/draft_depth.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <functional>

#include "tests/support/random.h"

namespace sluice::model {
namespace {

constexpr int kMost = 5;

struct Machine {
  double plain = 1e-2;            // seconds of a step without drafts
  double with = 1.1, each = 0.1;  // a step of d drafts takes plain * (with + each * d)
  double chance = 0.5;            // of each draft
  double noise = 0;               // every step takes up to this share longer
  double stall = 0;               // chance of a step that takes twenty times as long

  double seconds(int drafts) const { return drafts == 0 ? plain : plain * (with + each * drafts); }
  double tokens(int drafts) const {
    double sum = 1;
    for (int i = 1; i <= drafts; ++i) sum += std::pow(chance, i);
    return sum;
  }
  double rate(int drafts) const { return tokens(drafts) / seconds(drafts); }
  double best_rate() const {
    double best = 0;
    for (int d = 0; d <= kMost; ++d) best = std::max(best, rate(d));
    return best;
  }
};

struct Simulation {
  explicit Simulation(std::mt19937_64 random) : random_(random) {}

  // Steps of `sequences` sequences.
  void run(const Machine& m, int steps, int64_t sequences = 1) {
    std::uniform_real_distribution<double> uniform(0, 1);
    for (int i = 0; i < steps; ++i) {
      const int drafts = depth.choose(sequences);
      ASSERT_GE(drafts, 0);
      ASSERT_LE(drafts, kMost);
      ASSERT_EQ(depth.choose(sequences), drafts) << "asked again";
      int64_t made = 0;
      for (int64_t s = 0; s < sequences; ++s) {
        int64_t right = 0;
        while (right < drafts && uniform(random_) < m.chance) ++right;
        if (drafts > 0) depth.verified(drafts, right);
        made += 1 + right;
      }
      const double longer = (1 + m.noise * uniform(random_)) * (uniform(random_) < m.stall ? 20 : 1);
      depth.took(m.seconds(drafts) * longer, made);
      seconds += m.seconds(drafts) * longer;
      plain_seconds += m.plain * longer * static_cast<double>(made) / static_cast<double>(sequences);
      best_seconds += static_cast<double>(made) / static_cast<double>(sequences) / m.best_rate() * longer;
      drafted += drafts;
    }
  }
  void forget() { seconds = plain_seconds = best_seconds = 0, drafted = 0; }

  DraftDepth depth{kMost};
  double seconds = 0, plain_seconds = 0, best_seconds = 0;
  int64_t drafted = 0;

 private:
  std::mt19937_64 random_;
};

Machine any_machine(std::mt19937_64& random) {
  std::uniform_real_distribution<double> uniform(0, 1);
  Machine m;
  m.plain = std::pow(10.0, -4 + 3 * uniform(random));
  m.with = 1 + uniform(random) * uniform(random);
  m.each = uniform(random) * uniform(random);
  m.chance = uniform(random);
  return m;
}

// Trials: of six steps, each at most 1 + kMost times as long as a plain one.
TEST(DraftDepth, IsNeverSlowerThanWithoutBeyondItsBudget) {
  std::mt19937_64 random = test::rng<std::mt19937_64>();
  for (int i = 0; i < 400; ++i) {
    const Machine m = any_machine(random);
    Simulation s(random);
    const int64_t sequences = int64_t{1} << random() % 6;
    s.run(m, 6000, sequences);
    const double slack = 6 * m.seconds(kMost);
    EXPECT_LE(s.seconds, s.plain_seconds * (1 + 3 * DraftDepth::kBudget) + slack)
        << "with " << m.with << ", each " << m.each << ", chance " << m.chance << ", sequences " << sequences;
  }
}

TEST(DraftDepth, ComesNearTheBestNumber) {
  std::mt19937_64 random = test::rng<std::mt19937_64>();
  constexpr int kMachines = 200;
  double sum = 0;
  int slow = 0;
  for (int i = 0; i < kMachines; ++i) {
    const Machine m = any_machine(random);
    Simulation s(random);
    s.run(m, 3000, 4);
    s.forget();
    s.run(m, 3000, 4);
    sum += s.seconds / s.best_seconds;
    slow += s.seconds > s.best_seconds * 1.3;
  }
  // About one machine of 12000: a trial whose later drafts were all wrong by chance is not made again. More than three
  // of 200 are no chance (3e-9).
  EXPECT_LE(slow, 3);
  EXPECT_LE(sum / kMachines, 1.03);
}

TEST(DraftDepth, StopsAndBeginsAgainWithTheTexts) {
  std::mt19937_64 random = test::rng<std::mt19937_64>();
  const Machine good{.chance = 0.9}, bad{.chance = 0.02};
  // An unlucky trial, in one run of 6800, keeps one draft where more pay; twice in three runs it is no chance (7e-8).
  int slow = 0;
  for (int i = 0; i < 3; ++i) {
    Simulation s(std::mt19937_64{random()});
    s.run(good, 500);
    slow += s.seconds >= 0.6 * s.plain_seconds;
    s.run(bad, 100);
    s.forget();
    s.run(bad, 3000);
    EXPECT_LE(s.seconds, 1.02 * s.plain_seconds);
    s.run(good, 9000);  // after the longest pause between two trials
    s.forget();
    s.run(good, 1000);
    slow += s.seconds >= 0.6 * s.plain_seconds;
  }
  EXPECT_LE(slow, 1);
}

// A trial is a few drafts, of which all but the first may be wrong by chance. They are tried again.
TEST(DraftDepth, ForgetsAnUnluckyTrial) {
  DraftDepth depth(kMost);
  const Machine m{.with = 1.19, .each = 0.01};
  const auto run = [&](int steps, int most_right) {
    int64_t drafted = 0;
    for (int i = 0; i < steps; ++i) {
      const int drafts = depth.choose(1), right = std::min(drafts, most_right);
      if (drafts > 0) depth.verified(drafts, right);
      depth.took(m.seconds(drafts), 1 + right);
      drafted += drafts;
    }
    return drafted;
  };
  run(200, 1);
  EXPECT_EQ(run(100, 1), 100) << "one each, as no second one was ever right";
  run(2500, kMost);
  EXPECT_EQ(run(100, kMost), 100 * kMost);
}

TEST(DraftDepth, FollowsTheNumberOfSequences) {
  Simulation s(test::rng<std::mt19937_64>());
  const Machine alone{.chance = 0.8}, crowd{.plain = 4e-2, .with = 1.3, .each = 0.9, .chance = 0.8};
  for (int round = 0; round < 10; ++round) {
    s.run(alone, 300, 1);
    s.run(crowd, 300, 64);
  }
  // Long enough that the luck of single drafts is a tenth of the room: 300 steps of one sequence spread by 2.6 %.
  s.forget();
  s.run(alone, 20000, 1);
  EXPECT_LE(s.seconds, 1.1 * s.best_seconds);
  s.forget();
  s.run(crowd, 3000, 64);
  EXPECT_LE(s.seconds, 1.05 * s.plain_seconds);
}

// What makes single steps longer is not what drafts cost.
TEST(DraftDepth, IsNotMisledByNoise) {
  std::mt19937_64 random = test::rng<std::mt19937_64>();
  const auto simulate = [&](double chance) {
    Simulation s(std::mt19937_64{random()});
    const Machine m{.chance = chance, .noise = 0.1, .stall = 0.02};
    s.run(m, 500, 8);
    s.forget();
    s.run(m, 5000, 8);
    return s.seconds / s.plain_seconds;
  };
  // Four stalled steps without drafts in a row, in one run of 1100, are taken for what such a step costs; twice in
  // three runs they are no chance (2e-6).
  int misled = 0;
  for (int i = 0; i < 3; ++i) misled += simulate(0.05) > 1.03;
  EXPECT_LE(misled, 1);
  EXPECT_LE(simulate(0.9), 0.6);
}

// Prompts cost something as well when the draft head reads them.
TEST(DraftDepth, FollowsPromptsWithinItsBudget) {
  DraftDepth depth(3);
  EXPECT_TRUE(depth.follows());
  double elapsed = 0, following = 0;
  const Machine useless{.with = 2, .chance = 0};
  for (int i = 0; i < 2000; ++i) {
    const bool follows = depth.follows();
    elapsed += 0.1;
    following += follows ? 0.02 : 0;
    depth.took_otherwise(0.1, follows ? 0.02 : 0);
    for (int step = 0; step < 5; ++step) {
      const int drafts = depth.choose(1);
      if (drafts > 0) depth.verified(drafts, 0);
      depth.took(useless.seconds(drafts), 1);
      elapsed += useless.seconds(drafts);
      following += useless.seconds(drafts) - useless.plain;
    }
  }
  EXPECT_LE(following, 1.5 * DraftDepth::kBudget * elapsed + 0.1);
  EXPECT_GT(following, 0) << "nothing is tried any more";
}

}  // namespace
}  // namespace sluice::model
