// SPDX-License-Identifier: Apache-2.0
// Every compiled tile against the double-precision reference: all activations, input formats, numbers of rows and
// splits.
#include <map>

#include "kernels/sm90/batch_rows/launch.h"
#include "kernels/sm90/grouped_gemm/launch.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {
namespace {

using format::Format;

// Weight and input formats that run on an operand, and whether FP8 sums are float32.
struct Formats {
  Format weights;
  format::InputFormat inputs;
  bool f32_sums;
};
std::vector<Formats> formats_of(sm90::WeightOperand op) {
  std::vector<Formats> out;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [x, input_name] : format::kInputFormats)
      for (bool f32_sums : {false, true}) {
        MoeSpec s;
        s.experts = 4, s.top_k = 2, s.hidden = s.inter = 128;
        s.weights = f, s.inputs = x, s.fp8_f32_sums = f32_sums;
        if (!format::fits(f, x) || (f32_sums && !format::is_fp8(f)) || !sm90::supports_spec(s)) continue;
        if (sm90::gemm_problem(s, 1).operand == op) out.push_back({f, x, f32_sums});
      }
  return out;
}

// Needs no device: nothing is launched.
TEST(Tiles, ATileThatIsNotCompiledIsRefused) {
  const sm90::Instance none{sm90::WeightOperand::bf16, 7, 7, 1, 1, 1};
  try {
    sm90::launch_grouped_gemm({}, none, 1, nullptr, false);
    FAIL() << "launched " << none.name();
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::internal);
    EXPECT_NE(std::string(e.what()).find(none.name()), std::string::npos) << e.what();
  }
}

TEST(Tiles, ABatchOfRowsInATileThatIsNotCompiledIsRefused) {
  sm90::BatchRowsArgs args{};
  args.rows = 1;
  const auto refusal = [&](sm90::WeightOperand operand, const sm90::BatchRowsChoice& choice) -> std::string {
    try {
      sm90::launch_batch_rows(args, operand, choice, 1, nullptr, false);
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::internal);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal(sm90::WeightOperand::bf16, {.tile = 7}),
            "no product of a batch of rows is compiled for bf16, tiles of 7 rows, 1 blocks per multiprocessor");
  EXPECT_NE(refusal(sm90::WeightOperand::nvfp4, {.tile = 8, .chain = true}).find("in chains"), std::string::npos);
  EXPECT_NE(refusal(sm90::WeightOperand::fp8_block_f32, {.tile = 256}).find("for fp8_block_f32"), std::string::npos);
}

Case case_of(const Formats& f, int64_t hidden, int64_t inter, int64_t tokens) {
  Case c;
  c.spec.experts = 4;
  c.spec.top_k = 2;
  c.spec.hidden = hidden;
  c.spec.inter = inter;
  c.spec.weights = f.weights;
  c.spec.inputs = f.inputs;
  c.spec.fp8_f32_sums = f.f32_sums;
  c.tokens = tokens;
  return c;
}

void check_case(const Case& c, const sm90::GemmForce& force, std::mt19937& rng, Excursion& all) {
  SCOPED_TRACE(c.name() + " on " + force.instance);
  const Problem p = make_problem(c, rng);
  DeviceProblem d(p);
  const auto moe = prepared(p);
  const auto got = d.run(*moe, force);
  Excursion here;
  here.add(reference_of(p, d), got);
  EXPECT_LE(here.worst, 1);
  all.worst = std::max(all.worst, here.worst);
  all.values += here.values;
  all.equal += here.equal;
  EXPECT_EQ(got, d.run(*moe, force, false)) << "without programmatic dependent launch";
  d.call.follows_own = false;
  EXPECT_EQ(got, d.run(*moe, force)) << "without a warm-up";
}

class Tiles : public ::testing::TestWithParam<size_t> {
 protected:
  const sm90::Instance& tile() const { return sm90::instances()[GetParam()]; }
  Excursion all_;
};

TEST_P(Tiles, EveryActivation) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const Formats& f : formats_of(tile().operand))
    for (const auto& [act, name] : activation::kActivations) {
      Case c = case_of(f, 160, 96, 7);
      c.spec.act = act;
      check_case(c, {tile().name(), {0, 0}}, rng, all_);
      if (HasFailure()) return;
    }
  all_.print((tile().name() + " activations").c_str());
}

// One row, a full tile, one row more than a tile, several tiles.
TEST_P(Tiles, SeveralTilesPerExpert) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const Formats& f : formats_of(tile().operand))
    for (int64_t tokens : {1, tile().max_n, tile().max_n + 1, 5 * tile().max_n / 2}) {
      Case c = case_of(f, 96, 64, tokens);
      c.spec.experts = 2;
      c.spec.top_k = 1;
      c.choice = Choice::unpacked;
      c.pattern = Pattern::one;
      c.spec.routed = true;
      check_case(c, {tile().name(), {0, 0}}, rng, all_);
      if (HasFailure()) return;
    }
  all_.print((tile().name() + " tiles per expert").c_str());
}

TEST_P(Tiles, Splits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (const Formats& f : formats_of(tile().operand))
    for (const std::pair<int, int>& splits : {std::pair{2, 1}, std::pair{1, 3}, std::pair{5, 4}})
      for (const auto act : {activation::Activation::swiglu, activation::Activation::relu2}) {
        Case c = case_of(f, 704, 544, 5);
        c.spec.act = act;
        check_case(c, {tile().name(), {splits.first, splits.second}}, rng, all_);
        if (HasFailure()) return;
      }
  all_.print((tile().name() + " splits").c_str());
}

// What `deterministic` relies on: the tile may follow the number of tokens because a row has the same bits in every
// tile. Both products, and every rounding between them.
TEST(Tiles, SumsOfAllTilesAreTheSameBits) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  std::map<sm90::WeightOperand, std::vector<std::string>> tiles;
  for (const sm90::Instance& i : sm90::instances())
    if (sm90::sums_alike(i)) tiles[i.operand].push_back(i.name());
  for (const auto& [operand, names] : tiles)
    for (const Formats& f : formats_of(operand))
      for (const auto act :
           {activation::Activation::swiglu, activation::Activation::relu2, activation::Activation::gelu}) {
        Case c = case_of(f, 1504, 544, 1 + static_cast<int64_t>(rng() % 600));
        c.spec.act = act;
        SCOPED_TRACE(c.name());
        const Problem p = make_problem(c, rng);
        DeviceProblem d(p);
        const auto moe = prepared(p);
        const auto first = d.run(*moe, {names[0], {1, 1}});
        for (const std::string& name : names)
          EXPECT_EQ(d.run(*moe, {name, {1, 1}}), first) << name << " and " << names[0];
      }
}

INSTANTIATE_TEST_SUITE_P(Sm90, Tiles, ::testing::Range(size_t{0}, sm90::instances().size()),
                         [](const auto& param) { return sm90::instances()[param.param].name(); });

}  // namespace
}  // namespace sluice::test
