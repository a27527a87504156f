// SPDX-License-Identifier: Apache-2.0
// `sluice bench serving`: load on a running server; the table has the lines of sglang.bench_serving.
#include <CLI/CLI.hpp>
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <numeric>
#include <optional>
#include <random>
#include <thread>

#include "argument_checks.h"
#include "base/error.h"
#include "command.h"
#include "http_stream.h"

namespace sluice::apps {

namespace {
using Clock = std::chrono::steady_clock;

struct Options {
  std::string base_url = "http://127.0.0.1:30000", api_key;
  int num_prompts = 64, max_concurrency = 8, warmup_requests = 1;
  int input_len = 128, output_len = 64;
  double request_rate = 0;
  uint64_t seed = 1;
  bool json = false, whole = false;
};

struct Sample {
  bool ok = false;
  std::string error;
  double first_ms = 0, total_ms = 0;
  std::vector<double> gaps_ms;  // between the events that carry text
  int64_t input_tokens = 0, output_tokens = 0;
};

double ms_between(Clock::time_point a, Clock::time_point b) {
  return std::chrono::duration<double, std::milli>(b - a).count();
}

std::string request_json(const Options& o, int64_t vocab, std::mt19937_64& random) {
  std::uniform_int_distribution<int64_t> id(0, vocab - 1);
  std::vector<int64_t> prompt(static_cast<size_t>(o.input_len));
  for (int64_t& token : prompt) token = id(random);
  nlohmann::json body{
      {"prompt", prompt}, {"max_tokens", o.output_len}, {"temperature", 0}, {"ignore_eos", true}, {"stream", !o.whole}};
  if (!o.whole) body["stream_options"] = {{"include_usage", true}};
  return body.dump();
}

// An answer in one piece: its end is its first token's time too, and it has no gaps.
Sample ask_whole(const HttpTarget& target, const std::string& request) {
  Sample s;
  const Clock::time_point begin = Clock::now();
  try {
    const nlohmann::json answer = nlohmann::json::parse(http_post(target, "/v1/completions", request));
    s.input_tokens = answer.at("usage").at("prompt_tokens");
    s.output_tokens = answer.at("usage").at("completion_tokens");
    s.ok = true;
  } catch (const std::exception& error) {
    s.error = error.what();
  }
  s.first_ms = s.total_ms = ms_between(begin, Clock::now());
  return s;
}

Sample ask(const HttpTarget& target, const std::string& request) {
  Sample s;
  const Clock::time_point begin = Clock::now();
  std::optional<Clock::time_point> last;
  try {
    http_post_stream(target, "/v1/completions", request, [&](std::string_view event) {
      const Clock::time_point now = Clock::now();
      if (event == "[DONE]") {
        s.ok = true;
        return;
      }
      const nlohmann::json chunk = nlohmann::json::parse(event);
      if (chunk.contains("error")) fail(ErrorCode::io, "{}", chunk["error"].value("message", "?"));
      if (const auto& usage = chunk["usage"]; usage.is_object()) {
        s.input_tokens = usage["prompt_tokens"];
        s.output_tokens = usage["completion_tokens"];
      }
      if (chunk["choices"].empty()) return;
      last ? s.gaps_ms.push_back(ms_between(*last, now)) : void(s.first_ms = ms_between(begin, now));
      last = now;
    });
    if (!s.ok) s.error = "the stream ended early";
  } catch (const std::exception& error) {
    s.ok = false;
    s.error = error.what();
  }
  s.total_ms = ms_between(begin, last.value_or(Clock::now()));
  return s;
}

// Requests leave at their times, if there is a rate, and as soon as one of the lanes is free.
std::vector<Sample> run_load(const Options& o, const HttpTarget& target, const std::vector<std::string>& requests) {
  std::vector<double> start_ms(requests.size(), 0);
  if (o.request_rate > 0) {
    std::mt19937_64 random(o.seed);
    std::exponential_distribution<double> pause(o.request_rate);
    for (size_t i = 1; i < requests.size(); ++i) start_ms[i] = start_ms[i - 1] + 1e3 * pause(random);
  }
  std::vector<Sample> samples(requests.size());
  std::atomic<size_t> next{0};
  const Clock::time_point begin = Clock::now();
  const auto lane = [&] {
    for (size_t i = 0; (i = next++) < requests.size();) {
      std::this_thread::sleep_until(begin + std::chrono::microseconds(std::llround(start_ms[i] * 1e3)));
      samples[i] = o.whole ? ask_whole(target, requests[i]) : ask(target, requests[i]);
    }
  };
  std::vector<std::thread> lanes;
  const size_t wanted = std::min(static_cast<size_t>(o.max_concurrency), requests.size());
  try {
    while (lanes.size() < wanted) lanes.emplace_back(lane);
  } catch (const std::system_error&) {  // no more threads
    next = requests.size();
  }
  for (std::thread& t : lanes) t.join();
  if (lanes.size() < wanted)
    fail(ErrorCode::out_of_memory, "--max-concurrency is {}; this system has threads for {}", o.max_concurrency,
         lanes.size());
  return samples;
}

struct Distribution {
  explicit Distribution(std::vector<double> v) : values(std::move(v)) { std::sort(values.begin(), values.end()); }
  std::vector<double> values;
  double mean() const {
    return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
  }
  // Linear between neighbours, as numpy does it.
  double percentile(double p) const {
    if (values.empty()) return 0;
    const double at = p / 100 * static_cast<double>(values.size() - 1);
    const auto low = static_cast<size_t>(at);
    const size_t high = std::min(low + 1, values.size() - 1);
    return values[low] + (at - std::floor(at)) * (values[high] - values[low]);
  }
};

struct Result {
  double seconds = 0, concurrency = 0;
  int64_t completed = 0, failed = 0, input = 0, output = 0;
  Distribution e2e{{}}, first{{}}, per_token{{}}, gaps{{}};
};

Result summary(const std::vector<Sample>& samples, double seconds) {
  Result r;
  r.seconds = seconds;
  std::vector<double> e2e, first, per_token, gaps;
  for (const Sample& s : samples) {
    if (!s.ok) {
      ++r.failed;
      continue;
    }
    ++r.completed;
    r.input += s.input_tokens;
    r.output += s.output_tokens;
    e2e.push_back(s.total_ms);
    first.push_back(s.first_ms);
    if (s.output_tokens > 1) per_token.push_back((s.total_ms - s.first_ms) / static_cast<double>(s.output_tokens - 1));
    gaps.insert(gaps.end(), s.gaps_ms.begin(), s.gaps_ms.end());
    r.concurrency += s.total_ms / 1e3 / seconds;
  }
  r.e2e = Distribution(std::move(e2e));
  r.first = Distribution(std::move(first));
  r.per_token = Distribution(std::move(per_token));
  r.gaps = Distribution(std::move(gaps));
  return r;
}

void print_title(const char* title, char fill) {
  const std::string text = title;
  const size_t left = (50 - text.size()) / 2;
  std::printf("%s%s%s\n", std::string(left, fill).c_str(), title, std::string(50 - left - text.size(), fill).c_str());
}

void print_table(const Options& o, const Result& r) {
  const auto count = [](const char* name, int64_t n) { std::printf("%-40s %-10ld\n", name, static_cast<long>(n)); };
  const auto number = [](const std::string& name, double x) { std::printf("%-40s %-10.2f\n", name.c_str(), x); };
  const auto rate = [&](int64_t n) { return static_cast<double>(n) / r.seconds; };
  print_title(" Serving Benchmark Result ", '=');
  std::printf("%-40s %-10s\n", "Backend:", "sluice");
  o.request_rate > 0 ? number("Traffic request rate:", o.request_rate)
                     : void(std::printf("%-40s %-10s\n", "Traffic request rate:", "inf"));
  count("Max request concurrency:", o.max_concurrency);
  count("Successful requests:", r.completed);
  count("Failed requests:", r.failed);
  number("Benchmark duration (s):", r.seconds);
  count("Total input tokens:", r.input);
  count("Total generated tokens:", r.output);
  number("Request throughput (req/s):", rate(r.completed));
  number("Input token throughput (tok/s):", rate(r.input));
  number("Output token throughput (tok/s):", rate(r.output));
  number("Total token throughput (tok/s):", rate(r.input + r.output));
  number("Concurrency:", r.concurrency);
  const auto section = [&](const char* title, const char* name, const Distribution& d) {
    print_title(title, '-');
    number(fmt::format("Mean {} (ms):", name), d.mean());
    number(fmt::format("Median {} (ms):", name), d.percentile(50));
    for (const int p : {90, 95, 99}) number(fmt::format("P{} {} (ms):", p, name), d.percentile(p));
    number(fmt::format("Max {} (ms):", name), d.percentile(100));
  };
  section("End-to-End Latency", "E2E Latency", r.e2e);
  if (!o.whole) {
    section("Time to First Token", "TTFT", r.first);
    section("Time per Output Token (excl. 1st token)", "TPOT", r.per_token);
    section("Inter-Token Latency", "ITL", r.gaps);
  }
  print_title("", '=');
}

void print_json(const Options& o, const Result& r) {
  nlohmann::ordered_json j{{"backend", "sluice"},
                           {"request_rate", o.request_rate},
                           {"max_concurrency", o.max_concurrency},
                           {"random_input_len", o.input_len},
                           {"random_output_len", o.output_len},
                           {"completed", r.completed},
                           {"failed", r.failed},
                           {"duration", r.seconds},
                           {"total_input_tokens", r.input},
                           {"total_output_tokens", r.output},
                           {"request_throughput", static_cast<double>(r.completed) / r.seconds},
                           {"input_throughput", static_cast<double>(r.input) / r.seconds},
                           {"output_throughput", static_cast<double>(r.output) / r.seconds},
                           {"concurrency", r.concurrency}};
  const auto add = [&](const std::string& name, const Distribution& d) {
    j["mean_" + name + "_ms"] = d.mean();
    j["median_" + name + "_ms"] = d.percentile(50);
    for (const int p : {90, 95, 99}) j[fmt::format("p{}_{}_ms", p, name)] = d.percentile(p);
    j["max_" + name + "_ms"] = d.percentile(100);
  };
  add("e2e_latency", r.e2e);
  if (!o.whole) {
    add("ttft", r.first);
    add("tpot", r.per_token);
    add("itl", r.gaps);
  }
  std::printf("%s\n", j.dump().c_str());
}

void run(const Options& o) {
  HttpTarget target = parse_base_url(o.base_url);
  target.api_key = o.api_key;
  const int64_t vocab = nlohmann::json::parse(http_get(target, "/get_model_info")).value("vocab_size", int64_t{0});
  check(vocab > 0, "{} does not say its vocab_size at /get_model_info; it must be a sluice server", o.base_url);

  std::mt19937_64 random(o.seed);
  std::vector<std::string> warmup, requests;
  for (int i = 0; i < o.warmup_requests; ++i) warmup.push_back(request_json(o, vocab, random));
  for (int i = 0; i < o.num_prompts; ++i) requests.push_back(request_json(o, vocab, random));
  for (const std::string& request : warmup) {
    const Sample s = o.whole ? ask_whole(target, request) : ask(target, request);
    check(s.ok, "the first request failed: {}", s.error);
  }
  const Clock::time_point begin = Clock::now();
  const std::vector<Sample> samples = run_load(o, target, requests);
  const Result result = summary(samples, ms_between(begin, Clock::now()) / 1e3);
  o.json ? print_json(o, result) : print_table(o, result);
  for (const Sample& s : samples) {
    if (s.ok) continue;
    std::fprintf(stderr, "%ld requests failed, the first with: %s\n", static_cast<long>(result.failed),
                 s.error.c_str());
    break;
  }
}
}  // namespace

void add_bench_serving(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(parent, shared,
                                  {"serving", "load on a running server: throughput, TTFT, TPOT, ITL",
                                   "  sluice bench serving --num-prompts 64 --max-concurrency 8\n"
                                   "  sluice bench serving --base-url http://host:30000 --random-input-len 512 "
                                   "--random-output-len 128 --request-rate 2 --json\n"},
                                  [o] { run(*o); });
  const auto count = [&](const char* name, int& value, const char* what, int least) {
    command->add_option(name, value, what)->check(CLI::Range(least, 1 << 24))->capture_default_str();
  };
  command->add_option("--base-url", o->base_url, "the server")->capture_default_str();
  command->add_option("--api-key", o->api_key, "sent with every request");
  count("--num-prompts", o->num_prompts, "requests", 1);
  count("--max-concurrency", o->max_concurrency, "requests under way at once", 1);
  count("--random-input-len", o->input_len, "random tokens in a prompt", 1);
  count("--random-output-len", o->output_len, "tokens of each answer, whatever they are", 1);
  count("--warmup-requests", o->warmup_requests, "requests before the clock starts", 0);
  command->add_option("--request-rate", o->request_rate, "requests per second, at random intervals; 0: all at once")
      ->check(CLI::Range(0.0, 1e9))
      ->capture_default_str();
  check_uint64(*command->add_option("--seed", o->seed, "of prompts and intervals")->capture_default_str());
  command->add_flag("--disable-stream", o->whole, "ask for whole answers: throughput and end-to-end latency only");
  command->add_flag("--json", o->json, "print one JSON object");
}

}  // namespace sluice::apps
