// SPDX-License-Identifier: Apache-2.0
// New tokens' attention that takes q, k and v as they were projected gives, bit for bit, what launch_heads() followed
// by attention over the pages gives: rows and pages, however the work is spread over blocks.
#include "kernels/sm90/rope/rope.h"
#include "tests/ops_sm90/attention_problem.h"

namespace sluice::test {
namespace {

// The steps between the projection and attention.
struct Steps {
  bool q_norm, k_norm, rotary;
};
constexpr Steps kAllSteps{true, true, true}, kNoSteps{false, false, false};

struct Result {
  std::vector<bf16_t> out;
  std::vector<uint8_t> keys, values;
  bool operator==(const Result&) const = default;
};

// A problem whose new rows are not in its pages yet.
class Projected {
 public:
  Projected(const Gpu& gpu, const Problem& problem, Steps steps) : gpu_(gpu), p_(problem), steps_(steps) {
    const AttentionShape& s = p_.shape();
    const int width = s.key_width, rows = p_.sequences().rows();
    stride_ = int64_t{s.heads + 2 * s.key_heads} * width + 8;
    qkv_.resize(static_cast<size_t>(rows * stride_));
    for (bf16_t& v : qkv_) v = float_to_bf16(normal(2));
    const auto floats = [&](int n, auto&& make) {
      std::vector<float> v(static_cast<size_t>(n));
      for (float& x : v) x = make();
      return gpu.upload(v);
    };
    const auto weight = [] { return 1 + normal(0.5f); };
    q_norm_ = floats(width, weight);
    k_norm_ = floats(width, weight);
    // Any two numbers turn a pair: the arithmetic does not ask that their squares sum to one.
    const auto turn = [] { return round_to_bf16(normal(0.7f)); };
    cosine_ = floats(rows * width / 2, turn);
    sine_ = floats(rows * width / 2, turn);
    for (size_t i = 0; i < p_.sequences().each.size(); ++i) slots_.push_back(p_.slot(i, p_.sequences().each[i].first));
    old_keys_ = p_.old_pages(false);
    old_values_ = p_.old_pages(true);
  }

  // fused: in one launch; else launch_heads() and what reads its results. A row of a slot of -1 is not stored.
  Result run(const Way& way, bool fused) const {
    const auto qkv = gpu_.upload(qkv_);
    const auto keys = gpu_.upload(old_keys_), values = gpu_.upload(old_values_);
    const auto slots = gpu_.upload(slots_);
    const AttentionShape& s = p_.shape();
    const int64_t width = s.key_width, keys_at = s.heads * width, values_at = keys_at + s.key_heads * width;
    if (!fused) {
      sm90::HeadsArgs h{};
      h.num_groups = 3;
      h.groups[0] = group(qkv.get(), s.heads, steps_.q_norm ? q_norm_.get() : nullptr, kQEps, steps_.rotary);
      h.groups[1] =
          group(qkv.get() + keys_at, s.key_heads, steps_.k_norm ? k_norm_.get() : nullptr, kKEps, steps_.rotary);
      h.groups[2] = group(qkv.get() + values_at, s.key_heads, nullptr, 0, false);
      set_pages(h.groups[1], keys.get(), kKeyScale);
      set_pages(h.groups[2], values.get(), p_.value_scale());
      h.rows = p_.sequences().rows();
      h.cosine = cosine_.get();
      h.sine = sine_.get();
      h.kv_slots = slots.get();
      h.block_size = p_.block_size();
      sm90::launch_heads(h, gpu_.queue->stream(), true);
    }
    Result r;
    r.out = p_.run(way, -1, 0, 0, [&](AttentionArgs& a) {
      a.q = {qkv.get(), stride_, false};
      a.keys = keys.get();
      a.values = values.get();
      if (!fused) return;
      sm90::ProjectedHeads& h = a.projected;
      h.keys = qkv.get() + keys_at;
      h.values = qkv.get() + values_at;
      if (steps_.q_norm) h.q_norm = q_norm_.get();
      if (steps_.k_norm) h.k_norm = k_norm_.get();
      h.q_eps = kQEps;
      h.k_eps = kKEps;
      if (steps_.rotary) h.cosine = cosine_.get(), h.sine = sine_.get();
      h.kv_slots = slots.get();
      h.key_pages = keys.get();
      h.value_pages = values.get();
      h.key_scale = kKeyScale;
    });
    r.keys = gpu_.download(keys, old_keys_.size());
    r.values = gpu_.download(values, old_values_.size());
    return r;
  }
  void do_not_store() { std::fill(slots_.begin(), slots_.end(), -1); }
  const std::vector<uint8_t>& old_keys() const { return old_keys_; }
  const std::vector<uint8_t>& old_values() const { return old_values_; }

 private:
  static constexpr float kQEps = 1e-6f, kKEps = 1e-3f, kKeyScale = 0.07f;

  sm90::HeadGroup group(bf16_t* x, int heads, const float* norm, float eps, bool rotary) const {
    sm90::HeadGroup g{};
    g.x = {x, stride_, false};
    g.heads = heads;
    g.dim = p_.shape().key_width;
    g.norm = norm;
    g.norm_dim = norm == nullptr ? 0 : g.dim;
    g.eps = eps;
    g.half = rotary ? g.dim / 2 : 0;
    return g;
  }
  void set_pages(sm90::HeadGroup& g, void* pages, float scale) const {
    g.pages = pages;
    g.e4m3 = p_.e4m3();
    g.scale = scale;
  }

  const Gpu& gpu_;
  const Problem& p_;
  Steps steps_;
  int64_t stride_;
  std::vector<bf16_t> qkv_;
  std::vector<int32_t> slots_;
  std::shared_ptr<float> q_norm_, k_norm_, cosine_, sine_;
  std::vector<uint8_t> old_keys_, old_values_;
};

void check_ways(const Gpu& gpu, const Problem& p, Steps steps, const std::vector<Way>& ways) {
  const Projected projected(gpu, p, steps);
  for (const Way& way : ways) {
    const Result apart = projected.run(way, false), fused = projected.run(way, true);
    SCOPED_TRACE(testing::Message() << way.multiprocessors << " multiprocessors, " << way.token_blocks << " blocks, "
                                    << p.splits() << " parts, clusters of " << p.clusters() << ", row_invariant "
                                    << way.row_invariant << ", norms " << steps.q_norm << steps.k_norm << ", rotary "
                                    << steps.rotary << ", e4m3 " << p.e4m3());
    ASSERT_EQ(fused.out, apart.out);
    ASSERT_TRUE(fused.keys == apart.keys) << "pages of keys";
    ASSERT_TRUE(fused.values == apart.values) << "pages of values";
  }
}

// Blocks of one item and of many, parts that the second kernel folds, and clusters.
std::vector<Way> ways() {
  std::vector<Way> all;
  for (const bool row_invariant : {true, false})
    for (const int multiprocessors : {1, 132, 1000})
      all.push_back(
          {.multiprocessors = multiprocessors, .row_invariant = row_invariant, .slack = 1 + multiprocessors / 1000});
  for (const int64_t blocks : {int64_t{1}, int64_t{5}, int64_t{4096}})
    all.push_back({.multiprocessors = blocks == 5 ? 132 : 1, .token_blocks = blocks, .token_tiles = 3});
  return all;
}

constexpr int kContexts[] = {0, 1, 63, 64, 65, 127, 1000, 8191};

// Groups of 1, 4, 5, 8 and 16 query heads.
TEST(ProjectedHeads, OfOneSequence) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const AttentionShape& shape : {AttentionShape{2, 2, 128, 128},
                                      {8, 2, 128, 128},
                                      {32, 4, 128, 128},
                                      {16, 1, 128, 128},
                                      {8, 2, 64, 64},
                                      {5, 1, 64, 64},
                                      {16, 1, 64, 64}})
    for (const int context : kContexts)
      for (const bool e4m3 : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.key_width << ", " << shape.key_heads
                                        << " key heads, context " << context);
        // Blocks of 48 are not whole tiles: each position is looked up.
        const Problem p(gpu, shape, {{{context, 1}}}, random()() % 4 == 0 ? 48 : 64, 0, 1, e4m3);
        const Steps some{random()() % 2 == 0, random()() % 2 == 0, random()() % 2 == 0};
        for (const Steps& steps : {kAllSteps, kNoSteps, some}) {
          check_ways(gpu, p, steps, ways());
          if (testing::Test::HasFailure()) return;
        }
      }
}

TEST(ProjectedHeads, OfManySequences) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const AttentionShape& shape :
       {AttentionShape{32, 4, 128, 128}, {32, 2, 128, 128}, {4, 4, 128, 128}, {8, 2, 64, 64}})
    for (const int count : {2, 3, 8, 33, 257})
      for (const bool e4m3 : {false, true}) {
        SCOPED_TRACE(testing::Message() << shape.heads << " heads of " << shape.key_width << ", " << shape.key_heads
                                        << " key heads, " << count << " sequences");
        Sequences sequences;
        for (int i = 0; i < count; ++i) {
          const int context = kContexts[random()() % (count > 8 ? 6 : 7)];
          sequences.each.emplace_back(i == 1 && count < 33 ? 8191 : i == 2 ? 1000 : context, 1);
        }
        const Problem p(gpu, shape, sequences, 64, 0, 1, e4m3);
        for (const Steps& steps : {kAllSteps, kNoSteps}) {
          check_ways(gpu, p, steps, ways());
          if (testing::Test::HasFailure()) return;
        }
      }
}

TEST(ProjectedHeads, RowsThatAreNotStoredAreAttended) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  const Gpu gpu;
  sm90::allow_attention();
  for (const bool e4m3 : {false, true}) {
    const Problem p(gpu, {32, 4, 128, 128}, {{{70, 1}, {0, 1}, {1000, 1}}}, 64, 0, 1, e4m3);
    Projected projected(gpu, p, kAllSteps);
    for (const Way& way : ways()) {
      Projected apart = projected;
      apart.do_not_store();
      const Result stored = projected.run(way, true), not_stored = apart.run(way, true);
      ASSERT_EQ(not_stored.out, stored.out);
      ASSERT_TRUE(not_stored.keys == apart.old_keys() && not_stored.values == apart.old_values());
    }
  }
}

}  // namespace
}  // namespace sluice::test
