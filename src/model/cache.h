// SPDX-License-Identifier: Apache-2.0
// The cache memory of all sequences, on a device: pages of keys and values for the attention layers, and places for the
// recurrent states of the Mamba layers. The caller decides which sequence owns which blocks and places (Batch,
// StateTable). To drop tokens of a sequence, it passes a smaller context in the next step.
#pragma once

#include <vector>

#include "ops/mamba.h"
#include "ops/pages.h"
#include "tensor/tensor.h"

namespace sluice::model {

// What a model keeps per token and per sequence, layer by layer (only the layers that keep something, in order).
struct CacheShape {
  struct Attention {
    int64_t heads = 0, key_width = 0;
    int64_t value_width = 0;  // 0: the values are columns of the keys (latent attention)
    bool operator==(const Attention&) const = default;
  };
  DType dtype = DType::bf16;  // of keys and values
  std::vector<Attention> attention;
  std::vector<ops::MambaShape> mamba;

  bool recurrent() const { return !mamba.empty(); }
  int64_t bytes_per_token() const;
  int64_t bytes_per_slot(int64_t versions) const;
  bool operator==(const CacheShape&) const = default;
};

struct CacheConfig {
  int64_t blocks = 0;       // shared by all sequences
  int64_t block_size = 64;  // tokens
  int slots = 1;            // sequences with states at a time
  int64_t draft_rows = 0;   // the most rows of a sequence whose rows are drafts to verify, its own row included

  int64_t versions() const { return 1 + draft_rows; }  // of a slot's state
};

class Cache {
 public:
  // Throws invalid_argument for sizes that are not positive, out_of_memory. Pages are touched when they are written.
  Cache(Device& device, CacheShape shape, const CacheConfig& config);

  const CacheShape& shape() const { return shape_; }
  const CacheConfig& config() const { return config_; }
  int64_t bytes() const;
  // Gives the memory back to the system, and with it what it holds. The host's addresses stay, and hold zeros until
  // they are written again; on another device there is no memory until restore(), and nothing may be running.
  void release();
  // Takes the memory again, at other addresses; nothing to do where it was not given back. Throws out_of_memory.
  void restore();

  ops::Pages keys(size_t attention_layer);
  ops::Pages values(size_t attention_layer);  // data null when the values are columns of the keys
  ops::States conv_states(size_t mamba_layer);
  ops::States ssm_states(size_t mamba_layer);

 private:
  void allocate();

  Device& device_;
  CacheShape shape_;
  CacheConfig config_;
  bool released_ = false;
  std::vector<Tensor> keys_, values_, conv_, ssm_;
};

}  // namespace sluice::model
