// SPDX-License-Identifier: Apache-2.0
// The device calls of the shared library as a user's program sees them.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <bit>
#include <chrono>
#include <cmath>
#include <random>

#include "sluice/sluice.hpp"

namespace {

const auto kProcessStart = std::chrono::steady_clock::now();

std::string no_device() {
  int count = 0;
  if (cudaGetDeviceCount(&count) != cudaSuccess || count == 0) return "no CUDA device";
  cudaDeviceProp properties{};
  cudaGetDeviceProperties(&properties, 0);
  return properties.major == 9 && properties.minor == 0 ? "" : std::string(properties.name) + " is not a Hopper GPU";
}
#define SKIP_WITHOUT_DEVICE() \
  if (const std::string problem = no_device(); !problem.empty()) GTEST_SKIP() << problem

template <class T>
class Device {
 public:
  explicit Device(size_t count) : count_(count) {
    EXPECT_EQ(cudaMalloc(reinterpret_cast<void**>(&data_), count * sizeof(T)), cudaSuccess);
  }
  explicit Device(const std::vector<T>& host) : Device(host.size()) {
    EXPECT_EQ(cudaMemcpy(data_, host.data(), count_ * sizeof(T), cudaMemcpyHostToDevice), cudaSuccess);
  }
  Device(const Device&) = delete;
  Device& operator=(const Device&) = delete;
  ~Device() { cudaFree(data_); }
  T* get() const { return data_; }
  int64_t bytes() const { return static_cast<int64_t>(count_ * sizeof(T)); }
  std::vector<T> host() const {
    std::vector<T> out(count_);
    EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
    EXPECT_EQ(cudaMemcpy(out.data(), data_, count_ * sizeof(T), cudaMemcpyDeviceToHost), cudaSuccess);
    return out;
  }

 private:
  size_t count_;
  T* data_ = nullptr;
};

float widen(uint16_t v) { return std::bit_cast<float>(static_cast<uint32_t>(v) << 16); }
std::vector<uint16_t> random_bf16(size_t count, float scale, unsigned seed) {
  std::mt19937 rng(seed);
  std::normal_distribution<float> normal(0.0f, scale);
  std::vector<uint16_t> v(count);
  for (auto& x : v) x = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(rng)) >> 16);
  return v;
}

constexpr int64_t kTokens = 40, kExperts = 8, kHidden = 256, kInter = 192;
const char* const kSpec = "experts=8 top_k=2 hidden=256 inter=192 weights=bf16";

struct Layer {
  std::vector<uint16_t> up = random_bf16(kExperts * kInter * kHidden, 0.06f, 1);
  std::vector<uint16_t> gate = random_bf16(kExperts * kInter * kHidden, 0.06f, 2);
  std::vector<uint16_t> down = random_bf16(kExperts * kHidden * kInter, 0.07f, 3);
  std::vector<uint16_t> hidden = random_bf16(kTokens * kHidden, 1, 4), logits = random_bf16(kTokens * kExperts, 1, 5);
  sluice_moe_weights weights() const {
    auto w = SLUICE_INIT(sluice_moe_weights);
    w.up.codes = up.data();
    w.gate.codes = gate.data();
    w.down.codes = down.data();
    return w;
  }
};

sluice_moe_args args_of(const Device<uint16_t>& hidden, const Device<uint16_t>& logits, const Device<uint16_t>& output,
                        const Device<uint8_t>& workspace) {
  auto args = SLUICE_INIT(sluice_moe_args);
  args.tokens = kTokens;
  args.hidden = hidden.get();
  args.logits = logits.get();
  args.logits_dtype = SLUICE_BF16;
  args.output = output.get();
  args.workspace = workspace.get();
  args.workspace_size = workspace.bytes();
  return args;
}
sluice_moe_weights stacks_of(const Device<uint16_t>& up, const Device<uint16_t>& gate, const Device<uint16_t>& down) {
  auto w = SLUICE_INIT(sluice_moe_weights);
  w.up.codes = up.get();
  w.gate.codes = gate.get();
  w.down.codes = down.get();
  return w;
}

// First in the file and run alone by tools/gpu.sh: from the program's start to the first result on the host.
TEST(CudaStart, FirstResultWithinASecond) {
  SKIP_WITHOUT_DEVICE();
  const Layer l;
  const auto before = std::chrono::steady_clock::now();
  cudaFree(nullptr);  // the driver's own start, which every program pays
  const auto driver = std::chrono::steady_clock::now();
  const sluice::cuda::MoeLayer layer(kSpec, 0, l.weights());
  const Device<uint16_t> hidden(l.hidden), logits(l.logits), output(kTokens * kHidden);
  const Device<uint8_t> workspace(static_cast<size_t>(layer.workspace_bytes(kTokens)));
  const auto args = args_of(hidden, logits, output, workspace);
  layer.run(args, SLUICE_INIT(sluice_cuda_queue));
  const auto first = output.host();
  const auto end = std::chrono::steady_clock::now();
  const auto s = [](auto a, auto b) { return std::chrono::duration<double>(b - a).count(); };
  EXPECT_TRUE(std::isfinite(widen(first[0])));
  std::printf("start to first result: %.3f s of the library, %.3f s of the driver, %.3f s since the program's start\n",
              s(driver, end), s(before, driver), s(kProcessStart, end));
  EXPECT_LT(s(driver, end), 1.0);
}

TEST(CudaMoe, EqualsTheHostInterface) {
  SKIP_WITHOUT_DEVICE();
  const Layer l;
  sluice::Context context(2);
  const sluice::MoeLayer cpu(context, kSpec, l.weights(), "cpu"), bridge(context, kSpec, l.weights(), "sm90");
  auto args = SLUICE_INIT(sluice_moe_args);
  args.tokens = kTokens;
  args.hidden = l.hidden.data();
  args.logits = l.logits.data();
  args.logits_dtype = SLUICE_BF16;
  std::vector<uint16_t> on_cpu(kTokens * kHidden), bridged(on_cpu.size());
  args.output = on_cpu.data();
  cpu.run(args);
  args.output = bridged.data();
  bridge.run(args);

  sluice::cuda::MoeLayer layer(kSpec, 0, l.weights());
  const Device<uint16_t> hidden(l.hidden), logits(l.logits), output(on_cpu.size());
  const Device<uint8_t> workspace(static_cast<size_t>(layer.workspace_bytes(kTokens)));
  EXPECT_THROW(layer.workspace_bytes(INT64_MAX), sluice::Error);
  EXPECT_STREQ(sluice_last_error(), "tokens is 9223372036854775807; accepted: 0 to 1073741823");
  const Device<int32_t> count(std::vector<int32_t>{17});
  args = args_of(hidden, logits, output, workspace);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  auto queue = SLUICE_INIT(sluice_cuda_queue);
  queue.stream = stream;
  layer.run(args, queue);
  const auto direct = output.host();
  EXPECT_EQ(direct, bridged);
  double difference = 0, norm = 0;
  for (size_t i = 0; i < direct.size(); ++i) {
    const double a = widen(direct[i]), b = widen(on_cpu[i]);
    difference += (a - b) * (a - b);
    norm += b * b;
  }
  EXPECT_LT(std::sqrt(difference / norm), 3e-3);

  // A count in device memory: later rows keep what they had. Weights from device memory.
  const Device<uint16_t> up(l.up), gate(l.gate), down(l.down);
  layer.refit(stacks_of(up, gate, down), stream);
  cudaMemset(output.get(), 0xff, on_cpu.size() * 2);
  queue.num_tokens = count.get();
  queue.no_pdl = 1;
  layer.run(args, queue);
  const auto part = output.host();
  EXPECT_TRUE(std::equal(part.begin(), part.begin() + 17 * kHidden, direct.begin()));
  for (size_t i = 17 * kHidden; i < part.size(); ++i) ASSERT_EQ(part[i], 0xffff);
  cudaStreamDestroy(stream);
}

TEST(CudaGemm, FromQuantisedRows) {
  SKIP_WITHOUT_DEVICE();
  const size_t n = 96, k = 128;
  const std::vector<uint8_t> codes(n * k, 0x38);       // 1.0 in e4m3
  const std::vector<uint8_t> scales(n * k / 32, 126);  // 0.5
  auto options = SLUICE_INIT(sluice_cuda_gemm_options);
  options.rows = n;
  options.cols = k;
  options.weights = "mxfp8";
  options.dtype = SLUICE_BF16;
  options.w.codes = codes.data();
  options.w.scales = scales.data();
  const sluice::cuda::Gemm gemm(options);
  const auto x = random_bf16(kTokens * k, 1, 7);
  const Device<uint16_t> in(x), y(kTokens * n), again(kTokens * n);
  int64_t elements = 0;
  ASSERT_EQ(sluice_scale_elements(SLUICE_SCALES_128X4, kTokens, k / 32, &elements), SLUICE_OK);
  const Device<uint8_t> x_codes(kTokens * k), x_scales(static_cast<size_t>(elements));
  const Device<uint8_t> workspace(static_cast<size_t>(gemm.workspace_bytes(kTokens)));
  auto quantize = SLUICE_INIT(sluice_cuda_quantize_args);
  quantize.coding = "mxfp8";
  quantize.x = in.get();
  quantize.dtype = SLUICE_BF16;
  quantize.rows = kTokens;
  quantize.cols = k;
  quantize.codes = x_codes.get();
  quantize.scales = x_scales.get();
  quantize.layout = SLUICE_SCALES_128X4;
  const auto queue = SLUICE_INIT(sluice_cuda_queue);
  sluice::cuda::quantize(quantize, queue);
  auto args = SLUICE_INIT(sluice_cuda_gemm_args);
  args.tokens = kTokens;
  args.codes = x_codes.get();
  args.scales = x_scales.get();
  args.layout = SLUICE_SCALES_128X4;
  args.y = y.get();
  args.workspace = workspace.get();
  args.workspace_size = workspace.bytes();
  gemm.run(args, queue);
  const auto from_codes = y.host();
  args.codes = nullptr;
  args.x = in.get();
  args.y = again.get();
  gemm.run(args, queue);
  EXPECT_EQ(from_codes, again.host());
  for (size_t t = 0; t < kTokens; ++t) {  // every weight is 0.5: half the row's sum, within a rounding of e4m3
    double sum = 0, magnitude = 0;
    for (size_t i = 0; i < k; ++i) sum += 0.5 * widen(x[t * k + i]), magnitude += 0.5 * std::fabs(widen(x[t * k + i]));
    EXPECT_NEAR(widen(from_codes[t * n]), sum, magnitude / 16);
  }
  args.tokens = -5;
  EXPECT_EQ(sluice_cuda_gemm_run(gemm.get(), &args, &queue), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "tokens is -5; it must not be negative");
  quantize.layout = SLUICE_SCALES_TRANSPOSED;
  EXPECT_EQ(sluice_cuda_quantize(&quantize, &queue), SLUICE_INVALID_ARGUMENT);
}

// deterministic: a row alone and in a batch gives the same bits. fp8_f32_sums: the sums are those of the host within
// float32's error, and not the 14 bits of the tensor cores.
TEST(CudaGemm, OptionsReachTheKernels) {
  SKIP_WITHOUT_DEVICE();
  constexpr size_t n = 192, k = 4096;
  const auto values = random_bf16(n * k, 0.05f, 11), x = random_bf16(kTokens * k, 1, 12);
  sluice::Context context(2);
  for (const char* format : {"bf16", "fp8_channel", "fp8_block", "nvfp4"}) {
    SCOPED_TRACE(format);
    const bool fp8 = std::string(format).starts_with("fp8");
    std::vector<uint8_t> codes(n * k * 2), scales(n * k);
    float global = 1;
    const bool has_global = std::string(format) == "nvfp4", has_scales = std::string(format) != "bf16";
    ASSERT_EQ(sluice_quantize_weights(context.get(), format, 1, n, k, values.data(), SLUICE_BF16, codes.data(),
                                      has_scales ? scales.data() : nullptr, has_global ? &global : nullptr),
              SLUICE_OK)
        << sluice_last_error();
    auto options = SLUICE_INIT(sluice_cuda_gemm_options);
    options.rows = n;
    options.cols = k;
    options.weights = format;
    if (has_global) options.inputs = "nvfp4_token";
    options.dtype = SLUICE_BF16;
    options.w = {codes.data(), has_scales ? scales.data() : nullptr, has_global ? &global : nullptr};
    const Device<uint16_t> in(x);
    const auto run = [&](const sluice_gemm_options& o, size_t first, size_t tokens) {
      const sluice::cuda::Gemm gemm(o);
      const Device<uint16_t> y(tokens * n);
      const Device<uint8_t> workspace(static_cast<size_t>(gemm.workspace_bytes(static_cast<int64_t>(tokens))));
      auto args = SLUICE_INIT(sluice_cuda_gemm_args);
      args.tokens = static_cast<int64_t>(tokens);
      args.x = in.get() + first * k;
      args.y = y.get();
      args.workspace = workspace.get();
      args.workspace_size = workspace.bytes();
      gemm.run(args, SLUICE_INIT(sluice_cuda_queue));
      return y.host();
    };
    const auto plain = run(options, 0, kTokens);
    options.deterministic = 1;
    const auto together = run(options, 0, kTokens);
    for (const size_t t : {size_t{0}, size_t{17}, size_t{kTokens - 1}}) {
      const auto row = together.begin() + static_cast<std::ptrdiff_t>(t * n);
      EXPECT_EQ(run(options, t, 1), std::vector<uint16_t>(row, row + n)) << "row " << t;
    }
    if (!fp8) continue;
    options.deterministic = 0;
    options.fp8_f32_sums = 1;
    const auto exact = run(options, 0, kTokens);
    std::vector<uint16_t> host(exact.size());
    sluice_gemm* on_host = nullptr;
    ASSERT_EQ(sluice_gemm_create(context.get(), &options, &on_host), SLUICE_OK) << sluice_last_error();
    auto args = SLUICE_INIT(sluice_gemm_args);
    args.tokens = kTokens;
    args.x = x.data();
    args.y = host.data();
    ASSERT_EQ(sluice_gemm_run(on_host, &args), SLUICE_OK) << sluice_last_error();
    sluice_gemm_destroy(on_host);
    // Sums of the same products in another order: mostly the same bfloat16, where tensor cores give mostly another.
    const auto equal = [&](const std::vector<uint16_t>& y) {
      size_t count = 0;
      for (size_t i = 0; i < y.size(); ++i) count += y[i] == host[i];
      return static_cast<double>(count) / static_cast<double>(y.size());
    };
    std::printf("%s: equal to the host's, float32 sums %.4f, tensor cores %.4f\n", format, equal(exact), equal(plain));
    EXPECT_GT(equal(exact), 0.99);
    EXPECT_LT(equal(plain), equal(exact));
  }
}

// Prepared weights in the caller's memory: exactly the stated bytes, nothing before or after them, no allocation of
// the library, the same addresses after a refit.
TEST(CudaMoe, InTheCallersMemory) {
  SKIP_WITHOUT_DEVICE();
  constexpr size_t kAround = 1 << 16;
  const Layer l;
  const Device<uint16_t> up(l.up), gate(l.gate), down(l.down), hidden(l.hidden), logits(l.logits);
  const Device<uint16_t> output(kTokens * kHidden), zeros(std::vector<uint16_t>(l.up.size()));
  sluice_moe_weights w = stacks_of(up, gate, down);
  sluice::cuda::MoeLayer own(kSpec, 0, w);
  const int64_t bytes = sluice::cuda::MoeLayer::prepared_bytes(kSpec);
  const Device<uint8_t> memory(std::vector<uint8_t>(static_cast<size_t>(bytes) + 2 * kAround, 0xa5));
  uint8_t* const inside = memory.get() + kAround;
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  cudaDeviceSynchronize();
  // Nothing is allocated. Other processes on the GPU change what is free as well, so one undisturbed attempt is enough.
  bool unchanged = false;
  for (int attempt = 0; attempt < 100 && !unchanged; ++attempt) {
    size_t free_before = 0, free_after = 0, total = 0;
    cudaMemGetInfo(&free_before, &total);
    sluice::cuda::MoeLayer probe(kSpec, 0, w, inside, bytes, stream);
    probe.refit(w, stream);
    cudaMemGetInfo(&free_after, &total);
    unchanged = free_before == free_after;
  }
  EXPECT_TRUE(unchanged);
  sluice::cuda::MoeLayer layer(kSpec, 0, w, inside, bytes, stream);
  layer.refit(w, stream);
  const auto around_is_kept = [&] {
    const auto host = memory.host();
    for (size_t i = 0; i < kAround; ++i)
      if (host[i] != 0xa5 || host[host.size() - 1 - i] != 0xa5) return false;
    return true;
  };
  const Device<uint8_t> workspace(static_cast<size_t>(layer.workspace_bytes(kTokens)));
  const auto args = args_of(hidden, logits, output, workspace);
  auto queue = SLUICE_INIT(sluice_cuda_queue);
  own.run(args, queue);
  const auto expected = output.host();
  queue.stream = stream;
  const auto run = [&] {
    cudaMemset(output.get(), 0xff, kTokens * kHidden * 2);
    cudaDeviceSynchronize();
    layer.run(args, queue);
    return output.host();
  };
  EXPECT_EQ(run(), expected);
  EXPECT_TRUE(around_is_kept());
  w.up.codes = zeros.get();
  layer.refit(w, stream);
  EXPECT_EQ(run(), std::vector<uint16_t>(kTokens * kHidden));
  EXPECT_TRUE(around_is_kept());

  sluice_cuda_moe* none = nullptr;
  const auto prepare = [&](void* at, int64_t size) {
    return sluice_cuda_moe_prepare_into(kSpec, 0, &w, at, size, stream, &none);
  };
  EXPECT_EQ(prepare(inside, bytes - 1), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_last_error(),
            "memory_size is " + std::to_string(bytes - 1) + "; " + std::to_string(bytes) + " bytes are needed");
  EXPECT_EQ(prepare(inside + 64, bytes), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "memory is not aligned to 256 bytes");
  alignas(256) static uint8_t on_the_host[256];
  EXPECT_EQ(prepare(on_the_host, bytes), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "memory is of the host; accepted: memory of device 0");
  EXPECT_EQ(none, nullptr);
  cudaStreamDestroy(stream);
}

TEST(CudaGemm, InTheCallersMemory) {
  SKIP_WITHOUT_DEVICE();
  constexpr size_t kAround = 1 << 16, n = 200, k = 320;
  const auto w = random_bf16(n * k, 0.05f, 8), other = random_bf16(n * k, 0.05f, 9), x = random_bf16(kTokens * k, 1, 7);
  const std::vector<float> bias(n, 0.5f);
  const Device<uint16_t> codes(w), other_codes(other), in(x), y(kTokens * n);
  auto options = SLUICE_INIT(sluice_cuda_gemm_options);
  options.rows = n;
  options.cols = k;
  options.weights = "bf16";
  options.dtype = SLUICE_BF16;
  const int64_t bytes = sluice::cuda::Gemm::prepared_bytes(options);
  options.bias = bias.data();
  options.w.codes = codes.get();
  const Device<uint8_t> memory(std::vector<uint8_t>(static_cast<size_t>(bytes) + 2 * kAround, 0xa5));
  sluice::cuda::Gemm gemm(options, 0, memory.get() + kAround, bytes, nullptr);
  const Device<uint8_t> workspace(static_cast<size_t>(gemm.workspace_bytes(kTokens)));
  auto args = SLUICE_INIT(sluice_cuda_gemm_args);
  args.tokens = kTokens;
  args.x = in.get();
  args.y = y.get();
  args.workspace = workspace.get();
  args.workspace_size = workspace.bytes();
  const auto run = [&](const sluice::cuda::Gemm& g) {
    g.run(args, SLUICE_INIT(sluice_cuda_queue));
    return y.host();
  };
  EXPECT_EQ(run(gemm), run(sluice::cuda::Gemm(options)));
  options.w.codes = other_codes.get();
  gemm.refit(options.w, 0, bias.data(), nullptr);
  EXPECT_EQ(run(gemm), run(sluice::cuda::Gemm(options)));
  EXPECT_THROW(gemm.refit(options.w, 0, nullptr, nullptr), sluice::Error);
  const auto host = memory.host();
  for (size_t i = 0; i < kAround; ++i) ASSERT_TRUE(host[i] == 0xa5 && host[host.size() - 1 - i] == 0xa5) << i;
}

// Codes in the memory of another GPU are refused with both names, by every call that takes weights.
TEST(CudaMoe, WeightsOfAnotherGpuAreRefused) {
  SKIP_WITHOUT_DEVICE();
  int count = 0;
  ASSERT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  if (count < 2) GTEST_SKIP() << "one GPU; two are needed";
  const Layer l;
  ASSERT_EQ(cudaSetDevice(1), cudaSuccess);
  const Device<uint16_t> elsewhere(l.up);
  ASSERT_EQ(cudaSetDevice(0), cudaSuccess);
  auto weights = l.weights();
  sluice::cuda::MoeLayer layer(kSpec, 0, weights);
  weights.up.codes = elsewhere.get();
  sluice_cuda_moe* moe = nullptr;
  const auto refused = [](sluice_status status) {
    EXPECT_EQ(status, SLUICE_INVALID_ARGUMENT);
    EXPECT_NE(std::string(sluice_last_error()).find("memory of device 1; accepted: memory of device 0"),
              std::string::npos)
        << sluice_last_error();
  };
  refused(sluice_cuda_moe_create(kSpec, 0, &weights, nullptr, &moe));
  refused(sluice_cuda_moe_refit(layer.get(), &weights, nullptr));
  auto options = SLUICE_INIT(sluice_cuda_gemm_options);
  options.rows = kInter;
  options.cols = kHidden;
  options.weights = "bf16";
  options.dtype = SLUICE_BF16;
  options.w.codes = elsewhere.get();
  sluice_cuda_gemm* gemm = nullptr;
  refused(sluice_cuda_gemm_create(&options, 0, nullptr, &gemm));
  EXPECT_EQ(moe, nullptr);
  EXPECT_EQ(gemm, nullptr);
}

// Sizes need no device.
TEST(CudaMoe, PreparedBytes) {
  const int64_t bytes = sluice::cuda::MoeLayer::prepared_bytes(kSpec);
  // Tiles of 128 rows: of GEMM1 2 * 192, of GEMM2 256, with whole groups of 64 columns.
  const int64_t tiles = kExperts * (2 * kInter * kHidden + kHidden * kInter) * 2;
  EXPECT_GE(bytes, tiles);
  EXPECT_LE(bytes, tiles + 4096);
  int64_t out = 0;
  EXPECT_EQ(sluice_cuda_moe_prepared_bytes("experts=8 top_k=9 hidden=256 inter=192", &out), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_cuda_moe_prepared_bytes("experts=8 top_k=2 hidden=256 inter=192 dtype=float32", &out),
            SLUICE_UNSUPPORTED);
  EXPECT_EQ(sluice_cuda_moe_prepared_bytes(nullptr, &out), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_cuda_moe_prepared_bytes(kSpec, nullptr), SLUICE_INVALID_ARGUMENT);
  sluice_cuda_moe* none = nullptr;
  const Layer l;
  const auto weights = l.weights();
  EXPECT_EQ(sluice_cuda_moe_prepare_into(kSpec, 0, &weights, nullptr, bytes, nullptr, &none), SLUICE_INVALID_ARGUMENT);
  auto options = SLUICE_INIT(sluice_cuda_gemm_options);
  EXPECT_EQ(sluice_cuda_gemm_prepared_bytes(&options, &out), SLUICE_INVALID_ARGUMENT);
  options.rows = 256;
  options.cols = 128;
  options.weights = "bf16";
  EXPECT_EQ(sluice_cuda_gemm_prepared_bytes(&options, &out), SLUICE_UNSUPPORTED);  // float32 rows that are not rounded
  options.dtype = SLUICE_BF16;
  ASSERT_EQ(sluice_cuda_gemm_prepared_bytes(&options, &out), SLUICE_OK);
  EXPECT_GE(out, 256 * 128 * 2);
  EXPECT_LE(out, 256 * 128 * 2 + 256 * 4 + 256);
  sluice_cuda_gemm* gemm = nullptr;
  EXPECT_EQ(sluice_cuda_gemm_prepare_into(&options, 0, nullptr, out, nullptr, &gemm), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_cuda_gemm_refit(nullptr, &options.w, 0, nullptr, nullptr), SLUICE_INVALID_ARGUMENT);
}

// Runs everywhere: without a device the calls say so.
TEST(CudaMoe, RefusesWithItsReason) {
  const Layer l;
  const auto weights = l.weights();
  sluice_cuda_moe* moe = nullptr;
  if (!no_device().empty()) {
    EXPECT_NE(sluice_cuda_moe_create(kSpec, 0, &weights, nullptr, &moe), SLUICE_OK);
    EXPECT_NE(std::string(sluice_last_error()), "");
    return;
  }
  EXPECT_EQ(sluice_cuda_moe_create("experts=8 top_k=2 hidden=256 inter=192 weights=bf16 dtype=float32", 0, &weights,
                                   nullptr, &moe),
            SLUICE_UNSUPPORTED);
  EXPECT_EQ(sluice_cuda_moe_create(kSpec, 99, &weights, nullptr, &moe), SLUICE_UNSUPPORTED);
  const sluice::cuda::MoeLayer layer(kSpec, 0, weights);
  auto args = SLUICE_INIT(sluice_moe_args);
  args.tokens = 1;
  EXPECT_THROW(layer.run(args, SLUICE_INIT(sluice_cuda_queue)), sluice::Error);
}

}  // namespace
