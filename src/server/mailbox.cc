// SPDX-License-Identifier: Apache-2.0
#include "server/mailbox.h"

#include <exception>
#include <utility>

namespace sluice::server {

void Mailbox::put(std::shared_ptr<Recipient> recipient, const std::function<void()>& wake) {
  {
    const std::lock_guard lock(mutex_);
    waiting_.push_back(std::move(recipient));
    if (std::exchange(coming_, true)) return;
  }
  try {
    wake();
  } catch (...) {  // no memory to wake anyone must not leave all later answers asleep
    const std::lock_guard lock(mutex_);
    coming_ = false;
    throw;
  }
}

void Mailbox::deliver_all() {
  std::vector<std::shared_ptr<Recipient>> now;
  {
    const std::lock_guard lock(mutex_);
    now.swap(waiting_);
    coming_ = false;
  }
  for (const auto& recipient : now) {
    try {
      recipient->deliver();
    } catch (const std::exception&) {
      // No memory for one answer must not end the others.
    }
  }
}

}  // namespace sluice::server
