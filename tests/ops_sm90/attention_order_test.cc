// SPDX-License-Identifier: Apache-2.0
// Attention begins to read older positions before the kernel that stores the new ones has finished: what it reads of
// the new ones must be what was stored, whether steps are launched or replayed.
#include "tests/ops_sm90/gpu.h"

namespace sluice::test {
namespace {

constexpr int64_t kHeads = 8, kKeyHeads = 2, kWidth = 128, kBlock = 64, kLayers = 12;
constexpr int64_t kCols = (kHeads + 2 * kKeyHeads) * kWidth;

class Layers {
 public:
  Layers(Gpu& gpu, const std::vector<int32_t>& contexts) : gpu_(gpu), ops_(ops::make_ops(gpu.ctx)) {
    std::vector<int32_t> begin{0}, block_begin{0}, blocks, slots;
    for (const int32_t context : contexts) {
      const auto first = static_cast<int32_t>(blocks.size());
      for (int32_t b = 0; b <= context / kBlock; ++b) blocks.push_back(first + b);
      begin.push_back(begin.back() + 1);
      block_begin.push_back(static_cast<int32_t>(blocks.size()));
      slots.push_back((first + context / static_cast<int32_t>(kBlock)) * static_cast<int32_t>(kBlock) +
                      context % static_cast<int32_t>(kBlock));
      batch_.longest_context = std::max<int64_t>(batch_.longest_context, context + 1);
    }
    num_blocks_ = static_cast<int64_t>(blocks.size());
    ints_ = {gpu.upload(begin), gpu.upload(block_begin), gpu.upload(blocks), gpu.upload(slots), gpu.upload(contexts)};
    batch_.rows = batch_.sequences = static_cast<int64_t>(contexts.size());
    batch_.longest_rows = 1;
    batch_.row_begin = ints_[0].get();
    batch_.block_begin = ints_[1].get();
    batch_.blocks = ints_[2].get();
    batch_.kv_slots = ints_[3].get();
    batch_.contexts = ints_[4].get();
    slots_ = slots;
    for (int64_t i = 0; i < kLayers; ++i)
      layers_.push_back({random_values(batch_.rows * kCols), random_values(page_values()), random_values(page_values()),
                         random_values(batch_.rows * kHeads * kWidth)});
  }

  // NaN where this step's keys and values go, and in the results.
  void forget() {
    const std::vector<bf16_t> nan(static_cast<size_t>(std::max(kWidth, batch_.rows * kHeads * kWidth)), 0x7fc0);
    for (const Layer& l : layers_) {
      for (const auto& pages : {l.keys, l.values})
        for (const int32_t slot : slots_)
          for (int64_t h = 0; h < kKeyHeads; ++h)
            gpu_.queue->copy(pages.get() + ((slot / kBlock * kKeyHeads + h) * kBlock + slot % kBlock) * kWidth,
                             nan.data(), kWidth * 2);
      gpu_.queue->copy(l.out.get(), nan.data(), batch_.rows * kHeads * kWidth * 2);
    }
    gpu_.queue->wait();
  }
  void step(bool wait_between) {
    const ops::QkvLayout layout{kHeads, kKeyHeads, kWidth, {}, {}, false};
    for (const Layer& l : layers_) {
      const ops::Matrix qkv{l.qkv.get(), DType::bf16, batch_.rows, kCols, kCols};
      const ops::Pages keys{l.keys.get(), DType::bf16, num_blocks_, kBlock, kKeyHeads, kWidth};
      const ops::Pages values{l.values.get(), DType::bf16, num_blocks_, kBlock, kKeyHeads, kWidth};
      ops_->norm_rope_store(batch_, layout, {}, qkv, keys, values);
      if (wait_between) gpu_.queue->wait();
      ops_->attention(batch_, qkv.columns(0, kHeads * kWidth), keys, values, kWidth, {0.09f, false},
                      {l.out.get(), DType::bf16, batch_.rows, kHeads * kWidth, kHeads * kWidth});
      if (wait_between) gpu_.queue->wait();
    }
  }
  std::vector<std::vector<bf16_t>> results() const {
    std::vector<std::vector<bf16_t>> all;
    for (const Layer& l : layers_)
      all.push_back(gpu_.download(l.out, static_cast<size_t>(batch_.rows * kHeads * kWidth)));
    return all;
  }

 private:
  struct Layer {
    std::shared_ptr<bf16_t> qkv, keys, values, out;
  };
  int64_t page_values() const { return num_blocks_ * kKeyHeads * kBlock * kWidth; }
  std::shared_ptr<bf16_t> random_values(int64_t count) const {
    std::vector<bf16_t> v(static_cast<size_t>(count));
    for (bf16_t& x : v) x = float_to_bf16(normal());
    return gpu_.upload(v);
  }

  Gpu& gpu_;
  std::unique_ptr<ops::Ops> ops_;
  ops::Batch batch_;
  int64_t num_blocks_ = 0;
  std::vector<int32_t> slots_;
  std::vector<std::shared_ptr<int32_t>> ints_;
  std::vector<Layer> layers_;
};

TEST(AttentionOrder, NewKeysAndValuesAreReadAfterTheyAreStored) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  Gpu gpu;
  for (const std::vector<int32_t>& contexts :
       {std::vector<int32_t>{1000}, {0}, {63}, {64}, {127, 200}, {1000, 64, 5, 319}, std::vector<int32_t>(24, 700)}) {
    Layers layers(gpu, contexts);
    layers.forget();
    layers.step(true);
    const auto expected = layers.results();
    const auto graph = gpu.queue->capture([&] { layers.step(false); });
    for (int round = 0; round < 20; ++round) {
      layers.forget();
      if (round % 2 == 0)
        layers.step(false);
      else
        graph->launch();
      ASSERT_EQ(layers.results(), expected) << contexts.size() << " sequences, round " << round;
    }
  }
}

}  // namespace
}  // namespace sluice::test
