// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <algorithm>
#include <numeric>

#include "base/math.h"

namespace sluice::model {

namespace {
int64_t conv_floats(const ops::MambaShape& m) { return (m.taps - 1) * m.channels(); }
int64_t ssm_floats(const ops::MambaShape& m) { return m.heads * m.head_dim * m.state; }
}  // namespace

int64_t CacheShape::bytes_per_token() const {
  int64_t n = 0;
  for (const Attention& a : attention) n += a.heads * (a.key_width + a.value_width);
  return n * bytes_of(dtype);
}

int64_t CacheShape::bytes_per_slot(int64_t versions) const {
  int64_t n = 0;
  for (const ops::MambaShape& m : mamba) n += conv_floats(m) + ssm_floats(m);
  return n * versions * static_cast<int64_t>(sizeof(float));
}

Cache::Cache(CacheShape shape, const CacheConfig& config)
    : shape_(std::move(shape)), config_(config), versions_(1 + config.tentative_rows) {
  check(config.blocks > 0, "the cache's number of blocks is {}; it must be positive", config.blocks);
  check(config.block_size > 0, "the cache's block size is {}; it must be positive", config.block_size);
  check(config.slots > 0, "the cache's number of slots is {}; it must be positive", config.slots);
  check(config.tentative_rows >= 0, "the cache's number of tentative rows is {}; it must be 0 or more",
        config.tentative_rows);
  for (const CacheShape::Attention& a : shape_.attention) {
    keys_.emplace_back(shape_.dtype, Shape{config.blocks, a.heads, config.block_size, a.key_width});
    values_.push_back(a.value_width == 0
                          ? Tensor()
                          : Tensor(shape_.dtype, Shape{config.blocks, a.heads, config.block_size, a.value_width}));
  }
  for (const ops::MambaShape& m : shape_.mamba) {
    conv_.emplace_back(DType::f32, Shape{config.slots, versions_, conv_floats(m)}).zero();
    ssm_.emplace_back(DType::f32, Shape{config.slots, versions_, ssm_floats(m)}).zero();
  }
  order_.resize(static_cast<size_t>(config.slots * versions_));
  for (int slot = 0; slot < config.slots; ++slot)
    std::iota(order_.begin() + slot * versions_, order_.begin() + (slot + 1) * versions_, 0);
}

int64_t Cache::bytes() const {
  int64_t n = 0;
  for (const auto* list : {&keys_, &values_, &conv_, &ssm_})
    for (const Tensor& t : *list) n += t.bytes();
  return n;
}

ops::Pages Cache::keys(size_t layer) const {
  const CacheShape::Attention& a = shape_.attention.at(layer);
  return {
      const_cast<void*>(keys_[layer].data()), shape_.dtype, config_.blocks, config_.block_size, a.heads, a.key_width};
}

ops::Pages Cache::values(size_t layer) const {
  const CacheShape::Attention& a = shape_.attention.at(layer);
  return {const_cast<void*>(values_[layer].data()),
          shape_.dtype,
          config_.blocks,
          config_.block_size,
          a.heads,
          a.value_width};
}

ops::StateSlots Cache::conv_states(size_t layer) const {
  return {const_cast<Tensor&>(conv_.at(layer)).as<float>(), conv_floats(shape_.mamba[layer]), versions_, order_.data()};
}

ops::StateSlots Cache::ssm_states(size_t layer) const {
  return {const_cast<Tensor&>(ssm_.at(layer)).as<float>(), ssm_floats(shape_.mamba[layer]), versions_, order_.data()};
}

void Cache::reset(int slot) {
  for (size_t i = 0; i < shape_.mamba.size(); ++i)
    for (const ops::StateSlots& s : {conv_states(i), ssm_states(i)}) std::fill_n(s.at(slot, 0), s.floats, 0.0f);
}

void Cache::commit(int slot, int64_t accepted) {
  check(slot >= 0 && slot < config_.slots, "slot {} is outside the cache's {} slots", slot, config_.slots);
  check(accepted >= 0 && accepted < versions_, "{} accepted rows; the cache keeps at most {} tentative rows", accepted,
        config_.tentative_rows);
  std::swap(order_[static_cast<size_t>(slot * versions_)], order_[static_cast<size_t>(slot * versions_ + accepted)]);
}

void Cache::copy_state(int from, int to) {
  for (const int slot : {from, to})
    check(slot >= 0 && slot < config_.slots, "slot {} is outside the cache's {} slots", slot, config_.slots);
  for (size_t i = 0; i < shape_.mamba.size(); ++i)
    for (const ops::StateSlots& s : {conv_states(i), ssm_states(i)}) std::copy_n(s.at(from, 0), s.floats, s.at(to, 0));
}

void Cache::verify(std::span<const ops::Sequence> sequences) const {
  for (const ops::Sequence& s : sequences) {
    check(s.slot >= 0 && s.slot < config_.slots, "slot {} is outside the cache's {} slots", s.slot, config_.slots);
    check(s.rows > 0 && s.context >= 0, "a sequence has {} new rows after {} tokens", s.rows, s.context);
    check(!s.tentative || s.rows <= config_.tentative_rows,
          "{} tentative rows; the cache keeps at most {} (CacheConfig::tentative_rows)", s.rows,
          config_.tentative_rows);
    const auto needed = static_cast<size_t>(ceil_div(s.context + s.rows, config_.block_size));
    check(shape_.attention.empty() || s.blocks.size() >= needed,
          "a sequence of {} tokens needs {} blocks of {}, not {}", s.context + s.rows, needed, config_.block_size,
          s.blocks.size());
    for (const int32_t b : s.blocks)
      check(b >= 0 && b < config_.blocks, "block {} is outside the cache's {} blocks", b, config_.blocks);
  }
}

}  // namespace sluice::model
