// SPDX-License-Identifier: Apache-2.0
// Requests whose grammar is being compiled: none of the server's threads waits with them.
#pragma once

#include <condition_variable>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>

#include "grammar/source.h"
#include "server/served_model.h"

namespace sluice::server {

// Thrown out of an endpoint's function, past all that answers errors: the request is begun again when the grammar is
// compiled, or is known not to be.
struct NotCompiled {
  grammar::Source source;
};

class GrammarWaiters {
 public:
  explicit GrammarWaiters(size_t most_waiting);
  ~GrammarWaiters();  // what waits is dropped
  GrammarWaiters(const GrammarWaiters&) = delete;
  GrammarWaiters& operator=(const GrammarWaiters&) = delete;

  // The model whose compiler is asked; once, before the first wait().
  void watch(std::shared_ptr<const ServedModel> model);
  // Calls `then` on this object's thread, once the compiler knows of the source or it has taken too long. False, and
  // nothing done, when `most_waiting` requests wait already.
  bool wait(grammar::Source source, std::function<void()> then);
  // Calls all that waits now, and what comes later at once.
  void release();
  size_t waiting() const;

 private:
  struct Waiting {
    grammar::Source source;
    std::function<void()> then;
  };
  void loop();
  void wake();

  size_t most_waiting_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::shared_ptr<const ServedModel> model_;
  std::list<Waiting> waiting_;
  bool look_ = false;  // something may have changed
  bool released_ = false, stopping_ = false;
  std::thread thread_;
};

}  // namespace sluice::server
