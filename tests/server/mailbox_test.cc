// SPDX-License-Identifier: Apache-2.0
#include "server/mailbox.h"

#include <gtest/gtest.h>

#include <new>

namespace sluice::server {
namespace {

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
  mailbox.deliver_all();
  EXPECT_EQ(a->delivered, 1);
  EXPECT_EQ(b->delivered, 1);
  mailbox.put(a, wake);
  EXPECT_EQ(wakes, 2);
}

TEST(Mailbox, AWakeUpThatFailsIsTriedAgain) {
  Mailbox mailbox;
  const auto a = std::make_shared<Counter>(), b = std::make_shared<Counter>();
  EXPECT_THROW(mailbox.put(a, [] { throw std::bad_alloc(); }), std::bad_alloc);
  int wakes = 0;
  mailbox.put(b, [&] { ++wakes; });
  EXPECT_EQ(wakes, 1);
  mailbox.deliver_all();
  EXPECT_EQ(a->delivered, 1);
  EXPECT_EQ(b->delivered, 1);
}

}  // namespace
}  // namespace sluice::server
