// SPDX-License-Identifier: Apache-2.0
// Checkpoints of random codes and scales are written in every published checkpoint format and must come back bit for
// bit.
#include "load_case.h"

#include <unistd.h>

#include <cmath>

namespace sluice::weights {
namespace {

// Codes where the file has them are the bytes of the copy, and nothing of the copy is a view of the file: it keeps its
// bytes when the file is cut.
TEST_F(LoadTest, InPlaceAndCopiedAreTheSameBytes) {
  for (const auto& [format, name] : format::kFormats) {
    Written written;
    written.config = config_for(format);
    const QuantTensor w = random_quant(random, format, 1, 200, 144);
    put_matrix(written, kModule, w);
    LoaderOptions options;
    options.nvfp4_per_token = true;
    Loader loader = load(written, options);
    const LoadedLinear in_place = loader.linear(kModule, 200, 144, Codes::in_place);
    ASSERT_NE(in_place.w.file, nullptr);
    for (const auto& [begin, end] : {std::pair{0, 1}, {7, 199}, {199, 200}, {200, 200}, {0, 200}}) {
      in_place.w.begin_rows(0, begin, end);
      in_place.w.end_rows(0, begin, end);
    }
    EXPECT_TRUE(same_bytes(in_place.w, w)) << name;
    const LoadedLinear copied = loader.linear(kModule, 200, 144);
    EXPECT_EQ(copied.w.file, nullptr);
    const Tensor again = loader.copy(kModule + ".weight");
    ASSERT_EQ(truncate((written.dir / "model.safetensors").c_str(), 0), 0);
    EXPECT_TRUE(same_bytes(copied.w, w)) << name;
    EXPECT_EQ(std::memcmp(again.data(), w.codes.data(), static_cast<size_t>(w.codes.bytes())), 0) << name;
  }
}

TEST_F(LoadTest, LinearOfEveryFormat) {
  for (const auto& [format, name] : format::kFormats) {
    Written written;
    written.config = config_for(format);
    const QuantTensor w = random_quant(random, format, 1, 200, 144);
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".input_scale"] = scalar(0.25f);
    const LoadedLinear got = load(written).linear(kModule, 200, 144);
    EXPECT_TRUE(same_bytes(got.w, w)) << name;
    EXPECT_EQ(got.inputs, info(format).input) << name;
    EXPECT_EQ(got.input_scale, format == Format::nvfp4 ? 0.25f : 1.0f) << name;
  }
  ASSERT_FALSE(live.progress.empty());
  EXPECT_EQ(live.progress.back().what, "loading");
  EXPECT_GT(live.progress.back().done, 0);
}

TEST_F(LoadTest, OtherSpellings) {
  const auto expect_same = [&](Written& written, const QuantTensor& w, const char* what) {
    EXPECT_TRUE(same_bytes(load(written).linear(kModule, w.rows, w.cols).w, w)) << what;
  };
  {
    Written written;  // ModelOpt MXFP8 and files with the newer element type
    written.config = config_for(Format::mxfp8);
    const QuantTensor w = random_quant(random, Format::mxfp8, 1, 40, 64);
    put_matrix(written, kModule, w);
    written.tensors.erase(kModule + ".weight_scale_inv");
    written.tensors[kModule + ".weight_scale"] = w.scales.slice(0);
    expect_same(written, w, "mxfp8 weight_scale as e8m0");
  }
  {
    Written written;  // ModelOpt FP8_PB_WO
    written.config = R"({"quantization_config": {"quant_algo": "FP8_PB_WO"}})";
    const QuantTensor w = random_quant(random, Format::fp8_block, 1, 256, 300);
    put_matrix(written, kModule, w);
    written.tensors.erase(kModule + ".weight_scale_inv");
    written.tensors[kModule + ".weight_scale"] = as_type(w.scales, DType::f32, {2, 1, 3, 1});
    expect_same(written, w, "four-dimensional blocks");
    EXPECT_EQ(load(written).linear(kModule, 256, 300).inputs, InputFormat::plain);
  }
  {
    Written written;  // llm-compressor keeps channel scales in the model's type
    written.config = config_for(Format::fp8_channel);
    QuantTensor w = random_quant(random, Format::fp8_channel, 1, 24, 64);
    for (int i = 0; i < 24; ++i) w.scales.as<float>()[i] = round_to_bf16(w.scales.as<float>()[i]);
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_scale"] = as_type(to_bf16(w.scales), DType::bf16, {24, 1});
    expect_same(written, w, "bf16 scales");
  }
  {
    Written written;  // UE8M0 block scales (DeepSeek-V3.1 and later)
    written.config = config_for(Format::fp8_block);
    QuantTensor w = random_quant(random, Format::fp8_block, 1, 130, 64);
    Tensor exponents(DType::e8m0, {2, 1});
    for (int i = 0; i < 2; ++i) {
      exponents.as<uint8_t>()[i] = static_cast<uint8_t>(110 + i);
      w.scales.as<float>()[i] = std::ldexp(1.0f, 110 + i - 127);
    }
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_scale_inv"] = exponents;
    expect_same(written, w, "e8m0 block scales");
  }
  {
    Written written;  // compressed-tensors NVFP4: reciprocal global scales
    written.config = R"({"quantization_config": {"quant_method": "compressed-tensors", "config_groups": {"group_0": {
        "targets": ["Linear"], "weights": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
        "group_size": 16}, "input_activations": {"num_bits": 4, "type": "float", "strategy": "tensor_group",
        "group_size": 16, "dynamic": "local"}}}}})";
    QuantTensor w = random_quant(random, Format::nvfp4, 1, 8, 48);
    w.global.as<float>()[0] = 1.0f / 1024.0f;
    put_matrix(written, kModule, w);
    written.tensors[kModule + ".weight_packed"] = written.tensors[kModule + ".weight"];
    written.tensors.erase(kModule + ".weight");
    written.tensors.erase(kModule + ".weight_scale_2");
    written.tensors[kModule + ".weight_global_scale"] = scalar(1024.0f, {1});
    written.tensors[kModule + ".input_global_scale"] = scalar(64.0f, {1});
    expect_same(written, w, "reciprocal scales");
    EXPECT_EQ(load(written).linear(kModule, 8, 48).input_scale, 1.0f / 64.0f);
  }
  {
    Written written;  // float32 and float16 weights round to BF16
    const QuantTensor w = random_quant(random, Format::bf16, 1, 5, 6);
    written.tensors[kModule + ".weight"] = as_type(dequantize(w), DType::f32, {5, 6});
    expect_same(written, w, "float32");
    Tensor half(DType::f16, {1, 3});
    const uint16_t bits[] = {0x3c00, 0xc100, 0x0400};  // 1, -2.5, 2^-14
    std::copy_n(bits, 3, half.as<uint16_t>());
    written.tensors[kModule + ".weight"] = half;
    const Tensor values = dequantize(load(written).linear(kModule, 1, 3).w);
    EXPECT_EQ(values.as<float>()[0], 1.0f);
    EXPECT_EQ(values.as<float>()[1], -2.5f);
    EXPECT_EQ(values.as<float>()[2], std::ldexp(1.0f, -14));
  }
}

TEST_F(LoadTest, PerTokenNvfp4IgnoresInputScales) {
  Written written;
  written.config = config_for(Format::nvfp4);
  put_matrix(written, kModule, random_quant(random, Format::nvfp4, 1, 8, 32));
  LoaderOptions options;
  options.nvfp4_per_token = true;
  const LoadedLinear got = load(written, options).linear(kModule, 8, 32);  // there is no input_scale at all
  EXPECT_EQ(got.inputs, InputFormat::nvfp4_token);
  EXPECT_EQ(got.input_scale, 1.0f);
  const std::string text = error_of([&] { load(written).linear(kModule, 8, 32); });
  EXPECT_NE(text.find("its input_scale is missing; nvfp4_per_token_activation"), std::string::npos) << text;
}

TEST_F(LoadTest, UnquantisedTensorInAQuantisedCheckpointIsBf16AndSaysSo) {
  Written written;
  written.config = config_for(Format::fp8_block);
  const QuantTensor w = random_quant(random, Format::bf16, 1, 8, 32);
  put_matrix(written, kModule, w);
  const LoadedLinear got = load(written).linear(kModule, 8, 32);
  EXPECT_TRUE(same_bytes(got.w, w));
  EXPECT_EQ(got.inputs, InputFormat::plain);
  ASSERT_EQ(live.warnings.size(), 1u);
  EXPECT_NE(live.warnings[0].find(kModule + " is stored unquantised"), std::string::npos);
}

}  // namespace
}  // namespace sluice::weights
