// SPDX-License-Identifier: Apache-2.0
// Fused MoE on the GPU: microseconds per call against the floor of the same run. One CUDA graph holds several calls,
// each with its own routing and in turn another copy of the weights, so that no call finds its weights in the L2 cache;
// reported is the median of the replays over the number of calls.
#include "moe_cells_sm90.h"

#include <algorithm>
#include <cmath>
#include <numeric>
#include <random>

#include "base/bf16.h"
#include "sm90_bench.h"

namespace sluice::bench {

namespace {

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

void measure(const Options& o, const BenchShape& shape, const Kind& kind,
             const std::function<void(const Cell&)>& sink) {
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
      call.follows_own = !o.before;  // as calls of the C API
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
    for (const std::string& instance : instances) {
      forces.push_back({instance, {0, 0}});
      for (size_t i = 0; i + 1 < o.splits.size(); i += 2) forces.push_back({instance, {o.splits[i], o.splits[i + 1]}});
    }
    if (o.separate_rounding)
      for (size_t i = 0, count = forces.size(); i < count; ++i)
        forces.push_back({forces[i].instance, {forces[i].splits[0], forces[i].splits[1]}, true});
    const auto before = [&](cudaStream_t stream) {
      if (o.before) o.before(hidden, tokens * spec.hidden * 2, stream);
    };
    const double before_us =
        o.before ? replayed_us(calls, o.replays, [&](cudaStream_t stream, int) { before(stream); }) : 0;
    for (const sm90::GemmForce& force : forces) {
      const sm90::GemmChoice choice = layers[0].choice(tokens, force);
      const bool forced = !force.none();
      const bool one_token = !forced && sm90::runs_one_token(layers[0].spec(), sm90::multiprocessors(), tokens);
      sm90::DeviceBuffer workspace(layers[0].workspace_bytes(tokens, force));
      const double us = replayed_us(calls, o.replays, [&](cudaStream_t stream, int c) {
        sm90::MoeCall call = list[static_cast<size_t>(c)];
        call.workspace = workspace.data();
        call.workspace_size = workspace.bytes();
        call.force = force;
        before(stream);
        layers[static_cast<size_t>(c) % layers.size()].run(call, stream);
      });
      sink({std::string(shape.name),
            kind.name,
            tokens,
            us - before_us,
            floor_us,
            bound_by,
            one_token ? "one_token" : choice.instance.name() + (force.separate_rounding ? " separate" : ""),
            {one_token ? 1 : choice.splits[0], one_token ? 1 : choice.splits[1]},
            forced});
    }
  }
}

}  // namespace

std::string gpu_problem() { return sm90::device_problem(); }

void measure_moe(const Options& o, const std::function<void(const Cell&)>& sink) {
  const auto wanted = [](const std::vector<std::string>& list, std::string_view name) {
    return list.empty() || std::find(list.begin(), list.end(), name) != list.end();
  };
  for (const BenchShape& s : shapes())
    for (const Kind& k : kKinds)
      if (wanted(o.shapes, s.name) && wanted(o.kinds, k.name)) measure(o, s, k, sink);
}

}  // namespace sluice::bench
