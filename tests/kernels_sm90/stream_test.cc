// SPDX-License-Identifier: Apache-2.0
// What engines rely on: CUDA graphs with a device-side token count, streams, devices, refit under a captured graph, the
// same bits always, and a token's independence of its batch.
#include <thread>

#include "moe/device.h"
#include "tests/kernels_sm90/device_problem.h"

namespace sluice::test {
namespace {

struct Graph {
  cudaGraphExec_t exec = nullptr;
  template <class Body>
  Graph(cudaStream_t stream, Body&& body) {
    cudaGraph_t graph;
    cuda(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "capture");
    body();
    cuda(cudaStreamEndCapture(stream, &graph), "end of capture");
    cuda(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
    cudaGraphDestroy(graph);
  }
  ~Graph() { cudaGraphExecDestroy(exec); }
  void replay(cudaStream_t stream) const {
    cuda(cudaGraphLaunch(exec, stream), "replay");
    cuda(cudaStreamSynchronize(stream), "replay");
  }
};

struct OwnStream {
  cudaStream_t get = nullptr;
  OwnStream() { cuda(cudaStreamCreateWithFlags(&get, cudaStreamNonBlocking)); }
  ~OwnStream() { cudaStreamDestroy(get); }
};

std::vector<MoeSpec> specs() {
  std::vector<MoeSpec> out;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [x, input_name] : format::kInputFormats) {
      MoeSpec s;
      s.experts = 16, s.top_k = 4, s.hidden = 320, s.inter = 224;
      s.weights = f, s.inputs = x;
      s.act = out.size() % 2 == 0 ? activation::Activation::swiglu : activation::Activation::relu2;
      if (format::fits(f, x) && sm90::supports_spec(s)) out.push_back(s);
    }
  return out;
}

// Replays with other data and other counts equal eager calls of the same captured maximum, bit for bit; rows beyond the
// count are untouched. With `deterministic` they also equal calls of exactly that many tokens.
TEST(Streams, GraphReplayEqualsEagerCalls) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (const MoeSpec& base : specs())
    for (int64_t most : {16, 90})
      for (bool deterministic : {false, true}) {
        MoeSpec s = base;
        s.deterministic = deterministic;
        SCOPED_TRACE(to_string(s) + " up to " + std::to_string(most));
        const Problem p = make_problem({s, most, Choice::f32_logits, Pattern::distinct}, rng);
        const auto moe = prepared(p);
        DeviceProblem d(p);
        const sm90::DeviceBuffer workspace = poisoned(moe->workspace_bytes(most)), count(4);
        OwnStream stream;
        sm90::MoeCall call = d.call;
        call.workspace = workspace.data();
        call.num_tokens = count.as<int32_t>();
        const Graph graph(stream.get, [&] { moe->run(call, stream.get); });
        for (const int32_t n : {static_cast<int32_t>(most), 1, 0, 7, static_cast<int32_t>(most) - 1}) {
          cuda(cudaMemcpy(count.data(), &n, 4, cudaMemcpyHostToDevice));
          poison(d.output);
          graph.replay(stream.get);
          const auto replayed = download<uint16_t>(d.output);
          poison(d.output);
          moe->run(call, stream.get);
          ASSERT_EQ(replayed, download<uint16_t>(d.output)) << n << " tokens";
          const auto used = static_cast<size_t>(n * s.hidden);
          for (size_t i = used; i < replayed.size(); ++i) ASSERT_EQ(replayed[i], 0xffff) << "beyond " << n << " tokens";
          if (!deterministic || n == 0) continue;
          sm90::MoeCall exact = d.call;
          exact.tokens = n;
          const sm90::DeviceBuffer own = poisoned(moe->workspace_bytes(n));
          exact.workspace = own.data();
          moe->run(exact, stream.get);
          auto got = download<uint16_t>(d.output);
          got.resize(used);
          ASSERT_EQ(std::vector<uint16_t>(replayed.begin(), replayed.begin() + static_cast<std::ptrdiff_t>(used)), got)
              << n << " tokens exactly";
        }
      }
}

TEST(Streams, RefitReachesACapturedGraph) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (MoeSpec s : specs())
    for (bool from_device : {false, true}) {
      s.bias = true;
      s.act_params = s.act == activation::Activation::swiglu;
      SCOPED_TRACE(to_string(s));
      const Case c{s, 12, Choice::bf16_logits, Pattern::distinct};
      const Problem before = make_problem(c, rng), after = make_problem(c, rng);
      const auto layer = moe::make_device_moe(s, before.weights, 0, nullptr);
      DeviceProblem d(after);
      const sm90::DeviceBuffer workspace = poisoned(layer->workspace_bytes(12));
      moe::MoeArgs args = after.args();
      args.hidden = d.hidden.data();
      args.logits = d.logits.data();
      args.bias = d.bias.data();
      args.output = d.output.data();
      args.workspace = workspace.data();
      OwnStream stream;
      const Graph graph(stream.get, [&] { layer->run(args, {stream.get, nullptr, true}); });
      graph.replay(stream.get);
      weights::ExpertWeights w = after.weights;
      std::vector<sm90::DeviceBuffer> keep;
      if (from_device)
        for (weights::QuantTensor* q : {&w.up, &w.gate, &w.down})
          for (Tensor* t : {&q->codes, &q->scales, &q->global}) {
            if (t->empty()) continue;
            keep.push_back(upload(*t));
            *t = Tensor(t->dtype(), t->shape(), keep.back().data(), nullptr);
          }
      layer->refit(w, stream.get);
      graph.replay(stream.get);
      const auto got = download<uint16_t>(d.output);
      const auto fresh = moe::make_device_moe(s, after.weights, 0, nullptr);
      poison(d.output);
      fresh->run(args, {nullptr, nullptr, true});
      ASSERT_EQ(got, download<uint16_t>(d.output));
    }
}

TEST(Streams, SeveralStreamsShareALayer) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (const MoeSpec& s : specs()) {
    const Problem p = make_problem({s, 33, Choice::f32_logits, Pattern::distinct}, rng);
    const auto moe = prepared(p);
    DeviceProblem alone(p);
    const auto expected = alone.run(*moe);
    constexpr int kStreams = 4;
    std::vector<std::unique_ptr<DeviceProblem>> each;
    std::vector<sm90::DeviceBuffer> workspaces;
    std::vector<OwnStream> streams(kStreams);
    for (int i = 0; i < kStreams; ++i) {
      each.push_back(std::make_unique<DeviceProblem>(p));
      workspaces.push_back(poisoned(moe->workspace_bytes(33)));
    }
    cuda(cudaDeviceSynchronize());
    std::vector<std::thread> threads;
    for (size_t i = 0; i < kStreams; ++i)
      threads.emplace_back([&, i] {
        sm90::MoeCall call = each[i]->call;
        call.workspace = workspaces[i].data();
        for (int repeat = 0; repeat < 20; ++repeat) moe->run(call, streams[i].get);
      });
    for (auto& t : threads) t.join();
    for (auto& d : each) ASSERT_EQ(widened(s.dtype, d->output), expected) << to_string(s);
  }
}

TEST(Streams, SeveralDevicesInOneProcess) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  int count = 0;
  cuda(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one device; two are needed";
  std::mt19937 rng = fresh_rng();
  for (const MoeSpec& s : specs()) {
    const Problem p = make_problem({s, 21, Choice::f32_logits, Pattern::distinct}, rng);
    std::vector<std::vector<float>> results;
    for (int device = 0; device < count; ++device) {
      std::unique_ptr<sm90::FusedMoe> moe;
      std::unique_ptr<DeviceProblem> d;
      {
        const sm90::DeviceGuard guard(device);
        moe = prepared(p);
        d = std::make_unique<DeviceProblem>(p);
        results.push_back(d->run(*moe));
      }
      // Called while another device is current.
      const sm90::DeviceGuard other((device + 1) % count);
      sm90::MoeCall call = d->call;
      sm90::DeviceBuffer workspace;
      {
        const sm90::DeviceGuard guard(device);
        workspace = poisoned(moe->workspace_bytes(21));
      }
      call.workspace = workspace.data();
      moe->run(call, nullptr);
      const sm90::DeviceGuard guard(device);
      ASSERT_EQ(widened(s.dtype, d->output), results.back()) << to_string(s);
    }
    for (const auto& r : results) ASSERT_EQ(r, results.front()) << to_string(s);
  }
}

TEST(Streams, TheSameBitsOnEveryRun) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (const MoeSpec& s : specs())
    for (int64_t tokens : {2, 50, 700}) {
      const Problem p = make_problem({s, tokens, Choice::bf16_logits, Pattern::distinct}, rng);
      const auto moe = prepared(p);
      DeviceProblem d(p);
      const auto first = d.run(*moe);
      for (int i = 0; i < 5; ++i) ASSERT_EQ(first, d.run(*moe, {}, i % 2 == 0)) << to_string(s) << " T=" << tokens;
    }
}

// Equal tile: a token alone, in a small and in a large batch gives the same bits.
TEST(Streams, ATokenDoesNotDependOnItsBatch) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = fresh_rng();
  for (MoeSpec s : specs()) {
    s.deterministic = true;
    SCOPED_TRACE(to_string(s));
    const int64_t all = 300;
    const Problem p = make_problem({s, all, Choice::f32_logits, Pattern::distinct}, rng);
    const auto moe = prepared(p);
    DeviceProblem d(p);
    const auto together = d.run(*moe);
    for (const auto& [begin, count] : {std::pair<int64_t, int64_t>{0, 1}, {57, 1}, {120, 20}, {200, 100}}) {
      Problem part = p;
      part.tokens = count;
      part.hidden_tensor = p.hidden_tensor.rows(begin, begin + count);
      part.logits = p.logits.rows(begin, begin + count);
      DeviceProblem alone(part);
      const auto got = alone.run(*moe);
      const auto from = together.begin() + static_cast<std::ptrdiff_t>(begin * s.hidden);
      ASSERT_EQ(got, std::vector<float>(from, from + static_cast<std::ptrdiff_t>(count * s.hidden)))
          << "tokens " << begin << " to " << begin + count;
    }
  }
}

}  // namespace
}  // namespace sluice::test
