// SPDX-License-Identifier: Apache-2.0
#include "server/mailbox.h"

#include <gtest/gtest.h>

#include <functional>
#include <new>

namespace sluice::server {
namespace {

struct Busy final : Recipient {
  void deliver() override { meanwhile(); }
  std::function<void()> meanwhile;
};

struct Counter final : Recipient {
  void deliver() override { ++delivered; }
  int delivered = 0;
};

TEST(Mailbox, WakesOnceForAllThatWait) {
  Mailbox mailbox;
  const auto a = std::make_shared<Counter>(), b = std::make_shared<Counter>();
  int wakes = 0;
  const auto wake = [&] { ++wakes; };
  mailbox.put(a, wake);
  mailbox.put(b, wake);
  EXPECT_EQ(wakes, 1);
  mailbox.deliver_all(wake);
  EXPECT_EQ(a->delivered, 1);
  EXPECT_EQ(b->delivered, 1);
  EXPECT_EQ(wakes, 1);
  mailbox.put(a, wake);
  EXPECT_EQ(wakes, 2);
}

// Whoever comes while others are delivered is delivered by the next deliver_all(), for which that one asks itself.
TEST(Mailbox, WakesOnceForAllThatComeMeanwhile) {
  Mailbox mailbox;
  int wakes = 0;
  const auto wake = [&] { ++wakes; };
  const auto late = std::make_shared<Counter>();
  const auto busy = std::make_shared<Busy>();
  busy->meanwhile = [&] {
    mailbox.put(late, wake);
    mailbox.put(late, wake);
    EXPECT_EQ(wakes, 1);
  };
  mailbox.put(busy, wake);
  mailbox.deliver_all(wake);
  EXPECT_EQ(wakes, 2);
  EXPECT_EQ(late->delivered, 0) << "after what else the server's thread has to do";
  mailbox.deliver_all(wake);
  EXPECT_EQ(late->delivered, 2);
  EXPECT_EQ(wakes, 2);
  mailbox.put(late, wake);
  EXPECT_EQ(wakes, 3);
}

TEST(Mailbox, AWakeUpThatFailsAfterDeliveringIsTriedAgain) {
  Mailbox mailbox;
  const auto a = std::make_shared<Counter>();
  const auto busy = std::make_shared<Busy>();
  busy->meanwhile = [&] { mailbox.put(a, [] { FAIL(); }); };
  mailbox.put(busy, [] {});
  mailbox.deliver_all([] { throw std::bad_alloc(); });
  int wakes = 0;
  mailbox.put(a, [&] { ++wakes; });
  EXPECT_EQ(wakes, 1);
  mailbox.deliver_all([] {});
  EXPECT_EQ(a->delivered, 2);
}

TEST(Mailbox, AWakeUpThatFailsIsTriedAgain) {
  Mailbox mailbox;
  const auto a = std::make_shared<Counter>(), b = std::make_shared<Counter>();
  EXPECT_THROW(mailbox.put(a, [] { throw std::bad_alloc(); }), std::bad_alloc);
  int wakes = 0;
  mailbox.put(b, [&] { ++wakes; });
  EXPECT_EQ(wakes, 1);
  mailbox.deliver_all([] {});
  EXPECT_EQ(a->delivered, 1);
  EXPECT_EQ(b->delivered, 1);
}

}  // namespace
}  // namespace sluice::server
