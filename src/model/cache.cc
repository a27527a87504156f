// SPDX-License-Identifier: Apache-2.0
#include "model/cache.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/error.h"

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

Cache::Cache(Device& device, CacheShape shape, const CacheConfig& config)
    : device_(device), shape_(std::move(shape)), config_(config) {
  check(config.blocks > 0, "the cache's number of blocks is {}; it must be positive", config.blocks);
  check(config.block_size > 0, "the cache's block size is {}; it must be positive", config.block_size);
  check(config.blocks <= INT32_MAX / config.block_size, "the cache has {} blocks of {}; accepted: below 2^31 tokens",
        config.blocks, config.block_size);
  check(config.slots > 0, "the cache's number of slots is {}; it must be positive", config.slots);
  check(config.draft_rows >= 0, "the cache's number of rows with drafts is {}; it must be 0 or more",
        config.draft_rows);
  allocate();
}

void Cache::allocate() {
  const auto pages = [&](int64_t heads, int64_t width) {
    return width == 0 ? Tensor()
                      : Tensor(device_, shape_.dtype, Shape{config_.blocks, heads, config_.block_size, width});
  };
  for (const CacheShape::Attention& a : shape_.attention) {
    keys_.push_back(pages(a.heads, a.key_width));
    values_.push_back(pages(a.heads, a.value_width));
  }
  const int64_t places = config_.slots * config_.versions();
  for (const ops::MambaShape& m : shape_.mamba) {
    conv_.emplace_back(device_, DType::f32, Shape{places, conv_floats(m)});
    ssm_.emplace_back(device_, DType::f32, Shape{places, ssm_floats(m)});
  }
}

int64_t Cache::bytes() const {
  int64_t n = 0;
  for (const auto* list : {&keys_, &values_, &conv_, &ssm_})
    for (const Tensor& t : *list) n += t.bytes();
  return n;
}

namespace {
void release_pages(Tensor& t) {
  if (t.empty()) return;
  // Whole pages go back; what shares a page with something else is cleared, so that all of it reads as zeros.
  const auto page = static_cast<uintptr_t>(sysconf(_SC_PAGESIZE));
  const auto first = reinterpret_cast<uintptr_t>(t.data()), last = first + static_cast<uintptr_t>(t.bytes());
  const uintptr_t begin = (first + page - 1) / page * page, end = last / page * page;
  if (begin >= end || madvise(reinterpret_cast<void*>(begin), end - begin, MADV_DONTNEED) != 0) {
    std::memset(t.data(), 0, static_cast<size_t>(t.bytes()));
    return;
  }
  std::memset(reinterpret_cast<void*>(first), 0, begin - first);
  std::memset(reinterpret_cast<void*>(end), 0, last - end);
}
}  // namespace

void Cache::release() {
  for (auto* list : {&keys_, &values_, &conv_, &ssm_}) {
    if (device_.id().shares_host_memory())
      std::for_each(list->begin(), list->end(), release_pages);
    else
      list->clear();
  }
  released_ = true;
}

void Cache::restore() {
  if (!std::exchange(released_, false) || device_.id().shares_host_memory()) return;
  try {
    allocate();
  } catch (...) {
    release();
    throw;
  }
}

ops::Pages Cache::keys(size_t layer) {
  const CacheShape::Attention& a = shape_.attention.at(layer);
  return {keys_[layer].address(), shape_.dtype, config_.blocks, config_.block_size, a.heads, a.key_width};
}

ops::Pages Cache::values(size_t layer) {
  const CacheShape::Attention& a = shape_.attention.at(layer);
  return {values_[layer].address(), shape_.dtype, config_.blocks, config_.block_size, a.heads, a.value_width};
}

ops::States Cache::conv_states(size_t layer) {
  return {static_cast<float*>(conv_.at(layer).address()), conv_floats(shape_.mamba[layer])};
}

ops::States Cache::ssm_states(size_t layer) {
  return {static_cast<float*>(ssm_.at(layer).address()), ssm_floats(shape_.mamba[layer])};
}

}  // namespace sluice::model
