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

void Mailbox::deliver_all(const std::function<void()>& wake) {
  std::vector<std::shared_ptr<Recipient>> now;
  {
    const std::lock_guard lock(mutex_);
    now.swap(waiting_);
  }
  for (const auto& recipient : now) {
    try {
      recipient->deliver();
    } catch (const std::exception&) {
      // No memory for one answer must not end the others.
    }
  }
  now.clear();
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.empty()) {
      now.swap(waiting_);  // with its memory, for the next step
      coming_ = false;
      return;
    }
  }
  try {
    wake();
  } catch (const std::exception&) {  // the next put() wakes
    const std::lock_guard lock(mutex_);
    coming_ = false;
  }
}

}  // namespace sluice::server
