// SPDX-License-Identifier: Apache-2.0
// The memory behind sequences: pages of keys and values for the attention layers, states in slots for the Mamba layers.
// Which blocks belong to whom is the caller's matter (Batch's block tables): forgetting tokens means passing a smaller
// context the next time.
#pragma once

#include <vector>

#include "ops/mamba.h"
#include "ops/pages.h"
#include "tensor/tensor.h"

namespace sluice::model {

// What a model keeps a token and a sequence, layer by layer (only the layers that keep something, in order).
struct CacheShape {
  struct Attention {
    int64_t heads = 0, key_width = 0;
    int64_t value_width = 0;  // 0: the values are columns of the keys (latent attention)
  };
  DType dtype = DType::bf16;
  std::vector<Attention> attention;
  std::vector<ops::MambaShape> mamba;

  int64_t bytes_per_token() const;
  int64_t bytes_per_slot(int64_t versions) const;
};

struct CacheConfig {
  int64_t blocks = 0;          // shared by all sequences
  int64_t block_size = 64;     // tokens
  int slots = 1;               // sequences with states at a time
  int64_t tentative_rows = 0;  // the most rows of a tentative sequence (speculative verification)
};

class Cache {
 public:
  // Throws invalid_argument for sizes that are not positive, out_of_memory. Pages are touched when they are written.
  Cache(CacheShape shape, const CacheConfig& config);

  const CacheShape& shape() const { return shape_; }
  const CacheConfig& config() const { return config_; }
  int64_t bytes() const;

  ops::Pages keys(size_t attention_layer) const;
  ops::Pages values(size_t attention_layer) const;  // data null when the values are columns of the keys
  ops::StateSlots conv_states(size_t mamba_layer) const;
  ops::StateSlots ssm_states(size_t mamba_layer) const;

  // Clears a slot's states: a new sequence begins in it. Model::forward does so when a sequence's context is 0.
  void reset(int slot);
  // After a tentative run: the state behind its first `accepted` rows becomes the sequence's; 0 keeps the old one.
  void commit(int slot, int64_t accepted);
  // Copies the state of the sequence in slot `from`, so that another may go on from there in slot `to`.
  void copy_state(int from, int to);

  // Throws unless the batch's slots, blocks and tentative rows fit this cache.
  void verify(std::span<const ops::Sequence> sequences) const;

 private:
  CacheShape shape_;
  CacheConfig config_;
  int64_t versions_;
  std::vector<Tensor> keys_, values_, conv_, ssm_;
  std::vector<int32_t> order_;  // [slots, versions]: which place holds which version, for all Mamba layers alike
};

}  // namespace sluice::model
