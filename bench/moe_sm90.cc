// SPDX-License-Identifier: Apache-2.0
// Fused MoE on the GPU: microseconds a call against the floor of the same run. One CUDA graph holds several calls, each
// with its own routing and in turn another copy of the weights, so that no call finds its weights in the L2 cache;
// reported is the median of 20 replays over the number of calls.
#include <cuda_runtime_api.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <map>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "kernels/sm90/fused_moe/fused_moe.h"

namespace {

using namespace sluice;
using sm90::check_cuda;

struct BenchShape {
  const char* name;
  int64_t hidden, inter;
  int experts, locals, top_k;
  activation::Activation act;
};
constexpr BenchShape kShapes[] = {
    {"qwen3-30b-a3b", 2048, 768, 128, 128, 8, activation::Activation::swiglu},
    {"deepseek-v3-tp8", 7168, 256, 256, 256, 8, activation::Activation::swiglu},
    {"deepseek-v3-ep8", 7168, 2048, 256, 32, 8, activation::Activation::swiglu},
    {"nemotron-3-nano", 2688, 1856, 128, 128, 6, activation::Activation::relu2},
    {"nemotron-3-super", 1024, 2688, 512, 512, 22, activation::Activation::relu2},
};
struct Kind {
  const char* name;
  format::Format weights;
  format::InputFormat inputs;
  double bits;  // a weight, scales included
  bool fp8;     // floor of flops at the FP8 rate
};
constexpr Kind kKinds[] = {
    {"bf16", format::Format::bf16, format::InputFormat::plain, 16, false},
    {"fp8pt", format::Format::fp8_tensor, format::InputFormat::fp8_static, 8, true},
    {"fp8blk", format::Format::fp8_block, format::InputFormat::fp8_group, 8, true},
    {"mxfp8", format::Format::mxfp8, format::InputFormat::mxfp8, 8.25, false},
    {"nvfp4", format::Format::nvfp4, format::InputFormat::nvfp4, 4.5, false},
    {"nvfp4tok", format::Format::nvfp4, format::InputFormat::nvfp4_token, 4.5, false},
    {"mxfp4", format::Format::mxfp4, format::InputFormat::plain, 4.25, false},
};

struct Options {
  std::vector<std::string> shapes, kinds, instances;
  std::vector<int> splits;  // pairs to force
  std::vector<int64_t> tokens{1, 8, 32, 128, 512, 2048, 8192};
  double copy_tbs = 0, bf16_tflops = 790, fp8_tflops = 1497;
  bool pdl = true, logits = false, prepare = false;
  int64_t cold_mb = 2400;  // weights in rotation, at least
  int replays = 20;
};

// Device-to-device copy, bytes read plus bytes written: TB/s.
double measure_copy() {
  const int64_t bytes = int64_t{4} << 30;
  sm90::DeviceBuffer a(bytes), b(bytes);
  cudaEvent_t start, stop;
  cudaEventCreate(&start);
  cudaEventCreate(&stop);
  std::vector<float> ms;
  for (int i = 0; i < 12; ++i) {
    cudaEventRecord(start);
    cudaMemcpyAsync(a.data(), b.data(), static_cast<size_t>(bytes), cudaMemcpyDeviceToDevice);
    cudaEventRecord(stop);
    cudaEventSynchronize(stop);
    ms.push_back(0);
    cudaEventElapsedTime(&ms.back(), start, stop);
  }
  std::sort(ms.begin(), ms.end());
  return 2.0 * static_cast<double>(bytes) / ms[ms.size() / 2] / 1e9;
}

// Random codes of moderate size over the whole prepared matrix; scales near what a trained layer has.
void fill(sm90::FusedMoe::Matrix& m, std::mt19937_64& rng) {
  using sm90::Operand;
  const Operand op = m.shape.operand;
  const int slab = sm90::slab_bytes(op), codes = sm90::slab_code_bytes(op);
  std::vector<uint64_t> host(static_cast<size_t>(slab) * 1024 / 8);
  for (uint64_t& v : host) v = rng();
  auto* bytes = reinterpret_cast<uint8_t*>(host.data());
  for (int s = 0; s < 1024; ++s) {
    uint8_t* p = bytes + static_cast<int64_t>(s) * slab;
    if (op == Operand::bf16)
      for (int i = 0; i < codes; i += 2) p[i + 1] = static_cast<uint8_t>((p[i + 1] & 0x80) | 0x3c);
    else if (sm90::is_fp8(op) || op == Operand::mxfp8)
      for (int i = 0; i < codes; ++i) p[i] &= 0xbf;
    for (int i = codes; i < slab; ++i)
      p[i] = op == Operand::nvfp4 ? static_cast<uint8_t>(0x40 + (p[i] & 15))
                                  : static_cast<uint8_t>((op == Operand::mxfp8 ? 246 : 252) + (p[i] & 1));
  }
  const int64_t total = m.weights.bytes(), block = static_cast<int64_t>(host.size()) * 8;
  sm90::copy_to_device(m.weights.data(), bytes, std::min(block, total), nullptr);
  for (int64_t done = block; done < total; done *= 2)
    check_cuda(cudaMemcpyAsync(m.weights.as<uint8_t>() + done, m.weights.data(),
                               static_cast<size_t>(std::min(done, total - done)), cudaMemcpyDeviceToDevice),
               "fill");
  for (sm90::DeviceBuffer* b : {&m.row_scale, &m.block_scale}) {
    std::vector<float> scales(static_cast<size_t>(b->bytes() / 4), 0.01f);
    sm90::copy_to_device(b->data(), scales.data(), b->bytes(), nullptr);
  }
  sm90::synchronize(nullptr);
}

struct Routing {
  std::vector<int32_t> ids;
  std::vector<float> weights;
  std::vector<uint16_t> logits;
  int touched = 0;
  int64_t local_pairs = 0;
};
Routing random_routing(const BenchShape& s, int64_t tokens, std::mt19937_64& rng) {
  Routing r;
  const auto k = static_cast<size_t>(s.top_k);
  do {
    r = {};
    std::vector<char> seen(static_cast<size_t>(s.experts));
    std::vector<float> row(static_cast<size_t>(s.experts));
    std::vector<int32_t> order(row.size());
    for (int64_t t = 0; t < tokens; ++t) {
      // Sums of uniforms are near enough to normal and quick.
      for (float& x : row) {
        const uint64_t u = rng();
        x = (static_cast<float>(u & 0xffff) + static_cast<float>(u >> 16 & 0xffff) +
             static_cast<float>(u >> 32 & 0xffff) + static_cast<float>(u >> 48)) /
                65536.0f * 1.732f -
            3.464f;
      }
      std::iota(order.begin(), order.end(), 0);
      std::partial_sort(order.begin(), order.begin() + s.top_k, order.end(),
                        [&](int a, int b) { return row[static_cast<size_t>(a)] > row[static_cast<size_t>(b)]; });
      float sum = 0;
      for (size_t i = 0; i < k; ++i) sum += std::exp(row[static_cast<size_t>(order[i])]);
      for (size_t i = 0; i < k; ++i) {
        r.ids.push_back(order[i]);
        r.weights.push_back(std::exp(row[static_cast<size_t>(order[i])]) / sum);
        if (order[i] < s.locals) {
          ++r.local_pairs;
          seen[static_cast<size_t>(order[i])] = 1;
        }
      }
      for (float x : row) r.logits.push_back(float_to_bf16(x));
    }
    r.touched = static_cast<int>(std::count(seen.begin(), seen.end(), 1));
  } while (r.local_pairs == 0);
  return r;
}

int calls_of(int64_t tokens) {
  return tokens <= 8 ? 24 : tokens <= 32 ? 16 : tokens <= 128 ? 12 : tokens <= 512 ? 8 : tokens <= 2048 ? 4 : 2;
}

MoeSpec spec_of(const BenchShape& shape, const Kind& kind, bool logits) {
  MoeSpec spec;
  spec.experts = shape.experts;
  spec.top_k = shape.top_k;
  spec.hidden = shape.hidden;
  spec.inter = shape.inter;
  spec.weights = kind.weights;
  spec.inputs = kind.inputs;
  spec.act = shape.act;
  spec.local_experts = shape.locals == shape.experts ? 0 : shape.locals;
  spec.routing = routing::Method::renormalize;
  spec.routed = !logits;
  return spec;
}

// Weights of a checkpoint's layout in device memory to the layout of the GEMM: bytes read plus written over the time.
void bench_prepare(const Options& o, const BenchShape& shape, const Kind& kind) {
  const MoeSpec spec = spec_of(shape, kind, false);
  sm90::FusedMoe layer(spec);
  std::mt19937_64 rng(7);
  std::vector<sm90::DeviceBuffer> keep;
  int64_t bytes = layer.weight_bytes();
  // Contents do not matter here, and host memory that is never touched costs nothing.
  const auto tensor = [&](int64_t rows, int64_t cols) {
    weights::QuantTensor q = weights::make_quant_tensor(kind.weights, shape.locals, rows, cols);
    for (Tensor* t : {&q.codes, &q.scales, &q.global}) {
      if (t->empty()) continue;
      keep.emplace_back(t->bytes());
      check_cuda(cudaMemset(keep.back().data(), 0x35, static_cast<size_t>(t->bytes())), "memset");
      bytes += t->bytes();
      *t = Tensor(t->dtype(), t->shape(), keep.back().data(), nullptr);
    }
    return q;
  };
  weights::ExpertWeights w;
  w.up = tensor(shape.inter, shape.hidden);
  if (spec.gated()) w.gate = tensor(shape.inter, shape.hidden);
  w.down = tensor(shape.hidden, shape.inter);
  std::vector<double> ms;
  for (int i = 0; i < 12; ++i) {
    sm90::synchronize(nullptr);
    const auto begin = std::chrono::steady_clock::now();
    layer.set_weights(w, nullptr);
    sm90::synchronize(nullptr);
    ms.push_back(std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(ms.begin(), ms.end());
  const double median = ms[ms.size() / 2], tbs = static_cast<double>(bytes) / median / 1e9;
  std::printf("%-16s %-8s prepare %8.3f ms  %8.1f MB read and written  %.2f TB/s  %.0f %% of copy\n", shape.name,
              kind.name, median, static_cast<double>(bytes) / 1e6, tbs, 100.0 * tbs / o.copy_tbs);
}

void bench(const Options& o, const BenchShape& shape, const Kind& kind) {
  const MoeSpec spec = spec_of(shape, kind, o.logits);
  std::mt19937_64 rng(7);
  std::vector<sm90::FusedMoe> layers;
  int64_t bytes = 0;
  while (bytes < o.cold_mb << 20) {
    layers.emplace_back(spec);
    fill(layers.back().first(), rng);
    fill(layers.back().second(), rng);
    bytes += layers.back().weight_bytes();
  }
  const double params = static_cast<double>(spec.hidden * spec.inter * (spec.gated() ? 3 : 2));

  for (int64_t tokens : o.tokens) {
    std::mt19937_64 routing_rng(static_cast<uint64_t>(tokens) * 1000 + static_cast<uint64_t>(shape.hidden));
    const int calls = calls_of(tokens);
    std::vector<sm90::DeviceBuffer> keep;
    const auto upload = [&](const void* data, size_t size) {
      keep.emplace_back(static_cast<int64_t>(size));
      sm90::copy_to_device(keep.back().data(), data, static_cast<int64_t>(size), nullptr);
      sm90::synchronize(nullptr);
      return keep.back().data();
    };
    std::vector<uint16_t> x(static_cast<size_t>(tokens * spec.hidden));
    std::normal_distribution<float> normal;
    // A prime period: rows differ, and 60 million normal numbers would take a second.
    constexpr size_t kPeriod = 1000003;
    for (size_t i = 0; i < x.size(); ++i) x[i] = i < kPeriod ? float_to_bf16(normal(rng)) : x[i - kPeriod];
    const void* hidden = upload(x.data(), x.size() * 2);
    sm90::DeviceBuffer output(tokens * spec.hidden * 2);
    double floor_us = 0;
    const char* bound_by = "mem";
    std::vector<sm90::MoeCall> list;
    for (int c = 0; c < calls; ++c) {
      const Routing r = random_routing(shape, tokens, routing_rng);
      sm90::MoeCall call;
      call.tokens = tokens;
      call.hidden = hidden;
      call.topk_ids = static_cast<const int32_t*>(upload(r.ids.data(), r.ids.size() * 4));
      call.topk_weights = upload(r.weights.data(), r.weights.size() * 4);
      if (o.logits) call.logits = upload(r.logits.data(), r.logits.size() * 2);
      call.output = output.data();
      call.pdl = o.pdl;
      list.push_back(call);
      const double mem =
          (r.touched * params * kind.bits / 8 + 4.0 * static_cast<double>(tokens * spec.hidden)) / o.copy_tbs / 1e6;
      const double math =
          2.0 * params * static_cast<double>(r.local_pairs) / (kind.fp8 ? o.fp8_tflops : o.bf16_tflops) / 1e6;
      floor_us += std::max(mem, math) / calls;
      bound_by = math > mem ? "flops" : "mem";
    }
    std::vector<std::string> instances{""};
    for (const auto& i : sm90::instances())
      if (std::find(o.instances.begin(), o.instances.end(), "all") != o.instances.end() ||
          std::find(o.instances.begin(), o.instances.end(), i.name()) != o.instances.end())
        if (i.operand == layers[0].first().shape.operand) instances.push_back(i.name());
    std::vector<sm90::GemmForce> forces;
    for (const std::string& instance : instances) forces.push_back({instance, {0, 0}});
    for (size_t i = 0; i + 1 < o.splits.size(); i += 2) forces.push_back({"", {o.splits[i], o.splits[i + 1]}});
    for (const sm90::GemmForce& force : forces) {
      const sm90::GemmChoice choice = layers[0].choice(tokens, force);
      sm90::DeviceBuffer workspace(layers[0].workspace_bytes(tokens, force));
      cudaStream_t stream;
      check_cuda(cudaStreamCreate(&stream), "cudaStreamCreate");
      cudaGraph_t graph;
      cudaGraphExec_t exec;
      check_cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
      for (int c = 0; c < calls; ++c) {
        sm90::MoeCall call = list[static_cast<size_t>(c)];
        call.workspace = workspace.data();
        call.force = force;
        layers[static_cast<size_t>(c) % layers.size()].run(call, stream);
      }
      check_cuda(cudaStreamEndCapture(stream, &graph), "end capture");
      check_cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
      cudaEvent_t start, stop;
      cudaEventCreate(&start);
      cudaEventCreate(&stop);
      std::vector<float> ms;
      for (int i = 0; i < o.replays + 2; ++i) {
        cudaEventRecord(start, stream);
        check_cuda(cudaGraphLaunch(exec, stream), "replay");
        cudaEventRecord(stop, stream);
        check_cuda(cudaEventSynchronize(stop), "replay");
        float t = 0;
        cudaEventElapsedTime(&t, start, stop);
        if (i >= 2) ms.push_back(t);
      }
      std::sort(ms.begin(), ms.end());
      const double us = ms[ms.size() / 2] * 1000.0 / calls;
      std::printf("%-16s %-8s T=%-5lld %9.1f us  floor %8.1f %-5s  x%.2f  %s s%d,%d%s\n", shape.name, kind.name,
                  static_cast<long long>(tokens), us, floor_us, bound_by, us / floor_us, choice.instance.name().c_str(),
                  choice.splits[0], choice.splits[1],
                  force.instance.empty() && force.splits[0] == 0 ? "" : " (forced)");
      std::fflush(stdout);
      cudaGraphExecDestroy(exec);
      cudaGraphDestroy(graph);
      cudaStreamDestroy(stream);
    }
  }
}

}  // namespace

int main(int argc, char** argv) {
  Options o;
  CLI::App app("Fused MoE on one Hopper GPU");
  app.add_option("--shapes", o.shapes)->delimiter(',');
  app.add_option("--kinds", o.kinds)->delimiter(',');
  app.add_option("--tokens", o.tokens)->delimiter(',');
  app.add_option("--instances", o.instances, "also force these tiles; all")->delimiter(',');
  app.add_option("--splits", o.splits, "also force these pairs of splits")->delimiter(',');
  app.add_option("--cold-mb", o.cold_mb, "weights in rotation, at least");
  app.add_option("--replays", o.replays);
  app.add_option("--bf16-tflops", o.bf16_tflops);
  app.add_option("--fp8-tflops", o.fp8_tflops);
  app.add_flag("!--no-pdl", o.pdl);
  app.add_flag("--logits", o.logits, "route from logits instead of given top-k");
  app.add_flag("--prepare", o.prepare, "time the preparation of weights in device memory instead");
  CLI11_PARSE(app, argc, argv);
  try {
    if (const std::string problem = sm90::device_problem(); !problem.empty()) {
      std::printf("skipped: %s\n", problem.c_str());
      return 0;
    }
    o.copy_tbs = measure_copy();
    std::printf("copy %.2f TB/s; floors with %.0f (bf16) and %.0f (fp8) TFLOP/s\n", o.copy_tbs, o.bf16_tflops,
                o.fp8_tflops);
    const auto wanted = [](const std::vector<std::string>& list, const char* name) {
      return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
    };
    for (const BenchShape& s : kShapes)
      for (const Kind& k : kKinds)
        if (wanted(o.shapes, s.name) && wanted(o.kinds, k.name)) o.prepare ? bench_prepare(o, s, k) : bench(o, s, k);
  } catch (const std::exception& e) {
    std::printf("failed: %s\n", e.what());
    return 1;
  }
}
