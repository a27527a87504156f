// SPDX-License-Identifier: Apache-2.0
// GET /metrics: the engine's and the server's numbers under sluice:, with the names that SGLang's dashboards ask for;
// under sglang: the same, and under vllm: what vLLM's dashboards and routers read.
#include <unistd.h>

#include <fstream>

#include "server/endpoints.h"
#include "server/prometheus_text.h"

namespace sluice::server {

namespace {
struct Input {
  Service& service;
  std::shared_ptr<const ServedModel> model;
  std::shared_ptr<EngineClient> engine;
  engine::Metrics metrics;
};

double of(int64_t n) { return static_cast<double>(n); }

void add_histogram(PrometheusText& t, const char* name, const char* help, const engine::Histogram& h) {
  t.histogram(name, help, h.bounds(), h.counts(), h.sum());
}

void add_cache_info(PrometheusText& t, const Input& in) {
  const std::string block = std::to_string(in.engine->config().block_size), blocks = std::to_string(in.metrics.blocks);
  // Both numbers under vLLM's names, then under SGLang's.
  t.info("cache_config_info", "The cache of keys and values.",
         {{"block_size", block}, {"num_gpu_blocks", blocks}, {"page_size", block}, {"num_pages", blocks}});
}

void add_own(PrometheusText& t, const Input& in) {
  const engine::Metrics& m = in.metrics;
  const int64_t block_size = in.engine->config().block_size;
  const auto histogram = [&](const char* name, const char* help, const engine::Histogram& h) {
    add_histogram(t, name, help, h);
  };
  t.gauge("num_running_reqs", "Answers in the running batch.", of(m.running));
  t.gauge("num_queue_reqs", "Answers that wait.", of(m.waiting));
  t.gauge("token_usage", "Share of the cache's blocks in use.", m.token_usage());
  t.gauge("num_used_tokens", "Tokens of cache in blocks in use.", of(m.blocks_used * block_size));
  t.gauge("max_total_num_tokens", "Tokens that the cache holds.", of(m.blocks * block_size));
  t.gauge("gen_throughput", "New tokens per second, over the last second.", in.service.generation_throughput());
  t.gauge("cache_hit_rate", "Share of prompt tokens found in the prefix cache.", m.cache_hit_rate());
  t.gauge("spec_accept_length", "Tokens for each verification, the model's own included.", m.accept_length());
  t.gauge("spec_accept_rate", "Share of drafted tokens that were right.", m.accept_rate());
  t.gauge("engine_stalled_seconds", "How long the engine has been in its present step.", in.engine->stalled_seconds());
  t.gauge("startup_time_seconds", "From the start of the program until the server was ready.",
          in.service.load_seconds());
  t.gauge("weight_load_duration_seconds", "The model's share of it.", in.service.load_seconds());
  t.gauge("weight_memory_usage_gb", "Weights in memory.", of(in.model->info.weight_bytes) / 1e9);

  t.counter("num_requests_total", "Requests taken by the engine.", of(m.requests));
  t.counter("num_refused_requests_total", "Requests refused because the queue was full.", of(m.requests_refused));
  t.counter("num_aborted_requests_total", "Answers that were cancelled.", of(m.finished_cancelled));
  t.counter("num_retractions_total", "Answers that gave their cache back and were taken up again.", of(m.preemptions));
  t.counter("prompt_tokens_total", "Prompt tokens of admitted answers.", of(m.prompt_tokens));
  t.counter("cached_tokens_total", "Of those, found in the prefix cache.", of(m.cached_tokens));
  t.counter("generation_tokens_total", "New tokens.", of(m.generation_tokens));
  t.counter("spec_drafted_tokens_total", "Tokens guessed ahead.", of(m.drafted));
  t.counter("spec_accepted_tokens_total", "Of those, right.", of(m.accepted));
  const char* finished = "Answers by what ended them.";
  t.counter("finished_requests_total", finished, "finished_reason", "stop", of(m.finished_stop));
  t.counter("finished_requests_total", finished, "finished_reason", "length", of(m.finished_length));
  t.counter("finished_requests_total", finished, "finished_reason", "abort", of(m.finished_cancelled));
  t.counter("finished_requests_total", finished, "finished_reason", "error", of(m.finished_error));
  t.counter("engine_steps_total", "Forward passes of the model.", of(m.steps));
  t.counter("engine_rows_total", "Rows of those passes.", of(m.rows));

  histogram("time_to_first_token_seconds", "From arrival to the first new token.", m.first_token_seconds);
  histogram("inter_token_latency_seconds", "Between two new tokens of an answer.", m.inter_token_seconds);
  histogram("e2e_request_latency_seconds", "From arrival to the last token.", m.request_seconds);
  histogram("queue_time_seconds", "From arrival to the first step.", m.queue_seconds);
  histogram("step_seconds", "One step of the engine.", m.step_seconds);
  histogram("schedule_seconds", "The scheduler's share of a step.", m.schedule_seconds);
  histogram("overhead_seconds", "Everything of a step but the model and the sampling.", m.overhead_seconds);

  const FrontStats front = in.service.front();
  t.gauge("http_connections", "Open connections.", of(front.http.connections));
  t.gauge("http_requests_in_progress", "Requests without a complete answer.", of(front.http.exchanges));
  t.gauge("http_bodies_waiting", "Requests that are complete, but that nobody reads yet.",
          static_cast<double>(front.bodies_waiting));
  t.gauge("http_body_bytes", "Bodies of requests in memory.", of(front.http.body_bytes));
  t.counter("http_connections_refused_total", "Connections refused because as many as may be open were open.",
            of(front.http.refused));
  t.counter("http_connections_evicted_total", "Connections without a request that gave way to others.",
            of(front.http.evicted));
  for (const auto& [status, count] : front.http.answers)
    t.counter("http_responses_total", "Answers by status.", "status", std::to_string(status), of(count));
  add_cache_info(t, in);
}

void add_vllm(PrometheusText& t, const Input& in) {
  const engine::Metrics& m = in.metrics;
  t.gauge("num_requests_running", "Answers in the running batch.", of(m.running));
  t.gauge("num_requests_waiting", "Answers that wait.", of(m.waiting));
  t.gauge("kv_cache_usage_perc", "Share of the cache's blocks in use; 1 is all.", m.token_usage());
  t.gauge("gpu_cache_usage_perc", "The same under its older name.", m.token_usage());
  add_cache_info(t, in);
  t.counter("num_preemptions_total", "Answers that gave their cache back and were taken up again.", of(m.preemptions));
  t.counter("prompt_tokens_total", "Prompt tokens of admitted answers.", of(m.prompt_tokens));
  t.counter("generation_tokens_total", "New tokens.", of(m.generation_tokens));
  t.counter("prefix_cache_queries_total", "Prompt tokens looked for in the prefix cache.", of(m.prompt_tokens));
  t.counter("prefix_cache_hits_total", "Of those, found.", of(m.cached_tokens));
  t.counter("spec_decode_num_drafts_total", "Verifications of drafts.", of(m.verify_rounds));
  t.counter("spec_decode_num_draft_tokens_total", "Tokens guessed ahead.", of(m.drafted));
  t.counter("spec_decode_num_accepted_tokens_total", "Of those, right.", of(m.accepted));
  const char* finished = "Answers by what ended them.";
  t.counter("request_success_total", finished, "finished_reason", "stop", of(m.finished_stop));
  t.counter("request_success_total", finished, "finished_reason", "length", of(m.finished_length));
  t.counter("request_success_total", finished, "finished_reason", "abort", of(m.finished_cancelled));
  t.counter("request_success_total", finished, "finished_reason", "error", of(m.finished_error));
  add_histogram(t, "time_to_first_token_seconds", "From arrival to the first new token.", m.first_token_seconds);
  add_histogram(t, "inter_token_latency_seconds", "Between two new tokens of an answer.", m.inter_token_seconds);
  add_histogram(t, "time_per_output_token_seconds", "The same under its older name.", m.inter_token_seconds);
  add_histogram(t, "e2e_request_latency_seconds", "From arrival to the last token.", m.request_seconds);
  add_histogram(t, "request_queue_time_seconds", "From arrival to the first step.", m.queue_seconds);
  add_histogram(t, "request_prefill_time_seconds", "From the first step to the first new token.", m.prefill_seconds);
  add_histogram(t, "request_decode_time_seconds", "From the first new token to the last.", m.decode_seconds);
  add_histogram(t, "request_time_per_output_token_seconds", "Of an answer, per new token after the first.",
                m.token_seconds);
  add_histogram(t, "request_prompt_tokens", "Length of a prompt.", m.prompt_lengths);
  add_histogram(t, "request_generation_tokens", "Length of an answer.", m.answer_lengths);
  add_histogram(t, "request_max_num_generation_tokens", "Length of a request's longest answer.", m.longest_answers);
  add_histogram(t, "iteration_tokens_total", "Tokens of a step: of prompts and of answers.", m.step_tokens);
}

double resident_bytes() {
  double pages = 0;
  std::ifstream("/proc/self/statm") >> pages >> pages;  // the second number
  return pages * static_cast<double>(::sysconf(_SC_PAGESIZE));
}
}  // namespace

void metrics(Service& service, const ExchangePtr& exchange) {
  const Input in{service, service.model(), service.engine(), service.engine()->metrics()};
  PrometheusText t(in.model->names[0]);
  for (const std::string& prefix : service.config().metrics_prefixes) {
    t.set_prefix(prefix + ":");
    prefix == "vllm" ? add_vllm(t, in) : add_own(t, in);
  }
  t.process_gauge("process_resident_memory_bytes", "Memory of the process in RAM.", resident_bytes());
  exchange->reply({.body = t.str(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace sluice::server
