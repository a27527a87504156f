// SPDX-License-Identifier: Apache-2.0
// `sluice moe run` without the command line: cases written byte by byte here, results read back byte by byte.
#include "moe/case_file.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "moe/backends.h"
#include "tests/support/cases.h"
#include "tests/support/golden.h"
#include "tests/support/random.h"
#include "tests/support/reference_moe.h"

namespace sluice::test {
namespace {

using format::Format;
using format::InputFormat;

struct Entry {
  std::string dtype;  // as safetensors writes it
  Shape shape;
  std::string bytes;
};
using File = std::map<std::string, Entry>;

template <class T>
Entry entry(const std::string& dtype, Shape shape, const std::vector<T>& values) {
  return {dtype, std::move(shape),
          std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T))};
}
Entry f32(Shape shape, const std::vector<float>& values) { return entry("F32", std::move(shape), values); }
Entry bf16(Shape shape, const std::vector<float>& values) {
  std::vector<uint16_t> bits;
  for (float v : values) bits.push_back(float_to_bf16(v));
  return entry("BF16", std::move(shape), bits);
}

class CaseFile : public ::testing::Test {
 protected:
  CaseFile() {
    folder_ = std::filesystem::temp_directory_path() / ("sluice_case_" + std::to_string(::getpid()));
    std::filesystem::create_directories(folder_);
  }
  ~CaseFile() override { std::filesystem::remove_all(folder_); }

  std::string write(const File& file, const std::map<std::string, std::string>& metadata) const {
    nlohmann::json header{{"__metadata__", metadata}};
    std::string data;
    for (const auto& [name, e] : file) {
      header[name] = {
          {"dtype", e.dtype}, {"shape", e.shape}, {"data_offsets", {data.size(), data.size() + e.bytes.size()}}};
      data += e.bytes;
    }
    std::string text = header.dump();
    text.resize((text.size() + 7) / 8 * 8, ' ');
    const uint64_t size = text.size();
    const std::string path = (folder_ / "case.safetensors").string();
    std::ofstream out(path, std::ios::binary);
    out.write(reinterpret_cast<const char*>(&size), 8);
    out << text << data;
    return path;
  }

  GoldenFile run(const std::string& path, std::string_view backend = "auto", bool trace = true) {
    const std::string out = (folder_ / "out.safetensors").string();
    moe::run_case(ctx_, moe::read_case(io::SafetensorsFile::open(path)), backend, trace, out);
    return GoldenFile(out);
  }

  std::string refusal(const File& file, const std::map<std::string, std::string>& metadata) {
    try {
      moe::read_case(io::SafetensorsFile::open(write(file, metadata)));
    } catch (const Error& e) {
      EXPECT_EQ(e.code(), ErrorCode::bad_file);
      EXPECT_NE(std::string(e.what()).find("case.safetensors"), std::string::npos) << e.what();
      return e.what();
    }
    return "(accepted)";
  }

  std::filesystem::path folder_;
  ThreadPool pool_{1};
  Context ctx_{pool_};
};

std::vector<float> floats_of(const GoldenFile& f, const std::string& name) {
  if (f.dtype(name) == "F32") return f.values<float>(name);
  std::vector<float> out;
  for (uint16_t b : f.values<uint16_t>(name)) out.push_back(bf16_to_float(b));
  return out;
}

// Two tokens, two experts, worked out by hand. The same numbers stand in docs/reference.md.
File worked_example() {
  return {{"hidden_states", bf16({2, 2}, {1, 2, -1, 3})},
          {"gemm1_weights", bf16({2, 1, 2}, {1, 1, 2, -1})},  // expert 0: x0 + x1; expert 1: 2 x0 - x1
          {"gemm2_weights", bf16({2, 2, 1}, {1, 2, -1, 0.5f})},
          {"topk_ids", entry<int32_t>("I32", {2, 2}, {0, 1, 1, 0})},
          {"topk_weights", f32({2, 2}, {0.5f, 0.25f, 1, 2})}};
}
const std::map<std::string, std::string> kWorkedMetadata{{"spec", "experts=2 top_k=2 hidden=2 inter=1 act=relu2"}};

TEST_F(CaseFile, WorkedExample) {
  const GoldenFile out = run(write(worked_example(), kWorkedMetadata), "reference");
  // Token 0: expert 0 sees 3 -> 9 -> (9, 18), expert 1 sees 0. Token 1: expert 1 sees -5 -> 0, expert 0 sees 2 -> 4.
  EXPECT_EQ(floats_of(out, "output"), (std::vector<float>{4.5f, 9, 8, 16}));
  EXPECT_EQ(out.dtype("output"), "BF16");
  EXPECT_EQ(out.shape("output"), (std::vector<int64_t>{2, 2}));
  EXPECT_EQ(out.values<int32_t>("expert_ids"), (std::vector<int32_t>{0, 1, 1, 0}));
  EXPECT_EQ(floats_of(out, "expert_weights"), (std::vector<float>{0.5f, 0.25f, 1, 2}));
  EXPECT_EQ(floats_of(out, "trace.up"), (std::vector<float>{3, 0, -5, 2}));
  EXPECT_EQ(floats_of(out, "trace.activated"), (std::vector<float>{9, 0, 0, 4}));
  EXPECT_EQ(floats_of(out, "trace.down"), (std::vector<float>{9, 18, 0, 0, 0, 0, 4, 8}));
  EXPECT_FALSE(out.has("trace.gate"));
  EXPECT_EQ(out.metadata("backend"), "reference");
}

TEST_F(CaseFile, PackedIdsAreTheSame) {
  File file = worked_example();
  file.erase("topk_weights");
  file["topk_ids"] = entry<int32_t>("I32", {2, 2}, {0x00003f00, 0x00013e80, 0x00013f80, 0x00004000});
  const GoldenFile out = run(write(file, kWorkedMetadata), "auto", false);
  EXPECT_EQ(floats_of(out, "output"), (std::vector<float>{4.5f, 9, 8, 16}));
  EXPECT_FALSE(out.has("expert_ids"));
}

// --- Every format and order against the reference --------------------------------------------------------------------

Entry raw(const Tensor& t, const std::string& dtype, Shape shape) {
  return {dtype, std::move(shape), std::string(static_cast<const char*>(t.data()), static_cast<size_t>(t.bytes()))};
}

// Rows of two stacks [E, R, ...] in one [E, 2R, ...], in the order of w13_order.
std::string merge(const Tensor& gate, const Tensor& up, int64_t experts, const std::string& order) {
  const auto size = static_cast<size_t>(gate.bytes() / experts);
  const int64_t rows = gate.dim(1);
  std::string out;
  for (int64_t e = 0; e < experts; ++e) {
    const std::string g(static_cast<const char*>(gate.data()) + e * gate.bytes() / experts, size);
    const std::string u(static_cast<const char*>(up.data()) + e * gate.bytes() / experts, size);
    if (order == "gate_up") out += g + u;
    if (order == "up_gate") out += u + g;
    if (order == "interleaved")
      for (int64_t r = 0; r < rows; ++r) {
        const size_t row = size / static_cast<size_t>(rows);
        out += g.substr(static_cast<size_t>(r) * row, row) + u.substr(static_cast<size_t>(r) * row, row);
      }
  }
  return out;
}

void add_stack(File& file, const std::string& gemm, const weights::QuantTensor& first, const weights::QuantTensor* up,
               const std::string& order) {
  const format::FormatInfo f = format::info(first.format);
  const auto doubled = [&](Shape s) {
    if (up) s[1] *= 2;
    return s;
  };
  const auto put = [&](const std::string& name, const std::string& dtype, const Tensor& a, const Tensor* b) {
    file[name] = raw(a, dtype, doubled(a.shape()));
    if (b) file[name].bytes = merge(a, *b, first.experts, order);
  };
  put(gemm + "_weights",
      f.bits == 16  ? "BF16"
      : f.bits == 8 ? "F8_E4M3"
                    : "U8",
      first.codes, up ? &up->codes : nullptr);
  const auto per_expert = [&](const std::string& name, const Tensor& a, const Tensor* b) {  // [E] or [E, 2]
    std::vector<float> values;
    for (int64_t e = 0; e < first.experts; ++e) {
      if (b && order == "up_gate") values.push_back(b->as<float>()[e]);
      values.push_back(a.as<float>()[e]);
      if (b && order != "up_gate") values.push_back(b->as<float>()[e]);
    }
    file[name] = f32(b ? Shape{first.experts, 2} : Shape{first.experts}, values);
  };
  if (first.format == Format::fp8_tensor)
    per_expert(gemm + "_weights_scale", first.scales, up ? &up->scales : nullptr);
  else if (!first.scales.empty())
    put(gemm + "_weights_scale",
        f.scale == format::ScaleType::f32    ? "F32"
        : f.scale == format::ScaleType::e8m0 ? "U8"
                                             : "F8_E4M3",
        first.scales, up ? &up->scales : nullptr);
  if (f.global_scale) per_expert(gemm + "_weights_scale_2", first.global, up ? &up->global : nullptr);
}

File file_of(const Problem& p, const std::string& order) {
  const MoeSpec& s = p.spec;
  File file;
  file["hidden_states"] =
      s.dtype == DType::bf16 ? bf16({p.tokens, s.hidden}, p.hidden) : f32({p.tokens, s.hidden}, p.hidden);
  const auto type = [](const Tensor& t) {
    return t.dtype() == DType::bf16 ? "BF16" : t.dtype() == DType::i32 ? "I32" : "F32";
  };
  const auto copy = [&](const std::string& name, const Tensor& t) {
    if (!t.empty()) file[name] = raw(t, type(t), t.shape());
  };
  copy("routing_logits", p.logits);
  copy("routing_bias", p.bias);
  copy("topk_ids", p.ids);
  copy("topk_weights", p.given_weights);
  add_stack(file, "gemm1", s.gated() ? p.weights.gate : p.weights.up, s.gated() ? &p.weights.up : nullptr, order);
  add_stack(file, "gemm2", p.weights.down, nullptr, order);
  if (format::is_static(s.inputs)) {
    file["gemm1_input_scale"] = f32({}, {p.weights.input_scale1});
    file["gemm2_input_scale"] = f32({1}, {p.weights.input_scale2});
  }
  if (s.bias) {
    file["gemm1_bias"] = raw(p.weights.bias_up, "F32", {s.locals(), s.inter});
    if (s.gated()) {
      file["gemm1_bias"].shape[1] *= 2;
      file["gemm1_bias"].bytes = merge(p.weights.bias_gate, p.weights.bias_up, s.locals(), order);
    }
    copy("gemm2_bias", p.weights.bias_down);
  }
  copy("gemm1_alpha", p.weights.alpha);
  copy("gemm1_beta", p.weights.beta);
  copy("gemm1_clamp_limit", p.weights.limit);
  return file;
}

TEST_F(CaseFile, EveryFormatAndOrderAgainstTheReference) {
  std::mt19937 rng = test::rng();
  for (const auto& [f, name] : format::kFormats)
    for (const std::string act : {"swiglu", "relu2"})
      for (const std::string order : {"gate_up", "up_gate", "interleaved"})
        for (Choice choice : {Choice::bf16_logits, Choice::unpacked, Choice::packed}) {
          if (f == Format::fp8_block && act == "swiglu" && order == "interleaved") continue;
          Case c;
          c.spec = parse_moe_spec("experts=6 top_k=2 hidden=160 inter=96 act=" + act + " weights=" + std::string(name));
          c.spec.bias = true;
          c.spec.act_params = act == "swiglu";
          c.spec.local_offset = 2;
          c.spec.local_experts = 3;
          c.spec.routed = choice != Choice::bf16_logits;
          c.spec.tokens = c.tokens = 4;
          c.choice = choice;
          const Problem p = make_problem(c, rng);
          MoeSpec line = p.spec;  // what follows from the tensors need not be said
          line.bias = line.act_params = line.routed = false;
          line.tokens = 0;
          SCOPED_TRACE(c.name() + " " + order);
          const std::string path = write(file_of(p, order), {{"spec", to_string(line)}, {"w13_order", order}});
          for (const auto& backend : moe::backends()) {
            if (!backend->supports(p.spec)) continue;
            const GoldenFile out = run(path, backend->name(), backend->name() != "sm90");
            EXPECT_EQ(parse_moe_spec(out.metadata("spec")), p.spec);
            if (backend->name() == "sm90") continue;
            const auto r = reference_moe(p.spec, p.weights, p.hidden, out.values<int32_t>("expert_ids"),
                                         floats_of(out, "expert_weights"));
            const auto output = floats_of(out, "output");
            ASSERT_EQ(output.size(), r.output.size());
            for (size_t i = 0; i < output.size(); ++i) {
              ASSERT_GE(output[i], r.lowest[i]) << backend->name() << " value " << i;
              ASSERT_LE(output[i], r.highest[i]) << backend->name() << " value " << i;
            }
          }
        }
}

// --- Bad inputs ------------------------------------------------------------------------------------------------------

TEST_F(CaseFile, BadInputsAreAnsweredWithASentence) {
  std::mt19937 rng = test::rng();
  Case c;
  c.spec = parse_moe_spec("experts=4 top_k=2 hidden=64 inter=32 weights=nvfp4");
  c.tokens = 3;
  const File good = file_of(make_problem(c, rng), "gate_up");
  const std::map<std::string, std::string> metadata{{"spec", to_string(c.spec)}, {"w13_order", "gate_up"}};
  EXPECT_EQ(refusal(good, metadata), "(accepted)");

  const auto refuses = [&](const std::function<void(File&)>& change, const std::string& word) {
    File file = good;
    change(file);
    const std::string text = refusal(file, metadata);
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  for (const char* name : {"hidden_states", "routing_logits", "gemm1_weights", "gemm2_weights", "gemm1_weights_scale",
                           "gemm2_weights_scale_2", "gemm1_input_scale"})
    refuses([&](File& f) { f.erase(name); }, std::string("tensor ") + name + " is missing");
  refuses([](File& f) { f["gemm1_bais"] = f32({1}, {0}); }, "gemm1_bais is not part of this case");
  refuses([](File& f) { f["gemm1_weights"].shape = {4, 32, 64}; }, "[4, 64, 32]");
  refuses([](File& f) { f["gemm1_weights"].dtype = "F8_E4M3"; }, "gemm1_weights is float8_e4m3fn; accepted: uint8");
  refuses([](File& f) { f["gemm1_weights_scale"].bytes[7] = '\x7f'; }, "which is NaN");
  refuses([](File& f) { f["gemm1_weights_scale"].bytes[7] = '\x81'; }, "which is negative");
  refuses([](File& f) { f["gemm1_input_scale"] = f32({}, {NAN}); }, "gemm1_input_scale is nan");
  refuses([](File& f) { f["gemm2_input_scale"] = f32({}, {0}); }, "input scale is 0 with inputs nvfp4");
  refuses([](File& f) { f["gemm1_weights_scale_2"] = f32({3}, {1, 1, 1}); }, "gemm1_weights_scale_2 has shape [3]");
  refuses([](File& f) { f["routing_logits"] = f32({3, 5}, std::vector<float>(15)); }, "the spec needs [3, 4]");
  refuses([](File& f) { f["routing_bias"] = f32({4}, std::vector<float>(4)); }, "routing renormalize ignores it");
  refuses([](File& f) { f["topk_ids"] = entry<int32_t>("I32", {3, 2}, std::vector<int32_t>(6)); }, "both topk_ids and");
  refuses([](File& f) { f["hidden_states"] = f32({3, 64}, std::vector<float>(192)); }, "accepted: bfloat16");
  refuses([](File& f) { f["hidden_states"] = bf16({3, 63}, std::vector<float>(189)); }, "the spec needs [T, 64]");
  refuses([](File& f) { f["gemm1_clamp_limit"] = f32({4}, {1, 1, 0, 1}); }, "limit of expert 2 is 0");
  refuses([](File& f) { f["gemm1_alpha"] = f32({4}, {1, INFINITY, 1, 1}); }, "element 1 of tensor gemm1_alpha is inf");

  const auto bad_metadata = [&](std::map<std::string, std::string> m, const std::string& word) {
    const std::string text = refusal(good, m);
    EXPECT_NE(text.find(word), std::string::npos) << text;
  };
  bad_metadata({}, "no \"spec\"");
  bad_metadata({{"spec", to_string(c.spec)}}, "no \"w13_order\"");
  bad_metadata({{"spec", to_string(c.spec)}, {"w13_order", "w1_w3"}}, "accepted: gate_up, up_gate, interleaved");
  bad_metadata({{"spec", "experts=4 top_k=2 hidden=64 inter=32 weights=int4"}, {"w13_order", "gate_up"}},
               "weights is \"int4\"");
  bad_metadata({{"spec", "experts=4 top_k=5 hidden=64 inter=32 weights=nvfp4"}, {"w13_order", "gate_up"}},
               "top_k is 5");
  bad_metadata({{"spec", "experts=4 top_k=2 hidden=64 inter=32 weights=nvfp4 inputs=plain"}, {"w13_order", "gate_up"}},
               "has no calibrated scale");
}

TEST_F(CaseFile, AForcedBackendThatDoesNotExistIsRefused) {
  const std::string path = write(worked_example(), kWorkedMetadata);
  try {
    run(path, "cuda");
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("\"cuda\"; accepted: auto"), std::string::npos) << e.what();
  }
}

}  // namespace
}  // namespace sluice::test
