// SPDX-License-Identifier: Apache-2.0
// Output heads in a number format of their own: matrices, and embeddings that serve as heads.
#include "base/math.h"
#include "io/file.h"
#include "io/safetensors_writer.h"
#include "model/calibrate.h"
#include "model/memory_fit.h"
#include "tests/io/temp_dir.h"
#include "tests/model/fixture.h"
#include "tests/support/reference_moe.h"
#include "weights/online.h"
#include "weights/requantize.h"
#include "weights/save.h"

namespace sluice::model {
namespace {

using weights::ModuleFormat;

const std::vector<int32_t> kTokens{1, 5, 9, 200, 33, 4, 8, 77, 3, 3, 150, 12};

struct HeadCase {
  const char* model;
  bool tied;
};

std::unique_ptr<Model> load(const LoadOptions& o) {
  Context ctx = test_context();
  return load_model(ctx, o);
}

LoadOptions options(const std::filesystem::path& folder, const std::string& experts, const std::string& rest,
                    const std::string& head) {
  LoadOptions o;
  o.path = folder;
  o.quantization = experts;
  o.quantization_rest = rest;
  o.quantization_head = head;
  return o;
}

// A copy of a fixture whose head is a matrix, or is taken away so that the embedding serves.
class HeadFormats : public testing::TestWithParam<HeadCase> {
 protected:
  void SetUp() override {
    const std::filesystem::path from = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/" + GetParam().model;
    const io::Checkpoint checkpoint = io::Checkpoint::open(from);
    std::string config = io::read_file(from / "config.json", 1 << 20);
    std::map<std::string, Tensor> tensors;
    for (const std::string& name : checkpoint.names()) {
      tensors[name] = checkpoint.tensor(name).clone();
      if (name.ends_with("embed_tokens.weight") || name.ends_with("embeddings.weight")) embedding_ = name;
    }
    head_ = tensors.at("lm_head.weight");
    if (GetParam().tied) {
      const std::string untied = "\"tie_word_embeddings\": false";
      const size_t at = config.find(untied);
      ASSERT_NE(at, std::string::npos);
      config.replace(at, untied.size(), "\"tie_word_embeddings\": true");
      tensors.erase("lm_head.weight");
      head_ = tensors.at(embedding_);
    } else if (std::string(GetParam().model) == "deepseek-v3") {  // the draft's own copy, here another matrix
      Tensor& own = tensors["model.layers.4.shared_head.head.weight"] = head_.clone();
      for (int64_t i = 0; i < own.elements(); ++i) own.as<uint16_t>()[i] ^= 0x8000;
    }
    io::SafetensorsWriter(folder_ / "model.safetensors").write_all({tensors.begin(), tensors.end()});
    folder_.put("config.json", config);
  }

  // Values of the head in `format`, in rows of padded_width(). Columns of zeros change no scale, and the reference
  // reads whole groups.
  std::vector<double> values(format::Format format) {
    Context ctx = test_context();
    weights::QuantTensor w;
    w.experts = 1, w.rows = head_.dim(0), w.cols = padded_width();
    w.codes = Tensor(DType::bf16, {1, w.rows, w.cols}).zero();
    for (int64_t r = 0; r < w.rows; ++r)
      std::copy_n(head_.as<uint16_t>() + r * head_.dim(1), head_.dim(1), w.codes.as<uint16_t>() + r * w.cols);
    return test::reference_decode(weights::quantize(ctx, format, w));
  }
  int64_t padded_width() const { return round_up<int64_t>(head_.dim(1), 128); }

  io::TempDir folder_, out_;
  std::string embedding_;
  Tensor head_;
};

INSTANTIATE_TEST_SUITE_P(Fixtures, HeadFormats,
                         testing::Values(HeadCase{"qwen3-moe", false}, HeadCase{"nemotron-h", false},
                                         HeadCase{"deepseek-v3", false}, HeadCase{"qwen3-moe", true},
                                         HeadCase{"nemotron-h", true}, HeadCase{"deepseek-v3", true}),
                         [](const auto& test) {
                           return std::string(test.param.model).substr(0, 5) + (test.param.tied ? "_tied" : "");
                         });

// Rows of hidden states as the head reads them: in the type of the run, then in the input format.
std::vector<double> inputs_of_head(const Tensor& hidden, format::InputFormat inputs, double input_scale) {
  const std::vector<float> rows =
      to_floats({hidden.data(), hidden.dtype(), hidden.dim(0), hidden.dim(1), hidden.dim(1)});
  std::vector<test::Bounded> bounded;
  for (const float v : rows) bounded.push_back({v, 0});
  for (int64_t r = 0; r < hidden.dim(0); ++r)
    test::round_bounded_row(inputs, bounded.data() + r * hidden.dim(1), hidden.dim(1), input_scale);
  std::vector<double> out;
  for (const test::Bounded& b : bounded) out.push_back(b.value);
  return out;
}

TEST_P(HeadFormats, LogitsAreTheProductWithTheDequantisedHead) {
  const int64_t vocab = head_.dim(0), width = head_.dim(1);
  Context ctx = test_context();
  const auto exact = load(options(folder_.path(), "", "", ""));
  const auto without = calibrate(ctx, *exact, kTokens, false, 64), amax = calibrate(ctx, *exact, kTokens, true, 64);
  EXPECT_FALSE(without.contains("lm_head"));
  ASSERT_TRUE(amax.contains("lm_head"));
  for (const std::string_view name : weights::online_formats())
    for (const DType dtype : {DType::bf16, DType::f32}) {
      SCOPED_TRACE(fmt::format("{} {}", name, to_string(dtype)));
      LoadOptions o = options(folder_.path(), "bf16", "", std::string(name));
      o.dtype = dtype;
      o.amax = amax;
      const auto model = load(o);
      TestRunner runner(*model);
      const std::vector<float> logits = runner.forward({{0, kTokens}});
      const ModuleFormat format = weights::parse_online_policy("bf16", "", name).head;
      // NVFP4's static scale: the largest input is the largest product of scale and code, 448 * 6.
      const std::vector<double> x =
          inputs_of_head(runner.hidden(), format.inputs, test::to_f32(double{amax.at("lm_head")} / (448.0 * 6.0)));
      const std::vector<double> w = values(format.weights);
      for (size_t r = 0; r < kTokens.size(); ++r)
        for (int64_t n = 0; n < vocab; ++n) {
          double sum = 0, size = 0;
          for (int64_t k = 0; k < width; ++k) {
            const double product = x[r * static_cast<size_t>(width) + static_cast<size_t>(k)] *
                                   w[static_cast<size_t>(n * padded_width() + k)];
            sum += product;
            size += std::abs(product);
          }
          ASSERT_NEAR(logits[r * static_cast<size_t>(vocab) + static_cast<size_t>(n)], sum,
                      size * test::Arithmetic{}.sum_error(static_cast<double>(width)))
              << "row " << r << ", token " << n;
        }
    }
}

TEST_P(HeadFormats, AWrittenCheckpointGivesTheSameBits) {
  Context ctx = test_context();
  const io::Checkpoint source = io::Checkpoint::open(folder_.path());
  struct Formats {
    std::string experts, rest, head;
  };
  // Experts of these widths fill no groups of 32.
  for (const Formats& f : {Formats{"bf16", "", "mxfp8"},
                           {"bf16", "mxfp8", "mxfp8"},
                           {"bf16", "", "fp8_block"},
                           {"fp8_channel", "", "fp8_channel"},
                           {"fp8_channel", "mxfp8", "fp8"},
                           {"fp8_channel", "mxfp8", "mxfp4"}}) {
    SCOPED_TRACE(fmt::format("{} {} {}", f.experts, f.rest, f.head));
    const auto to = out_.path() / fmt::format("{}-{}-{}", f.experts, f.rest, f.head);
    save_quantized(ctx, source, to, weights::save_options(f.experts, f.rest, f.head, false, false));
    const LoadOptions while_loading = options(folder_.path(), f.experts, f.rest, f.head);
    const auto online = load(while_loading), plain = load(options(folder_.path(), f.experts, f.rest, "")),
               written = load(options(to, "", "", ""));
    TestRunner a(*online), b(*written), c(*plain);
    const auto logits = a.forward({{0, kTokens}});
    EXPECT_EQ(b.forward({{0, kTokens}}), logits);
    EXPECT_NE(c.forward({{0, kTokens}}), logits);
    EXPECT_EQ(written->info().weight_bytes, online->info().weight_bytes);
    EXPECT_LT(online->info().weight_bytes, plain->info().weight_bytes);
    const io::Checkpoint got = io::Checkpoint::open(to);
    EXPECT_FALSE(got.config().boolean("tie_word_embeddings"));
    const Tensor rows = got.tensor(embedding_), before = source.tensor(embedding_);
    EXPECT_EQ(rows.dtype(), DType::bf16);
    EXPECT_EQ(std::memcmp(rows.data(), before.data(), static_cast<size_t>(before.bytes())), 0);
    // The file has the sizes that are told before loading, and few bytes of configuration besides.
    EXPECT_EQ(weight_bytes(source, while_loading), got.bytes());
    if (!online->info().has_draft) continue;
    const auto drafts = a.draft({{0, kTokens}}, a.hidden());
    EXPECT_EQ(b.draft({{0, kTokens}}, b.hidden()), drafts);
    EXPECT_NE(c.draft({{0, kTokens}}, c.hidden()), drafts);
  }
}

TEST_P(HeadFormats, StaysInBfloat16UnlessAsked) {
  const auto logits = [&](const std::string& head) {
    return TestRunner(*load(options(folder_.path(), "fp8", "", head))).forward({{0, kTokens}});
  };
  EXPECT_EQ(logits(""), logits("bf16"));
  EXPECT_NE(logits(""), logits("mxfp8"));
  const auto refusal = [&](const std::string& quantization, const std::string& head) -> std::string {
    try {
      load(options(folder_.path(), quantization, "", head));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
      return e.what();
    }
    return "";
  };
  EXPECT_EQ(refusal("", "mxfp8"),
            "quantization_head is \"mxfp8\", but quantization is not given; it names the format of the experts");
  EXPECT_NE(refusal("mxfp8", "q8_0").find("quantization_head is \"q8_0\"; accepted: bf16, fp8, "), std::string::npos);
}

}  // namespace
}  // namespace sluice::model
