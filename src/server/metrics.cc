// SPDX-License-Identifier: Apache-2.0
// GET /metrics, with the names that SGLang's dashboards ask for, under sluice: instead of sglang:
#include "server/endpoints.h"
#include "server/prometheus_text.h"

namespace sluice::server {

void metrics(Service& service, const ExchangePtr& exchange) {
  const auto model = service.model();
  const engine::Metrics m = service.backend()->metrics();
  PrometheusText t(model->names[0]);
  const auto of = [](int64_t n) { return static_cast<double>(n); };
  const auto histogram = [&](const char* name, const char* help, const engine::Histogram& h) {
    t.histogram(name, help, h.bounds(), h.counts(), h.sum());
  };

  t.gauge("num_running_reqs", "Answers in the running batch.", of(m.running));
  t.gauge("num_queue_reqs", "Answers that wait.", of(m.waiting));
  t.gauge("token_usage", "Share of the cache's blocks in use.", m.token_usage());
  t.gauge("num_used_tokens", "Tokens of cache in blocks in use.",
          of(m.blocks_used * service.backend()->config().block_size));
  t.gauge("max_total_num_tokens", "Tokens that the cache holds.",
          of(m.blocks * service.backend()->config().block_size));
  t.gauge("gen_throughput", "New tokens per second, over the last second.", service.generation_throughput());
  t.gauge("cache_hit_rate", "Share of prompt tokens found in the prefix cache.", m.cache_hit_rate());
  t.gauge("spec_accept_length", "Tokens for each verification, the model's own included.", m.accept_length());
  t.gauge("spec_accept_rate", "Share of drafted tokens that were right.", m.accept_rate());
  t.gauge("engine_stalled_seconds", "How long the engine has been in its present step.",
          service.backend()->stalled_seconds());
  t.gauge("startup_time_seconds", "From the start of the program until the server was ready.", service.load_seconds());
  t.gauge("weight_load_duration_seconds", "The model's share of it.", service.load_seconds());
  t.gauge("weight_memory_usage_gb", "Weights in memory.", of(model->info.weight_bytes) / 1e9);

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
  t.counter("engine_steps_total", "Passes of the model.", of(m.steps));
  t.counter("engine_rows_total", "Rows of those passes.", of(m.rows));

  histogram("time_to_first_token_seconds", "From arrival to the first new token.", m.first_token_seconds);
  histogram("inter_token_latency_seconds", "Between two new tokens of an answer.", m.inter_token_seconds);
  histogram("e2e_request_latency_seconds", "From arrival to the last token.", m.request_seconds);
  histogram("queue_time_seconds", "From arrival to the first step.", m.queue_seconds);
  histogram("step_seconds", "One step of the engine.", m.step_seconds);
  histogram("schedule_seconds", "The scheduler's share of a step.", m.schedule_seconds);
  histogram("overhead_seconds", "Everything of a step but the model and the sampling.", m.overhead_seconds);
  exchange->reply({.body = t.str(), .content_type = "text/plain; version=0.0.4; charset=utf-8"});
}

}  // namespace sluice::server
