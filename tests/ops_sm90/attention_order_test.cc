// SPDX-License-Identifier: Apache-2.0
// Attention begins to read older positions before the kernel ahead has finished, which stores the new ones or makes the
// rows that they come from: what it reads of these must be what that kernel wrote, whether steps are launched or
// replayed.
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
      layers_.push_back({random_values(batch_.rows * kCols), random_values(batch_.rows * kCols),
                         random_values(page_values()), random_values(page_values()),
                         random_values(batch_.rows * kHeads * kWidth)});
  }

  // NaN where this step's keys and values go, in the rows that they come from, and in the results.
  void forget() {
    const std::vector<bf16_t> nan(static_cast<size_t>(batch_.rows * kCols), 0x7fc0);
    for (const Layer& l : layers_) {
      for (const auto& pages : {l.keys, l.values})
        for (const int32_t slot : slots_)
          for (int64_t h = 0; h < kKeyHeads; ++h)
            gpu_.queue->copy(pages.get() + ((slot / kBlock * kKeyHeads + h) * kBlock + slot % kBlock) * kWidth,
                             nan.data(), kWidth * 2);
      gpu_.queue->copy(l.qkv.get(), nan.data(), batch_.rows * kCols * 2);
      gpu_.queue->copy(l.out.get(), nan.data(), batch_.rows * kHeads * kWidth * 2);
    }
    gpu_.queue->wait();
  }
  // together: one operation from projected to attended rows.
  void step(bool wait_between, bool together) {
    const ops::QkvLayout layout{kHeads, kKeyHeads, kWidth, {}, {}, false};
    const ops::AttentionOptions options{0.09f, false};
    const auto wait = [&] {
      if (wait_between) gpu_.queue->wait();
    };
    for (const Layer& l : layers_) {
      const auto rows = [&](const std::shared_ptr<bf16_t>& data, int64_t cols) {
        return ops::Matrix{data.get(), DType::bf16, batch_.rows, cols, cols};
      };
      const ops::Matrix qkv = rows(l.qkv, kCols), out = rows(l.out, kHeads * kWidth);
      const ops::Pages keys{l.keys.get(), DType::bf16, num_blocks_, kBlock, kKeyHeads, kWidth};
      const ops::Pages values{l.values.get(), DType::bf16, num_blocks_, kBlock, kKeyHeads, kWidth};
      ops_->copy(rows(l.projected, kCols), qkv);
      wait();
      if (together) {
        ops_->norm_rope_attention(batch_, layout, {}, qkv, keys, values, options, out);
      } else {
        ops_->norm_rope_store(batch_, layout, {}, qkv, keys, values);
        wait();
        ops_->attention(batch_, qkv.columns(0, kHeads * kWidth), keys, values, kWidth, options, out);
      }
      wait();
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
    std::shared_ptr<bf16_t> projected, qkv, keys, values, out;
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
    layers.step(true, false);
    const auto expected = layers.results();
    for (const bool together : {false, true}) {
      const auto graph = gpu.queue->capture([&] { layers.step(false, together); });
      for (int round = 0; round < 20; ++round) {
        layers.forget();
        if (round % 2 == 0)
          layers.step(false, together);
        else
          graph->launch();
        ASSERT_EQ(layers.results(), expected)
            << contexts.size() << " sequences, round " << round << ", together " << together;
      }
    }
  }
}

}  // namespace
}  // namespace sluice::test
