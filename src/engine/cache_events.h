// SPDX-License-Identifier: Apache-2.0
// What the prefix cache gained and lost, for whoever mirrors it from outside: a router that sends a prompt to the
// engine that has its beginning.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/block_hash.h"
#include "engine/cache_listener.h"

namespace sluice::engine {

class RequestTable;

// Blocks go by names of 64 bits that follow from the tokens up to their end and from the salt: equal in every engine
// with blocks of this size, unlike the keyed hashes by which the cache itself finds them.
struct CacheEvent {
  enum class Kind : uint8_t { stored, removed, cleared };
  Kind kind = Kind::stored;
  std::vector<uint64_t> blocks{};  // stored: each follows the one before
  // Of stored blocks only:
  std::optional<uint64_t> parent{};  // the block before the first; none: they begin a sequence
  std::vector<int32_t> tokens{};     // of all of them, equally many each
  std::string salt{};                // requests with this cache_salt find them; "": those without
};

// In the order in which it happened, once per step at most. Called on the engine's thread before the step's answers are
// given; must not block and must not throw.
using CacheEventSink = std::function<void(std::vector<CacheEvent>)>;

// The chain of names of one sequence.
class BlockNames {
 public:
  explicit BlockNames(std::string salt);
  void add(std::span<const int32_t> tokens);  // of the next block
  uint64_t at(int64_t index) const { return names_[static_cast<size_t>(index)]; }
  const std::string& salt() const { return salt_; }

 private:
  std::string salt_;
  BlockHash last_;
  std::vector<uint64_t> names_;
};

// Collects events until they are given away.
class CacheEvents final : public CacheListener {
 public:
  // `requests` must live longer; its sequences have names().
  CacheEvents(RequestTable& requests, int32_t blocks, int64_t block_size, CacheEventSink sink);

  void stored(int32_t sequence, int64_t index, int32_t block) override;
  void removed(int32_t block) override;
  void cleared() override;
  // Gives the sink what has happened since the last call, if anything.
  void give();

 private:
  RequestTable& requests_;
  size_t block_size_;
  CacheEventSink sink_;
  std::vector<uint64_t> names_;  // by block
  std::vector<CacheEvent> pending_;
};

}  // namespace sluice::engine
