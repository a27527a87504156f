// SPDX-License-Identifier: Apache-2.0
#include "server/mailbox.h"

#include <exception>
#include <utility>

namespace sluice::server {

bool Mailbox::put(std::shared_ptr<Recipient> recipient) {
  const std::lock_guard lock(mutex_);
  waiting_.push_back(std::move(recipient));
  return waiting_.size() == 1;
}

void Mailbox::deliver_all() {
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
}

}  // namespace sluice::server
