// SPDX-License-Identifier: Apache-2.0
#include "server/grammar_waiters.h"

#include <algorithm>
#include <exception>
#include <optional>
#include <utility>

namespace sluice::server {

GrammarWaiters::GrammarWaiters(size_t most_waiting) : most_waiting_(most_waiting), thread_([this] { loop(); }) {}

void GrammarWaiters::watch(std::shared_ptr<const ServedModel> model) {
  model->grammars().on_change([this] { wake(); });
  const std::lock_guard lock(mutex_);
  model_ = std::move(model);
}

GrammarWaiters::~GrammarWaiters() {
  if (model_) model_->grammars().on_change(nullptr);
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

bool GrammarWaiters::wait(grammar::Source source, std::function<void()> then) {
  {
    const std::lock_guard lock(mutex_);
    if (waiting_.size() >= most_waiting_) return false;
    waiting_.push_back({std::move(source), std::move(then)});
  }
  wake();
  return true;
}

void GrammarWaiters::release() {
  {
    const std::lock_guard lock(mutex_);
    released_ = true;
  }
  wake();
}

size_t GrammarWaiters::waiting() const {
  const std::lock_guard lock(mutex_);
  return waiting_.size();
}

void GrammarWaiters::wake() {
  {
    const std::lock_guard lock(mutex_);
    look_ = true;
  }
  changed_.notify_all();
}

void GrammarWaiters::loop() {
  std::unique_lock lock(mutex_);
  std::optional<grammar::Clock::time_point> next;  // when the first would have taken too long
  for (;;) {
    const auto awake = [&] { return look_ || stopping_; };
    if (next)
      changed_.wait_until(lock, *next, awake);
    else
      changed_.wait(lock, awake);
    if (stopping_) return;
    look_ = false;
    next.reset();
    std::list<Waiting> ready;
    for (auto at = waiting_.begin(); at != waiting_.end();) {
      const auto one = at++;
      const auto until = released_ ? std::nullopt : model_->grammars().pending_until(one->source);
      if (until)
        next = next ? std::min(*next, *until) : *until;
      else
        ready.splice(ready.end(), waiting_, one);
    }
    lock.unlock();
    for (const Waiting& one : ready) {
      try {
        one.then();
      } catch (const std::exception&) {  // no memory for one request must not end the others
      }
    }
    ready.clear();
    lock.lock();
  }
}

}  // namespace sluice::server
