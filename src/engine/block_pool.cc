// SPDX-License-Identifier: Apache-2.0
#include "engine/block_pool.h"

#include "base/error.h"

namespace sluice::engine {

BlockPool::BlockPool(int32_t blocks)
    : blocks_(index(blocks) + 1), buckets_(index(blocks) * 2 + 1, -1), head_(blocks), available_(blocks) {
  blocks_[index(head_)].previous = blocks_[index(head_)].next = head_;
  for (int32_t b = 0; b < blocks; ++b) link(b, head_);
}

void BlockPool::link(int32_t block, int32_t before) {
  Block& b = blocks_[index(block)];
  b.next = before;
  b.previous = blocks_[index(before)].previous;
  blocks_[index(b.previous)].next = block;
  blocks_[index(before)].previous = block;
}

void BlockPool::unlink(int32_t block) {
  const Block& b = blocks_[index(block)];
  blocks_[index(b.previous)].next = b.next;
  blocks_[index(b.next)].previous = b.previous;
}

std::optional<int32_t> BlockPool::allocate() {
  if (available_ == 0) return std::nullopt;
  const int32_t block = blocks_[index(head_)].next;
  retain(block);
  if (drop_name(block) && listener_ != nullptr) listener_->removed(block);
  return block;
}

void BlockPool::retain(int32_t block) {
  Block& b = blocks_[index(block)];
  if (b.references++ > 0) return;
  unlink(block);
  --available_;
  cached_ -= b.named ? 1 : 0;
}

void BlockPool::release(int32_t block) {
  Block& b = blocks_[index(block)];
  if (b.references <= 0) fail(ErrorCode::internal, "block {} was released without being in use", block);
  if (--b.references > 0) return;
  link(block, b.named ? head_ : blocks_[index(head_)].next);
  ++available_;
  cached_ += b.named ? 1 : 0;
}

bool BlockPool::publish(int32_t block, const BlockHash& name) {
  Block& b = blocks_[index(block)];
  if (b.named || find(name)) return false;
  b.named = true;
  b.name = name;
  b.chain = buckets_[bucket(name)];
  buckets_[bucket(name)] = block;
  return true;
}

std::optional<int32_t> BlockPool::find(const BlockHash& name) const {
  for (int32_t b = buckets_[bucket(name)]; b >= 0; b = blocks_[index(b)].chain)
    if (blocks_[index(b)].name == name) return b;
  return std::nullopt;
}

bool BlockPool::drop_name(int32_t block) {
  Block& b = blocks_[index(block)];
  if (!b.named) return false;
  int32_t* at = &buckets_[bucket(b.name)];
  while (*at != block) at = &blocks_[index(*at)].chain;
  *at = b.chain;
  b.named = false;
  return true;
}

void BlockPool::forget_names() {
  for (int32_t b = 0; b < size(); ++b) drop_name(b);
  cached_ = 0;
  if (listener_ != nullptr) listener_->cleared();
}

}  // namespace sluice::engine
