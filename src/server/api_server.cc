// SPDX-License-Identifier: Apache-2.0
#include "server/api_server.h"

#include <algorithm>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/routes.h"

namespace sluice::server {

namespace {
constexpr int kWorkers = 2;           // they parse and tokenise; the engine has the other cores
constexpr size_t kMostWaiting = 256;  // requests that are complete but not looked at

// Adds headers to whatever the answer is.
class WithHeaders final : public http::Exchange {
 public:
  WithHeaders(std::shared_ptr<http::Exchange> inner, std::vector<http::Header> headers)
      : inner_(std::move(inner)), headers_(std::move(headers)) {}
  const http::Request& request() const override { return inner_->request(); }
  void reply(http::Response r) override { inner_->reply(with(std::move(r))); }
  void begin_stream(http::Response r) override { inner_->begin_stream(with(std::move(r))); }
  void write(std::string bytes) override { inner_->write(std::move(bytes)); }
  void end() override { inner_->end(); }
  void on_gone(std::function<void()> callback) override { inner_->on_gone(std::move(callback)); }
  void post(std::function<void()> job) override { inner_->post(std::move(job)); }

 private:
  http::Response with(http::Response r) const {
    r.headers.insert(r.headers.end(), headers_.begin(), headers_.end());
    return r;
  }
  std::shared_ptr<http::Exchange> inner_;
  std::vector<http::Header> headers_;
};

// Nothing is said to other origins unless the command line names them: else any page that a user opens could talk to
// the server on their machine.
std::vector<http::Header> cors_headers(const ServiceConfig& config, const http::Request& request) {
  const std::string origin(request.header("Origin"));
  const auto listed = [&](std::string_view o) {
    return std::find(config.cors_origins.begin(), config.cors_origins.end(), o) != config.cors_origins.end();
  };
  if (origin.empty() || (!listed(origin) && !listed("*"))) return {};
  return {{"Access-Control-Allow-Origin", listed(origin) ? origin : "*"}, {"Vary", "Origin"}};
}

void preflight(const ExchangePtr& exchange, bool allowed_origin, const std::string& methods) {
  if (!allowed_origin)
    throw ApiError(403, "permission_error", "requests from other origins are not allowed; start with --cors-origins",
                   "", "origin_not_allowed");
  exchange->reply({.status = 204,
                   .headers = {{"Access-Control-Allow-Methods", methods},
                               {"Access-Control-Allow-Headers", "Authorization, Content-Type, X-API-Key"},
                               {"Access-Control-Max-Age", "600"}}});
}

// A page of another origin can send a form or plain text without asking, but not JSON.
void check_content_type(const http::Request& request) {
  if (request.method != "POST" || request.body.empty()) return;
  std::string_view type = request.header("Content-Type");
  type = type.substr(0, type.find(';'));
  while (type.ends_with(' ')) type.remove_suffix(1);
  if (!http::equal_ignoring_case(type, "application/json"))
    throw ApiError(415, "invalid_request_error",
                   fmt::format("the Content-Type is {}; accepted: application/json", io::quote(type)));
  const std::string_view coding = request.header("Content-Encoding");
  if (!coding.empty() && !http::equal_ignoring_case(coding, "identity"))
    throw ApiError(415, "invalid_request_error",
                   fmt::format("the Content-Encoding is {}; accepted: a body as it is", io::quote(coding)));
}

void answer(Service& service, const Route& route, const ExchangePtr& exchange) {
  try {
    route.answer(service, exchange);
  } catch (const std::exception& error) {
    exchange->reply(error_response(to_api_error(error)));
  }
}

const Route& route_of(const http::Request& request) {
  std::string allowed;
  const Route* route = find_route(request.method, request.path, allowed);
  if (route != nullptr) return *route;
  if (allowed.empty())
    throw ApiError(404, "invalid_request_error", fmt::format("there is no {} on this server", io::quote(request.path)),
                   "", "not_found");
  throw ApiError(405, "invalid_request_error",
                 fmt::format("{} takes {}, not {}", request.path, allowed, request.method), "", "method_not_allowed");
}
}  // namespace

ApiServer::ApiServer(const http::Options& options, ServiceConfig config)
    : service_(std::move(config)),
      workers_(kWorkers, kMostWaiting),
      http_(
          options, [this](std::shared_ptr<http::Exchange> exchange) { handle(exchange); },
          [](int status, std::string_view sentence) { return error_body(status, sentence); }) {
  http_.every(std::chrono::seconds(1), [this] { service_.tick(); });
  http_.start();
}

ApiServer::~ApiServer() { stop(); }

void ApiServer::set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<Backend> backend) {
  service_.set_ready(std::move(model), std::move(backend));
}

void ApiServer::handle(const std::shared_ptr<http::Exchange>& plain) {
  const http::Request& request = plain->request();
  const std::vector<http::Header> cors = cors_headers(service_.config(), request);
  const ExchangePtr exchange = cors.empty() ? plain : std::make_shared<WithHeaders>(plain, cors);
  try {
    check_host(service_.config(), request);
    std::string allowed;
    if (request.method == "OPTIONS" && find_route("OPTIONS", request.path, allowed) == nullptr && !allowed.empty())
      return preflight(exchange, !cors.empty(), allowed);
    const Route& route = route_of(request);
    if (route.access != Access::open) check_access(service_.config(), request, route.access == Access::admin);
    check_content_type(request);
    if (route.at_once) return answer(service_, route, exchange);
    if (!workers_.submit([this, &route, exchange] { answer(service_, route, exchange); }))
      throw ApiError(503, "overloaded_error", "too many requests wait to be read; try again later", "",
                     "server_overloaded");
  } catch (const ApiError& error) {
    http::Response response = error_response(error);
    if (error.status == 405) {
      std::string allowed;
      find_route(request.method, request.path, allowed);
      response.headers.push_back({"Allow", allowed});
    }
    exchange->reply(std::move(response));
  }
}

void ApiServer::drain(std::chrono::milliseconds timeout) {
  const auto end = std::chrono::steady_clock::now() + timeout;
  const bool ready = service_.state() == State::ready;
  service_.set_draining();
  if (!ready) return;
  const auto engine = service_.backend();
  engine->drain(timeout);
  engine->stop();  // what is left ends as cancelled, and says so to its client
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  http_.wait_until_answered(std::max(left, std::chrono::milliseconds(1000)));
}

void ApiServer::stop() { http_.stop(); }

}  // namespace sluice::server
