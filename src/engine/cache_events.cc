// SPDX-License-Identifier: Apache-2.0
#include "engine/cache_events.h"

#include <utility>

#include "engine/request_table.h"

namespace sluice::engine {

namespace {
// Known to everybody, so that every engine makes the same names. Whoever makes two prompts whose names collide misleads
// a router about where they are cached, and nobody else: no engine looks up anything by these names.
constexpr HashKey kPublicKey{};
}  // namespace

BlockNames::BlockNames(std::string salt) : salt_(std::move(salt)) {
  if (!salt_.empty()) last_ = hash_salt(kPublicKey, salt_);
}

void BlockNames::add(std::span<const int32_t> tokens) {
  last_ = hash_block(kPublicKey, last_, tokens);
  names_.push_back(last_.low);
}

CacheEvents::CacheEvents(RequestTable& requests, int32_t blocks, int64_t block_size, CacheEventSink sink)
    : requests_(requests),
      block_size_(static_cast<size_t>(block_size)),
      sink_(std::move(sink)),
      names_(static_cast<size_t>(blocks)) {}

void CacheEvents::stored(int32_t sequence, int64_t index, int32_t block) {
  const OutputSequence& output = requests_.at(sequence);
  const BlockNames& names = *output.names();
  const uint64_t name = names_[static_cast<size_t>(block)] = names.at(index);
  const std::optional<uint64_t> parent = index > 0 ? std::optional(names.at(index - 1)) : std::nullopt;
  CacheEvent* last = pending_.empty() ? nullptr : &pending_.back();
  const bool follows = last != nullptr && last->kind == CacheEvent::Kind::stored && parent &&
                       last->blocks.back() == *parent && last->salt == names.salt();
  if (!follows) last = &pending_.emplace_back(CacheEvent{CacheEvent::Kind::stored, {}, parent, {}, names.salt()});
  last->blocks.push_back(name);
  const auto tokens = output.tokens().subspan(static_cast<size_t>(index) * block_size_, block_size_);
  last->tokens.insert(last->tokens.end(), tokens.begin(), tokens.end());
}

void CacheEvents::removed(int32_t block) {
  if (pending_.empty() || pending_.back().kind != CacheEvent::Kind::removed)
    pending_.push_back({.kind = CacheEvent::Kind::removed});
  pending_.back().blocks.push_back(names_[static_cast<size_t>(block)]);
}

void CacheEvents::cleared() {
  pending_.clear();  // what was stored or removed before changes nothing any more
  pending_.push_back({.kind = CacheEvent::Kind::cleared});
}

void CacheEvents::give() {
  if (!pending_.empty()) sink_(std::exchange(pending_, {}));
}

}  // namespace sluice::engine
