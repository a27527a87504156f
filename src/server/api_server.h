// SPDX-License-Identifier: Apache-2.0
// The whole server: HTTP in front, the list of endpoints, the service behind them. It listens from the start and says
// 503 until set_ready(), so that a load balancer can watch a model load.
#pragma once

#include <chrono>
#include <memory>

#include "server/grammar_waiters.h"
#include "server/http/server.h"
#include "server/routes.h"
#include "server/service.h"
#include "server/workers.h"

namespace sluice::server {

class ApiServer {
 public:
  // Listens and serves at once. Throws as http::Server's constructor.
  ApiServer(const http::Options& options, ServiceConfig config);
  ~ApiServer();  // stop()

  uint16_t port() const { return http_.port(); }
  Service& service() { return service_; }
  void set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<EngineClient> engine);

  // Refuses new requests (503, /health too) and waits until the running ones are answered; after `timeout` they are
  // cut: their answers end with the reason "abort".
  void drain(std::chrono::milliseconds timeout);
  void stop();

 private:
  // A request on its way to its answer; it may be begun several times, until its grammars are compiled.
  struct Pending {
    const Route& route;
    ExchangePtr exchange;
    Workers& workers;
    std::vector<grammar::Source> waited_for;
  };
  void handle(const std::shared_ptr<http::Exchange>& exchange);
  void begin(const std::shared_ptr<Pending>& request);
  void answer(const std::shared_ptr<Pending>& request);

  Service service_;
  Workers workers_;
  Workers long_workers_;            // of long bodies, so that they keep no short one waiting
  Workers slow_workers_;            // of what waits for weights
  GrammarWaiters grammar_waiters_;  // of what waits for its grammar
  http::Server http_;
};

// Throws ApiError 401 unless the request carries the key (Authorization: Bearer, or X-API-Key); 403 for a Host header
// that is none of ours, as DNS rebinding sends it.
void check_access(const ServiceConfig& config, const http::Request& request, bool admin);
void check_host(const ServiceConfig& config, const http::Request& request);

// Throws ApiError 403 for what a page of another origin makes a browser send: a foreign Origin, or a Sec-Fetch-Site
// that says so. Only following a link to the page at / is nobody else's doing.
bool is_listed_origin(const ServiceConfig& config, std::string_view origin);
void check_origin(const ServiceConfig& config, const http::Request& request);

// Takes as long for any two strings of these lengths.
bool equal_in_constant_time(std::string_view a, std::string_view b);

}  // namespace sluice::server
