// SPDX-License-Identifier: Apache-2.0
// What engines rely on: CUDA graphs with a device-side token count, streams, devices, refit under a captured graph, the
// same bits always, and a token's independence of its batch.
#include <chrono>
#include <thread>

#include "device/cuda.h"
#include "moe/backend_sm90.h"
#include "tests/kernels_sm90/device_problem.h"
#include "tests/kernels_sm90/graph.h"

namespace sluice::test {
namespace {

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
  std::mt19937 rng = test::rng();
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
        call.workspace_size = workspace.bytes();
        call.num_tokens = count.as<int32_t>();
        const Graph graph(stream.get, [&] { moe->run(call, stream.get); });
        const auto all = static_cast<int32_t>(most);
        // Counts outside of 0 to the captured maximum are read as its ends.
        for (const int32_t given : {all, 1, 0, 7, all - 1, -1, INT32_MIN, all + 1, INT32_MAX}) {
          const int32_t n = std::clamp(given, 0, all);
          cuda(cudaMemcpy(count.data(), &given, 4, cudaMemcpyHostToDevice));
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
          exact.workspace_size = own.bytes();
          moe->run(exact, stream.get);
          auto got = download<uint16_t>(d.output);
          got.resize(used);
          ASSERT_EQ(std::vector<uint16_t>(replayed.begin(), replayed.begin() + static_cast<std::ptrdiff_t>(used)), got)
              << n << " tokens exactly";
        }
      }
}

// A context on a stream of device 0.
struct OnStream {
  explicit OnStream(void* stream) : queue(make_cuda_queue(*device, stream)), ctx{.pool = pool, .queue = *queue} {}
  ThreadPool pool{1};
  std::unique_ptr<Device> device = make_cuda_device(0);
  std::unique_ptr<Queue> queue;
  Context ctx;
};

// Of a call with the inputs and the output of `d`.
moe::MoeArgs device_args(const Problem& p, const DeviceProblem& d, const sm90::DeviceBuffer& workspace) {
  moe::MoeArgs args = p.args();
  args.hidden = d.hidden.data();
  args.logits = d.logits.data();
  args.bias = d.bias.data();
  args.output = d.output.data();
  args.workspace = workspace.data();
  args.workspace_size = workspace.bytes();
  return args;
}

TEST(Streams, RefitReachesACapturedGraph) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (MoeSpec s : specs())
    for (bool from_device : {false, true}) {
      s.bias = true;
      s.act_params = s.act == activation::Activation::swiglu;
      SCOPED_TRACE(to_string(s));
      const Case c{s, 12, Choice::bf16_logits, Pattern::distinct};
      const Problem before = make_problem(c, rng), after = make_problem(c, rng);
      OnStream on_default(nullptr);
      const auto backend = moe::make_sm90_backend();
      const auto layer = backend->prepare(on_default.ctx, s, before.weights);
      DeviceProblem d(after);
      const sm90::DeviceBuffer workspace = poisoned(layer->workspace_bytes(12));
      const moe::MoeArgs args = device_args(after, d, workspace);
      OwnStream stream;
      OnStream on(stream.get);
      const Graph graph(stream.get, [&] { layer->run(on.ctx, args); });
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
      layer->refit(on.ctx, w);
      graph.replay(stream.get);
      const auto got = download<uint16_t>(d.output);
      const auto fresh = backend->prepare(on_default.ctx, s, after.weights);
      poison(d.output);
      fresh->run(on_default.ctx, args);
      ASSERT_EQ(got, download<uint16_t>(d.output));
    }
}

TEST(Streams, SeveralStreamsShareALayer) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
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
        call.workspace_size = workspaces[i].bytes();
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
  std::mt19937 rng = test::rng();
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
      call.workspace_size = workspace.bytes();
      moe->run(call, nullptr);
      const sm90::DeviceGuard guard(device);
      ASSERT_EQ(widened(s.dtype, d->output), results.back()) << to_string(s);
    }
    for (const auto& r : results) ASSERT_EQ(r, results.front()) << to_string(s);
  }
}

// The first tokens of a problem whose routing is given.
Problem first_tokens(const Problem& all, int64_t tokens) {
  Problem p = all;
  p.tokens = tokens;
  p.hidden.resize(static_cast<size_t>(tokens * all.spec.hidden));
  p.hidden_tensor = all.hidden_tensor.rows(0, tokens);
  p.ids = all.ids.rows(0, tokens);
  p.given_weights = all.given_weights.rows(0, tokens);
  return p;
}

// Blocks that never run beside each other: the layer is told of four times the multiprocessors that there are, so that
// three of four blocks start when others end. No block may wait for the rows of one that has not started. Given ids and
// long rows stream weights before the tables are there; one or several launches, with K split and not. The reference
// takes a tenth of a second per token on the host, so it has the first two.
TEST(Streams, BlocksDoNotWaitForBlocksThatHaveNotStarted) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  const int most = 4 * sm90::multiprocessors();
  for (const MoeSpec& base : specs()) {
    MoeSpec s = base;
    s.experts = 12, s.hidden = 4096, s.inter = 128, s.routed = true;
    const Problem all = make_problem({s, 60, Choice::unpacked, Pattern::distinct}, rng);
    sm90::FusedMoe moe(s, most);
    moe.set_weights(all.weights, nullptr);
    for (int64_t tokens : {1, 60}) {
      SCOPED_TRACE(to_string(s) + " T=" + std::to_string(tokens));
      DeviceProblem d(first_tokens(all, tokens));
      const sm90::DeviceBuffer workspace = poisoned(moe.workspace_bytes(tokens));
      sm90::MoeCall call = d.call;
      call.workspace = workspace.data();
      call.workspace_size = workspace.bytes();
      OwnStream stream;
      for (int i = 0; i < 3; ++i) moe.run(call, stream.get);
      const auto start = std::chrono::steady_clock::now();
      while (cudaStreamQuery(stream.get) == cudaErrorNotReady)
        if (std::chrono::steady_clock::now() - start > std::chrono::seconds(20)) {
          std::printf("blocks wait for each other: %s T=%d\n", to_string(s).c_str(), static_cast<int>(tokens));
          std::fflush(stdout);
          std::_Exit(1);  // nothing ends a kernel that waits for ever but the process
        }
      std::vector<float> got = widened(s.dtype, d.output);
      for (const float v : got) ASSERT_FALSE(std::isnan(v)) << "a row was not written";
      const Problem checked = first_tokens(all, std::min<int64_t>(tokens, 2));
      got.resize(checked.hidden.size());
      Excursion e;
      e.add(reference_of(checked, d), got);
      ASSERT_LE(e.worst, 1);
    }
  }
}

template <class Call>
void expect_refused(Call&& call, const std::string& sentence) {
  try {
    call();
    ADD_FAILURE() << "accepted";
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    EXPECT_EQ(e.what(), sentence);
  }
}

// Weights are read in place on their own device, copied from the host, and refused on another device.
TEST(Streams, WeightsOfAnotherDeviceAreRefused) {
  using sm90::MemoryPlace;
  EXPECT_FALSE(sm90::read_in_place(MemoryPlace{}, 1, "the codes"));
  EXPECT_TRUE(sm90::read_in_place(MemoryPlace{true, false, 1}, 1, "the codes"));
  EXPECT_TRUE(sm90::read_in_place(MemoryPlace{false, true, 0}, 1, "the codes"));
  expect_refused(
      [] {
        sm90::read_in_place(MemoryPlace{true, false, 3}, 1, "the codes");
      },
      "the codes are in the memory of device 3; accepted: memory of device 1 or of the host");
  SLUICE_SKIP_WITHOUT_DEVICE();
  int count = 0;
  cuda(cudaGetDeviceCount(&count));
  if (count < 2) GTEST_SKIP() << "one device; two are needed";
  std::mt19937 rng = test::rng();
  const Problem p = make_problem({specs().front(), 5, Choice::f32_logits, Pattern::distinct}, rng);
  weights::ExpertWeights w = p.weights;
  sm90::DeviceBuffer elsewhere;
  {
    const sm90::DeviceGuard guard(1);
    elsewhere = upload(w.down.codes);
    w.down.codes = Tensor(w.down.codes.dtype(), w.down.codes.shape(), elsewhere.data(), nullptr);
  }
  OnStream on(nullptr);
  const auto layer = moe::make_sm90_backend()->prepare(on.ctx, p.spec, p.weights);
  expect_refused([&] { layer->refit(on.ctx, w); },
                 "the weights' codes are in the memory of device 1; accepted: memory of device 0 or of the host");
}

TEST(Streams, ARefusedRefitChangesNothing) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
  for (MoeSpec s : specs()) {
    s.bias = true;
    SCOPED_TRACE(to_string(s));
    const Case c{s, 12, Choice::bf16_logits, Pattern::distinct};
    const Problem before = make_problem(c, rng), after = make_problem(c, rng);
    OnStream on(nullptr);
    const auto layer = moe::make_sm90_backend()->prepare(on.ctx, s, before.weights);
    DeviceProblem d(before);
    const sm90::DeviceBuffer workspace = poisoned(layer->workspace_bytes(12));
    const moe::MoeArgs args = device_args(before, d, workspace);
    const auto outputs = [&] {
      poison(d.output);
      layer->run(on.ctx, args);
      return download<uint16_t>(d.output);
    };
    const auto first = outputs();
    weights::ExpertWeights absent = after.weights;
    absent.bias_down = {};
    expect_refused([&] { layer->refit(on.ctx, absent); },
                   "the down bias was given before this refit and is absent now; captured graphs could not follow");
    weights::ExpertWeights odd = after.weights;
    const Tensor& codes = after.weights.down.codes;
    const sm90::DeviceBuffer memory(codes.bytes() + 16);
    odd.down.codes = Tensor(codes.dtype(), codes.shape(), memory.as<uint8_t>() + 8, nullptr);
    expect_refused([&] { layer->refit(on.ctx, odd); }, "the weights' codes are not aligned to 16 bytes");
    EXPECT_EQ(first, outputs());
  }
}

TEST(Streams, TheSameBitsOnEveryRun) {
  SLUICE_SKIP_WITHOUT_DEVICE();
  std::mt19937 rng = test::rng();
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
  std::mt19937 rng = test::rng();
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
