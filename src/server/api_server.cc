// SPDX-License-Identifier: Apache-2.0
#include "server/api_server.h"

#include <algorithm>

#include "io/quote.h"
#include "server/api_error.h"

namespace sluice::server {

namespace {
constexpr int kWorkers = 2;           // they parse and tokenise; the engine has the other cores
constexpr size_t kMostWaiting = 256;  // requests that are complete but not looked at, or wait for their grammars
// A longer body waits for other long ones, which have a thread of their own: 30 MB take a second to read, and gigabytes
// when several are read at once. This one holds 60,000 tokens and takes some 30 ms.
constexpr size_t kLongBody = size_t{256} << 10;

// Adds headers to whatever the answer is, the request's id among them, and tells the log of refusals.
class Named final : public http::Exchange {
 public:
  Named(std::shared_ptr<http::Exchange> inner, const ServiceConfig& config, std::string id,
        std::vector<http::Header> headers)
      : inner_(std::move(inner)), config_(config), id_(std::move(id)), headers_(std::move(headers)) {
    headers_.push_back({"X-Request-Id", id_});
  }
  const http::Request& request() const override { return inner_->request(); }
  std::string_view request_id() const override { return id_; }
  void reply(http::Response r) override {
    if (r.status >= 400)
      config_.log(fmt::format("{}: {} {} {}", id_, request().method, io::printable(request().path), r.status));
    inner_->reply(with(std::move(r)));
  }
  void begin_stream(http::Response r) override { inner_->begin_stream(with(std::move(r))); }
  void write(std::string bytes) override { inner_->write(std::move(bytes)); }
  void end() override { inner_->end(); }
  void fail(http::Response reply, std::string last) override { inner_->fail(with(std::move(reply)), std::move(last)); }
  void on_gone(std::function<void()> callback) override { inner_->on_gone(std::move(callback)); }
  void post(std::function<void()> job) override { inner_->post(std::move(job)); }

 private:
  http::Response with(http::Response r) const {
    r.headers.insert(r.headers.end(), headers_.begin(), headers_.end());
    return r;
  }
  std::shared_ptr<http::Exchange> inner_;
  const ServiceConfig& config_;
  std::string id_;
  std::vector<http::Header> headers_;
};

// Nothing is said to other origins unless the command line names them: else any page that a user opens could talk to
// the server on their machine.
std::vector<http::Header> cors_headers(const ServiceConfig& config, const http::Request& request) {
  const std::string origin(request.header("Origin"));
  if (origin.empty() || !is_listed_origin(config, origin)) return {};
  const bool by_name =
      std::find(config.cors_origins.begin(), config.cors_origins.end(), origin) != config.cors_origins.end();
  return {{"Access-Control-Allow-Origin", by_name ? origin : "*"},
          {"Access-Control-Expose-Headers", "X-Request-Id, Retry-After"},
          {"Vary", "Origin"}};
}

// The headers that a page of `request`'s origin may send: for a listed one those that it asks for, as OpenAI's and
// Anthropic's clients have many of their own.
std::string allowed_headers(const ServiceConfig& config, const http::Request& request) {
  constexpr size_t kMostBytes = 1024;
  constexpr std::string_view kNames =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789!#$%&'*+-.^_`|~, ";  // RFC 9110's tokens, a list
  const std::string_view asked = request.header("Access-Control-Request-Headers");
  const bool may_name = is_listed_origin(config, request.header("Origin"));
  if (may_name && !asked.empty() && asked.size() <= kMostBytes && asked.find_first_not_of(kNames) == asked.npos)
    return std::string(asked);
  return "Authorization, Content-Type, X-API-Key, X-Request-Id";
}

void preflight(const ServiceConfig& config, const ExchangePtr& exchange, const std::string& methods) {
  exchange->reply({.status = 204,
                   .headers = {{"Access-Control-Allow-Methods", methods},
                               {"Access-Control-Allow-Headers", allowed_headers(config, exchange->request())},
                               {"Access-Control-Max-Age", "600"}}});
}

// A page of another origin can send a form or plain text without asking, but not JSON.
void check_content_type(const http::Request& request) {
  if (request.method != "POST" || request.body.empty()) return;
  std::string_view type = request.header("Content-Type");
  type = type.substr(0, type.find(';'));
  type = type.substr(0, type.find_last_not_of(" \t") + 1);  // RFC 9110, 5.6.6: both may stand before the semicolon
  if (!http::equal_ignoring_case(type, "application/json"))
    throw ApiError(415, "invalid_request_error",
                   fmt::format("the Content-Type is {}; accepted: application/json", io::quote(type)));
  const std::string_view coding = request.header("Content-Encoding");
  if (!coding.empty() && !http::equal_ignoring_case(coding, "identity"))
    throw ApiError(415, "invalid_request_error",
                   fmt::format("the Content-Encoding is {}; accepted: a body as it is", io::quote(coding)));
}

ApiError overloaded(const std::string& sentence) {
  return ApiError(503, "overloaded_error", sentence, "", "server_overloaded");
}

void refuse(const ExchangePtr& exchange, const ApiError& error) {
  exchange->reply(refusal(exchange->request().path, error));
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

// The paths are what a supervisor must be able to ask while everything else is taken.
http::Options for_front(http::Options options, Service& service) {
  options.kept_paths = {"/health", "/ping", "/metrics"};
  options.new_request_id = [&service] { return service.new_id("req-"); };
  options.on_refusal = [log = service.config().log](int status, std::string_view id) {
    log(fmt::format("{}: {} before it was read", id.empty() ? "a request" : id, status));
  };
  return options;
}
}  // namespace

ApiServer::ApiServer(const http::Options& options, ServiceConfig config)
    : service_(std::move(config)),
      workers_(kWorkers, kMostWaiting),
      long_workers_(1, kMostWaiting),
      slow_workers_(1, kMostWaiting),
      grammar_waiters_(kMostWaiting),
      http_(
          for_front(options, service_), [this](std::shared_ptr<http::Exchange> exchange) { handle(exchange); },
          [](int status, std::string_view sentence, std::string_view path) {
            return refusal(path, to_api_error(status, sentence)).body;
          }) {
  service_.set_front([this] {
    return FrontStats{http_.stats(), workers_.waiting() + long_workers_.waiting() + slow_workers_.waiting() +
                                         grammar_waiters_.waiting()};
  });
  http_.every(std::chrono::seconds(1), [this] { service_.tick(); });
  http_.start();
}

ApiServer::~ApiServer() { stop(); }

void ApiServer::set_ready(std::shared_ptr<const ServedModel> model, std::shared_ptr<EngineClient> engine) {
  grammar_waiters_.watch(model);
  service_.set_ready(std::move(model), std::move(engine));
}

void ApiServer::begin(const std::shared_ptr<Pending>& request) {
  if (!request->workers.submit([this, request] { answer(request); }))
    refuse(request->exchange, overloaded("too many requests wait to be read; try again later"));
}

void ApiServer::answer(const std::shared_ptr<Pending>& request) {
  const ExchangePtr& exchange = request->exchange;
  try {
    request->route.answer(service_, exchange);
  } catch (const NotCompiled& missing) {
    std::vector<grammar::Source>& before = request->waited_for;
    // It has taken too long to begin, or others have pushed it out of the cache.
    if (std::find(before.begin(), before.end(), missing.source) != before.end())
      return refuse(exchange, overloaded("grammars take long to compile; try again later"));
    before.push_back(missing.source);
    if (!grammar_waiters_.wait(missing.source, [this, request] { begin(request); }))
      refuse(exchange, overloaded("too many requests wait for their grammars; try again later"));
  } catch (const std::exception& error) {
    refuse(exchange, to_api_error(error));
  }
}

void ApiServer::handle(const std::shared_ptr<http::Exchange>& plain) {
  const http::Request& request = plain->request();
  std::string id(http::request_id_of(request));
  if (id.empty()) id = service_.new_id("req-");
  const ExchangePtr exchange =
      std::make_shared<Named>(plain, service_.config(), std::move(id), cors_headers(service_.config(), request));
  try {
    check_host(service_.config(), request);
    check_origin(service_.config(), request);
    std::string allowed;
    if (request.method == "OPTIONS" && find_route("OPTIONS", request.path, allowed) == nullptr && !allowed.empty())
      return preflight(service_.config(), exchange, allowed);
    const Route& route = route_of(request);
    if (route.access != Access::open) check_access(service_.config(), request, route.access == Access::admin);
    check_content_type(request);
    Workers& workers = route.slow ? slow_workers_ : request.body.size() > kLongBody ? long_workers_ : workers_;
    const auto pending = std::make_shared<Pending>(Pending{route, exchange, workers, {}});
    if (route.at_once)
      answer(pending);
    else
      begin(pending);
  } catch (const ApiError& error) {
    http::Response response = refusal(request.path, error);
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
  grammar_waiters_.release();  // to be told that the server is draining
  const auto engine = service_.engine();
  engine->drain(timeout);
  engine->stop();  // what is left ends as cancelled, and says so to its client
  const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(end - std::chrono::steady_clock::now());
  http_.wait_until_answered(std::max(left, std::chrono::milliseconds(1000)));
}

void ApiServer::stop() { http_.stop(); }

}  // namespace sluice::server
