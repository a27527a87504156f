// SPDX-License-Identifier: Apache-2.0
// The kernels of sampling alone, without the copies of requests and results: microseconds per call in a CUDA graph of
// calls, each with logits that the call before it did not read. Beside it the sum of the chosen tokens, which tells two
// versions apart that choose differently.
#include <algorithm>
#include <cstdio>
#include <random>
#include <vector>

#include "kernels/sm90/sample/sample.h"
#include "sm90_bench.h"

using namespace sluice;
using namespace sluice::bench;

namespace {

constexpr int64_t kVocab = 151936;
constexpr int kCalls = 8, kReplays = 10;

struct Setting {
  const char* name;
  double temperature, top_p;
  int top_k;
};
constexpr Setting kSettings[] = {
    {"greedy", 0, 1, 0}, {"temperature", 1, 1, 0}, {"top_k 40", 1, 1, 40}, {"top_p 0.95", 1, 0.95, 0}};

// Normal logits; peaked: with a deviation of 2.5, and 30 tokens in front as a trained model has them.
std::vector<float> random_logits(std::mt19937& rng, int64_t rows, bool peaked) {
  std::normal_distribution<float> normal;
  std::vector<float> logits(static_cast<size_t>(kVocab * rows));
  for (float& v : logits) v = peaked ? 2.5f * normal(rng) + (rng() % 5000 == 0 ? 8.0f : 0.0f) : normal(rng);
  return logits;
}

void measure(std::mt19937& rng, int rows, bool peaked) {
  const std::vector<float> host = random_logits(rng, std::min(rows, 16), peaked);
  const auto bytes = static_cast<int64_t>(host.size()) * 4;
  const int64_t sets = 2 + 256 / rows;
  sm90::DeviceBuffer logits(4 * kVocab * rows * sets);
  for (int64_t at = 0; at + bytes <= logits.bytes(); at += bytes)
    sm90::copy_to_device(logits.as<char>() + at, host.data(), bytes, nullptr);
  sm90::DeviceBuffer outcomes(rows * static_cast<int64_t>(sizeof(sm90::SampleOutcome)));
  sm90::DeviceBuffer sent(rows * static_cast<int64_t>(sizeof(sm90::SampleRequest)));
  std::printf("%s B=%d:", peaked ? "peaked" : "normal", rows);
  for (const Setting& s : kSettings) {
    std::vector<sm90::SampleRequest> requests(static_cast<size_t>(rows));
    for (int i = 0; i < rows; ++i) {
      sm90::SampleRequest& r = requests[static_cast<size_t>(i)];
      r.row = i, r.forced = -1, r.top_logprobs = -1, r.mask = -1;
      r.temperature = s.temperature, r.top_p = s.top_p, r.top_k = s.top_k;
      r.uniform = std::uniform_real_distribution<double>()(rng);
    }
    sm90::copy_to_device(sent.data(), requests.data(), sent.bytes(), nullptr);
    sm90::synchronize(nullptr);
    sm90::SampleArgs a{};
    a.stride = kVocab;
    a.vocab = static_cast<int>(kVocab);
    a.requests = sent.as<sm90::SampleRequest>();
    a.rows = rows;
    a.drawn = s.temperature != 0;
    a.outcomes = outcomes.as<sm90::SampleOutcome>();
    const double us = replayed_us(kCalls, kReplays, [&](cudaStream_t stream, int c) {
      a.logits = logits.as<float>() + c % sets * kVocab * rows;
      sm90::launch_sample(a, stream, true);
    });
    std::vector<sm90::SampleOutcome> got(static_cast<size_t>(rows));
    sm90::copy_to_host(got.data(), outcomes.data(), outcomes.bytes(), nullptr);
    sm90::synchronize(nullptr);
    int64_t sum = 0;
    for (const sm90::SampleOutcome& o : got) sum += o.token;
    std::printf("  %s %.1f (%lld)", s.name, us, static_cast<long long>(sum));
  }
  std::printf("\n");
}

}  // namespace

int main() {
  try {
    sm90::allow_sample();
    std::mt19937 rng(1);
    for (const bool peaked : {false, true})
      for (const int rows : {1, 8, 64, 256}) measure(rng, rows, peaked);
  } catch (const std::exception& e) {
    std::fprintf(stderr, "sample_sm90: %s\n", e.what());
    return 1;
  }
}
