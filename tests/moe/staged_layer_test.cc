// SPDX-License-Identifier: Apache-2.0
// Layers of another device for tensors on the host, without such a device: memory that only looks like a GPU's, and the
// CPU's layers on it.
#include "moe/staged_layer.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "moe/backend_cpu.h"
#include "tests/support/cases.h"
#include "tests/support/random.h"

namespace sluice::test {
namespace {

struct Counts {
  int allocations = 0, live = 0, waits = 0;
  int64_t live_bytes = 0, most_bytes = 0;
};

class CountingQueue : public Queue {
 public:
  CountingQueue(Device& device, Counts& counts) : device_(device), counts_(counts) {}
  Device& device() const override { return device_; }
  void* stream() const override { return nullptr; }
  void copy(void* to, const void* from, int64_t bytes) override { host_queue().copy(to, from, bytes); }
  void zero(void* memory, int64_t bytes) override { host_queue().zero(memory, bytes); }
  void wait() override { ++counts_.waits; }
  std::unique_ptr<Event> record() override { return host_queue().record(); }
  void wait_for(const Event& event) override { host_queue().wait_for(event); }
  std::unique_ptr<Graph> capture(const std::function<void()>&) override { return nullptr; }

 private:
  Device& device_;
  Counts& counts_;
};

// Says that it is not the host, so that a Tensor on it refuses to be read as host memory. Fresh memory is poisoned.
class CountingDevice : public Device {
 public:
  explicit CountingDevice(Counts& counts) : counts_(counts) {}
  DeviceId id() const override { return {DeviceId::Kind::cuda, 5}; }
  DeviceMemory memory() override { return host_device().memory(); }
  std::shared_ptr<void> allocate(int64_t bytes) override {
    std::shared_ptr<void> memory = host_device().allocate(bytes);
    std::memset(memory.get(), 0xff, static_cast<size_t>(bytes));
    ++counts_.allocations, ++counts_.live, counts_.live_bytes += bytes;
    counts_.most_bytes = std::max(counts_.most_bytes, counts_.live_bytes);
    return {memory.get(), [this, memory, bytes](void*) { --counts_.live, counts_.live_bytes -= bytes; }};
  }
  std::shared_ptr<void> allocate_staging(int64_t bytes) override { return host_device().allocate(bytes); }
  std::unique_ptr<Queue> make_queue() override { return std::make_unique<CountingQueue>(*this, counts_); }

 private:
  Counts& counts_;
};

struct Staged : testing::Test {
  ThreadPool pool{2};
  Context ctx{pool};
  Counts counts;
  std::shared_ptr<moe::Staging> staging = std::make_shared<moe::Staging>(std::make_unique<CountingDevice>(counts));

  std::unique_ptr<moe::MoeLayer> on_host(const Problem& p) {
    return moe::make_cpu_backend()->prepare(ctx, p.spec, p.weights);
  }
  moe::StagedLayer staged(const Problem& p) { return {on_host(p), staging}; }
};

struct Results {
  Tensor output, ids, weights;
  bool operator==(const Results& o) const {
    const auto same = [](const Tensor& a, const Tensor& b) {
      return a.bytes() == b.bytes() && std::memcmp(a.data(), b.data(), static_cast<size_t>(a.bytes())) == 0;
    };
    return same(output, o.output) && same(ids, o.ids) && same(weights, o.weights);
  }
};

Tensor poisoned(DType dtype, Shape shape) {
  Tensor t(dtype, std::move(shape));
  std::memset(t.data(), 0xff, static_cast<size_t>(t.bytes()));
  return t;
}

Results run(const moe::MoeLayer& layer, const Problem& p, Context& ctx, const int32_t* num_tokens = nullptr) {
  const int64_t k = p.spec.top_k;
  Results r{p.spec.finalize ? poisoned(p.spec.dtype, {p.tokens, p.spec.hidden})
                            : poisoned(p.spec.dtype, {p.tokens, k, p.spec.hidden}),
            poisoned(DType::i32, {p.tokens, k}), poisoned(DType::f32, {p.tokens, k})};
  Tensor workspace = poisoned(DType::u8, {layer.workspace_bytes(p.tokens)});
  moe::MoeArgs args = p.args();
  args.num_tokens = num_tokens;
  args.output = r.output.data();
  args.chosen_ids = r.ids.as<int32_t>();
  args.chosen_weights = r.weights.as<float>();
  args.workspace = workspace.bytes() == 0 ? nullptr : workspace.data();
  args.workspace_size = workspace.bytes();
  layer.run(ctx, args);
  return r;
}

Case case_of(const char* line, int64_t tokens, Choice choice) {
  Case c;
  c.spec = parse_moe_spec(line);
  c.tokens = tokens;
  c.choice = choice;
  return c;
}

// Logits with a bias, given routing in each form, with and without the weighted sum.
TEST_F(Staged, GivesWhatTheLayerGives) {
  std::mt19937 rng = test::rng();
  for (const Case& c :
       {case_of("experts=9 top_k=3 hidden=96 inter=64 weights=mxfp8", 13, Choice::f32_logits),
        case_of("experts=8 top_k=2 hidden=64 inter=96 routing=deepseek_v3 finalize=0", 4, Choice::bf16_logits),
        case_of("experts=8 top_k=2 hidden=64 inter=96 dtype=float32 routed=1", 5, Choice::unpacked),
        case_of("experts=8 top_k=2 hidden=64 inter=96 routed=1", 6, Choice::packed)}) {
    SCOPED_TRACE(c.name());
    const Problem p = make_problem(c, rng);
    const moe::StagedLayer layer = staged(p);
    EXPECT_EQ(layer.workspace_bytes(c.tokens), 0) << "the device has the workspace";
    EXPECT_TRUE(layer.device().is_host()) << "its tensors are the host's";
    const int waits = counts.waits;
    EXPECT_EQ(run(layer, p, ctx), run(*on_host(p), p, ctx));
    EXPECT_GT(counts.waits, waits) << "results are read when the call returns";
  }
}

// 58 layers of DeepSeek-V3 with memory of their own for 512 tokens would hold 7 GB.
TEST_F(Staged, LayersShareOneMemoryOfTheLargestCall) {
  std::mt19937 rng = test::rng();
  const char* const line = "experts=8 top_k=2 hidden=64 inter=96";
  std::vector<Problem> problems;
  std::vector<std::unique_ptr<moe::StagedLayer>> layers;
  for (const int64_t tokens : {40, 5, 39, 60, 1}) {
    problems.push_back(make_problem(case_of(line, tokens, Choice::f32_logits), rng));
    layers.push_back(std::make_unique<moe::StagedLayer>(on_host(problems.back()), staging));
  }
  EXPECT_EQ(counts.allocations, 0) << "the size is not known before a call";
  std::vector<int> allocations;
  for (size_t i = 0; i < layers.size(); ++i) {
    run(*layers[i], problems[i], ctx);
    allocations.push_back(counts.allocations);
    EXPECT_EQ(counts.live, 1);
    EXPECT_EQ(counts.live_bytes, counts.most_bytes) << "the smaller one is freed before the larger one is made";
  }
  EXPECT_EQ(allocations, (std::vector<int>{1, 1, 1, 2, 2}));
  layers.clear();
  staging.reset();
  EXPECT_EQ(counts.live, 0);
}

TEST_F(Staged, RowsBeyondTheCountKeepWhatTheyHad) {
  std::mt19937 rng = test::rng();
  const Problem p = make_problem(case_of("experts=8 top_k=2 hidden=64 inter=96", 7, Choice::f32_logits), rng);
  const moe::StagedLayer layer = staged(p);
  const Results all = run(layer, p, ctx);
  for (const int32_t count : {7, 3, 0, -1, 9}) {
    const int32_t rows = std::clamp(count, 0, 7);
    const Results some = run(layer, p, ctx, &count);
    const auto *got = some.output.as<uint16_t>(), *expected = all.output.as<uint16_t>();
    for (int64_t i = 0; i < 7 * 64; ++i)
      ASSERT_EQ(got[i], i < rows * 64 ? expected[i] : 0xffff) << "element " << i << " of " << count << " tokens";
  }
}

TEST_F(Staged, ARefitReachesTheLayer) {
  std::mt19937 rng = test::rng();
  const Case c = case_of("experts=8 top_k=2 hidden=64 inter=96", 5, Choice::f32_logits);
  const Problem first = make_problem(c, rng), second = make_problem(c, rng);
  moe::StagedLayer layer = staged(first);
  layer.refit(ctx, second.weights);
  EXPECT_EQ(run(layer, second, ctx), run(*on_host(second), second, ctx));
}

TEST_F(Staged, RefusesWhatEveryLayerRefuses) {
  std::mt19937 rng = test::rng();
  const Problem p = make_problem(case_of("experts=8 top_k=2 hidden=64 inter=96", 5, Choice::f32_logits), rng);
  const moe::StagedLayer layer = staged(p);
  moe::MoeArgs args = p.args();  // no output
  EXPECT_THROW(layer.run(ctx, args), Error);
  args = {};
  EXPECT_NO_THROW(layer.run(ctx, args)) << "no tokens: nothing is touched";
  EXPECT_EQ(counts.allocations, 0);
}

}  // namespace
}  // namespace sluice::test
