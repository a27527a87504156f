// SPDX-License-Identifier: Apache-2.0
// ops_sm90: matrix products.
#include <algorithm>
#include <cstring>
#include <random>

#include "ops_sm90.h"

namespace sluice::bench {

namespace {
weights::QuantTensor zeros(format::Format f, int64_t n, int64_t k) {
  weights::QuantTensor w = weights::make_quant_tensor(f, 1, n, k);
  std::mt19937 rng(4);
  for (Tensor* t : {&w.codes, &w.scales, &w.global}) {
    if (t->empty()) continue;
    if (t->dtype() == DType::f32) {
      std::fill_n(t->as<float>(), t->elements(), 0.01f);
      continue;
    }
    auto* bytes = static_cast<uint8_t*>(t->data());
    for (int64_t i = 0; i < std::min<int64_t>(t->bytes(), 1 << 20); ++i) bytes[i] = static_cast<uint8_t>(rng() & 0xbf);
    if (f == format::Format::bf16)
      for (int64_t i = 1; i < std::min<int64_t>(t->bytes(), 1 << 20); i += 2)
        bytes[i] = static_cast<uint8_t>((bytes[i] & 0x80) | 0x3c);
    for (int64_t at = 1 << 20; at < t->bytes(); at += 1 << 20)
      std::memcpy(bytes + at, bytes, static_cast<size_t>(std::min<int64_t>(1 << 20, t->bytes() - at)));
  }
  return w;
}

void bench_linear(Bench& b, const char* what, int64_t n, int64_t k, format::Format f, format::InputFormat inputs,
                  DType out_type) {
  const auto bits = static_cast<double>(format::info(f).bits);
  const std::string name = fmt::format("linear {} {} [{}, {}]", what, name_of(format::kFormats, f), n, k);
  if (!b.wants(name)) return;
  const double weight_bytes = static_cast<double>(n * k) * bits / 8;
  LinearOptions options;
  options.inputs = inputs;
  const int sets = static_cast<int>(std::clamp(200e6 / weight_bytes, 1.0, 12.0));
  std::vector<std::unique_ptr<Linear>> layers;
  const weights::QuantTensor w = zeros(f, n, k);
  for (int i = 0; i < sets; ++i) layers.push_back(make_linear(b.ctx(), {&w, 1}, {}, options));
  for (const int64_t rows : {1, 8, 64, 256, 2048}) {
    if (n > 100000 && rows > 256) continue;
    const auto x = b.random(rows * k * 2), y = b.random(rows * n * bytes_of(out_type));
    const int64_t size = layers[0]->workspace_bytes(rows);
    const auto workspace = b.random(size);
    b.row(fmt::format("{} T={}", name, rows),
          weight_bytes + static_cast<double>(rows * (2 * k + n * bytes_of(out_type))),
          2.0 * static_cast<double>(rows * n * k), rows > 512 ? 8 : 2 * sets, [&](int i) {
            layers[static_cast<size_t>(i % sets)]->run(b.ctx(), bf16(x, rows, k), {y.get(), out_type, rows, n, n},
                                                       workspace.get(), size);
          });
  }
}
}  // namespace

void bench_linears(Bench& b) {
  using format::Format;
  using format::InputFormat;
  bench_linear(b, "qkv", 5120, 2048, Format::bf16, InputFormat::plain, DType::bf16);
  bench_linear(b, "o", 2048, 4096, Format::bf16, InputFormat::plain, DType::bf16);
  bench_linear(b, "router", 128, 2048, Format::bf16, InputFormat::plain, DType::f32);
  bench_linear(b, "head", 151936, 2048, Format::bf16, InputFormat::plain, DType::f32);
  bench_linear(b, "qkv", 5120, 2048, Format::fp8_channel, InputFormat::fp8_token, DType::bf16);
  bench_linear(b, "qkv", 5120, 2048, Format::nvfp4, InputFormat::nvfp4, DType::bf16);
  const std::string name = "float_linear router [256, 7168]";
  if (!b.wants(name)) return;
  Tensor weight(DType::f32, {256, 7168});
  std::fill_n(weight.as<float>(), weight.elements(), 0.5f);
  const auto layer = make_float_linear(b.ctx(), weight);
  for (const int64_t rows : {1, 64, 2048}) {
    const auto x = b.random(rows * 7168 * 2), y = b.random(rows * 256 * 4);
    b.row(fmt::format("{} T={}", name, rows), 256 * 7168 * 4 + static_cast<double>(rows * 7168 * 2), 0, 8,
          [&](int) { layer->run(b.ctx(), bf16(x, rows, 7168), f32(y, rows, 256), nullptr, 0); });
  }
}

}  // namespace sluice::bench
