// SPDX-License-Identifier: Apache-2.0
// Models whose cached keys and values are e4m3 codes of half the size.
#include <filesystem>

#include "io/safetensors_writer.h"
#include "io/tokenizer_json.h"
#include "model/perplexity.h"
#include "tests/io/temp_dir.h"
#include "tests/model/fixture.h"
#include "text/tokenizer.h"

namespace sluice::model {
namespace {

std::string folder_of(const std::string& name) { return std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + name; }

LoadOptions options(const std::string& folder, DType dtype, std::optional<DType> kv_dtype = DType::e4m3) {
  LoadOptions o;
  o.path = folder;
  o.dtype = dtype;
  o.kv_dtype = kv_dtype;
  return o;
}
std::unique_ptr<Model> load(const LoadOptions& o) {
  Context ctx = test_context();
  return load_model(ctx, o);
}

const std::vector<int32_t> kTokens{1, 5, 9, 200, 33, 4, 8, 77, 3, 3, 150, 12};

std::vector<float> logits(const Model& model) { return TestRunner(model).forward({{0, kTokens}}); }

// |a - b| / |b| over all elements.
double relative(const std::vector<float>& a, const std::vector<float>& b) {
  double difference = 0, norm = 0;
  for (size_t i = 0; i < b.size(); ++i) {
    difference += std::pow(static_cast<double>(a[i]) - b[i], 2);
    norm += std::pow(static_cast<double>(b[i]), 2);
  }
  return std::sqrt(difference / norm);
}

void expect_refused(const LoadOptions& o, ErrorCode code, const std::string& words) {
  try {
    load(o);
    ADD_FAILURE() << words;
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_NE(std::string(error.what()).find(words), std::string::npos) << error.what();
  }
}

class KvDtype : public testing::TestWithParam<const char*> {};
INSTANTIATE_TEST_SUITE_P(Fixtures, KvDtype, testing::Values("qwen3-moe", "nemotron-h"),
                         [](const auto& test) { return std::string(test.param).substr(0, 5); });

TEST_P(KvDtype, IsThatOfTheRunOrCodes) {
  for (const DType d : {DType::f32, DType::bf16}) {
    const auto plain = load(options(folder_of(GetParam()), d, {})), same = load(options(folder_of(GetParam()), d, d)),
               codes = load(options(folder_of(GetParam()), d));
    EXPECT_EQ(codes->cache_shape().bytes_per_token() * bytes_of(d), plain->cache_shape().bytes_per_token());
    EXPECT_EQ(codes->info().dtype, d);
    EXPECT_EQ(codes->info().kv_dtype, DType::e4m3);
    EXPECT_EQ(plain->info().kv_dtype, d);
    const auto exact = logits(*plain), rounded = logits(*codes);
    EXPECT_EQ(logits(*same), exact);
    // Three bits of mantissa: each key and value is off by 2^-5 of itself in the mean.
    EXPECT_GT(relative(rounded, exact), 0);
    EXPECT_LT(relative(rounded, exact), 0x1p-4);
  }
}

// New rows are attended to as they are stored, so how a sequence is cut does not matter.
TEST_P(KvDtype, CutsDoNotShow) {
  for (const DType d : {DType::f32, DType::bf16}) {
    const auto model = load(options(folder_of(GetParam()), d));
    const auto whole = logits(*model);
    TestRunner runner(*model);
    std::vector<float> pieces;
    for (size_t at = 0; at < kTokens.size(); at += at == 0 ? 5 : 1) {
      const auto piece = runner.forward({{0, part(kTokens, at, at == 0 ? 5 : 1), static_cast<int64_t>(at)}});
      pieces.insert(pieces.end(), piece.begin(), piece.end());
    }
    EXPECT_EQ(pieces, whole);
  }
}

// The checkpoint's tensors and `scales`, as a checkpoint of its own.
void write_with_scales(const std::string& folder, const io::TempDir& to,
                       const std::vector<std::pair<std::string, Tensor>>& scales) {
  const io::Checkpoint checkpoint = io::Checkpoint::open(folder);
  std::vector<std::pair<std::string, Tensor>> all = scales;
  for (const std::string& name : checkpoint.names()) all.emplace_back(name, checkpoint.tensor(name));
  std::filesystem::copy_file(folder + "/config.json", to / "config.json",
                             std::filesystem::copy_options::overwrite_existing);
  io::SafetensorsWriter(to / "model.safetensors").write_all(all);
}
Tensor scale_of(float value, Shape shape) {
  Tensor t(DType::f32, std::move(shape));
  std::fill_n(t.as<float>(), t.elements(), value);
  return t;
}

TEST(KvDtypeScales, AreTheCheckpoints) {
  const std::string folder = folder_of("qwen3-moe");
  const auto plain = logits(*load(options(folder, DType::f32, {})));
  const auto with = [&](const std::string& key_name, const std::string& value_name, float scale) {
    io::TempDir changed;
    std::vector<std::pair<std::string, Tensor>> scales;
    for (int64_t layer = 0; layer < load(options(folder, DType::f32))->info().layers; ++layer)
      for (const std::string& name : {key_name, value_name})
        scales.emplace_back(fmt::format("model.layers.{}.self_attn.{}", layer, name), scale_of(scale, {1}));
    write_with_scales(folder, changed, scales);
    EXPECT_EQ(logits(*load(options(changed.path().string(), DType::f32, {}))), plain);  // of no use to other caches
    return relative(logits(*load(options(changed.path().string(), DType::f32))), plain);
  };
  const double fine = with("k_proj.k_scale", "v_proj.v_scale", 0.02f), other = with("k_scale", "v_scale", 0.02f);
  EXPECT_EQ(fine, other);
  EXPECT_LT(fine, 0x1p-4);
  EXPECT_GT(with("k_proj.k_scale", "v_proj.v_scale", 1e4f), 0x1p-4);  // every code is zero
}

TEST(KvDtypeScales, ThatAreNoPositiveNumberAreRefused) {
  const std::string folder = folder_of("qwen3-moe"), name = "model.layers.1.self_attn.v_proj.v_scale";
  for (const auto& [scale, words] : {std::pair{scale_of(0, {1}), "is 0; accepted: one positive number"},
                                     {scale_of(-1, {}), "is -1; accepted: one positive number"},
                                     {scale_of(INFINITY, {1}), "is inf; accepted: one positive number"},
                                     {scale_of(1, {2}), "is 2 numbers; accepted: one positive number"}}) {
    io::TempDir changed;
    write_with_scales(folder, changed, {{name, scale}});
    expect_refused(options(changed.path().string(), DType::bf16), ErrorCode::bad_file, words);
  }
}

TEST(KvDtypeModel, IsRefusedWhereThereIsNone) {
  expect_refused(options(folder_of("deepseek-v3"), DType::bf16), ErrorCode::unsupported, "latent attention");
  expect_refused(options(folder_of("qwen3-moe"), DType::f32, DType::bf16), ErrorCode::invalid_argument,
                 "the cache's dtype is bfloat16 with dtype float32; accepted: float32, float8_e4m3fn");
}

// The figures of whole texts are docs/numerics.md's.
TEST(KvDtypeModel, PerplexityIsNearThatOfBfloat16) {
  const std::string folder = std::string(SLUICE_SOURCE_DIR) + "/models/tiny-nemotron-h";
  std::ifstream in(folder + "/valid.txt");
  const std::string text{std::istreambuf_iterator<char>(in), {}};
  const text::Tokenizer tokenizer(io::read_tokenizer(folder));
  auto ids = tokenizer.encode(text.substr(0, 6000));
  Context ctx = test_context();
  const double exact = perplexity(ctx, *load(options(folder, DType::bf16, {})), ids).value(),
               codes = perplexity(ctx, *load(options(folder, DType::bf16)), ids).value();
  std::printf("    %zu tokens: bfloat16 %.4f, e4m3 %.4f\n", ids.size(), exact, codes);
  EXPECT_NE(codes, exact);
  EXPECT_NEAR(codes, exact, 0.01 * exact);
}

}  // namespace
}  // namespace sluice::model
