// SPDX-License-Identifier: Apache-2.0
// One fused mixture-of-experts layer from C++: eight experts of BF16 weights, four tokens, two experts each.
#include <bit>
#include <cstdio>
#include <random>
#include <vector>

#include "sluice/sluice.hpp"

namespace {
constexpr int64_t kTokens = 4, kExperts = 8, kTopK = 2, kHidden = 64, kInter = 96;

// BF16 is the upper half of a float.
std::vector<uint16_t> random_bf16(int64_t count, float scale) {
  static std::mt19937 random(1);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> values(static_cast<size_t>(count));
  for (auto& v : values) {
    v = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  }
  return values;
}
}  // namespace

int main() {
  const std::string spec = "experts=8 top_k=2 hidden=64 inter=96 weights=bf16 act=swiglu routing=renormalize";
  std::printf("%s", sluice::explain(spec).c_str());

  const auto up = random_bf16(kExperts * kInter * kHidden, 0.1f);
  const auto gate = random_bf16(kExperts * kInter * kHidden, 0.1f);
  const auto down = random_bf16(kExperts * kHidden * kInter, 0.1f);
  auto weights = SLUICE_INIT(sluice_moe_weights);
  weights.up.codes = up.data();
  weights.gate.codes = gate.data();
  weights.down.codes = down.data();

  sluice::Context context;
  const sluice::MoeLayer layer(context, spec, weights);

  const auto hidden = random_bf16(kTokens * kHidden, 1.0f), logits = random_bf16(kTokens * kExperts, 1.0f);
  std::vector<uint16_t> output(kTokens * kHidden);
  std::vector<int32_t> experts(kTokens * kTopK);
  auto args = SLUICE_INIT(sluice_moe_args);
  args.tokens = kTokens;
  args.hidden = hidden.data();
  args.logits = logits.data();
  args.logits_dtype = SLUICE_BF16;
  args.output = output.data();
  args.chosen_ids = experts.data();
  layer.run(args);
  for (int64_t t = 0; t < kTokens; ++t)
    std::printf("token %d: experts %d and %d\n", static_cast<int>(t), experts[t * kTopK], experts[t * kTopK + 1]);
}
