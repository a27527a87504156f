// SPDX-License-Identifier: Apache-2.0
// Keys and names: who may ask.
#include <algorithm>
#include <array>

#include "io/quote.h"
#include "server/api_error.h"
#include "server/api_server.h"

namespace sluice::server {

bool equal_in_constant_time(std::string_view a, std::string_view b) {
  // Over the given text's length, whatever the key's is; the volatile keeps the loop from ending early.
  volatile unsigned char different = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < a.size(); ++i)
    different = static_cast<unsigned char>(
        different | (static_cast<unsigned char>(a[i]) ^ static_cast<unsigned char>(b.empty() ? 1 : b[i % b.size()])));
  return different == 0;
}

void check_access(const ServiceConfig& config, const http::Request& request, bool admin) {
  const bool needs_admin = admin && !config.admin_api_key.empty();
  if (!needs_admin && config.api_key.empty()) return;
  std::string_view given = request.header("X-API-Key");
  constexpr std::string_view kBearer = "bearer ";
  const std::string_view authorization = request.header("Authorization");
  if (authorization.size() >= kBearer.size() &&
      http::equal_ignoring_case(authorization.substr(0, kBearer.size()), kBearer))
    given = authorization.substr(kBearer.size());
  bool allowed = !config.admin_api_key.empty() && equal_in_constant_time(given, config.admin_api_key);
  if (!needs_admin && equal_in_constant_time(given, config.api_key)) allowed = true;
  if (allowed) return;
  throw ApiError(401, "authentication_error",
                 given.empty() ? "an API key is needed: Authorization: Bearer KEY" : "the API key is not the right one",
                 "", "invalid_api_key");
}

void check_host(const ServiceConfig& config, const http::Request& request) {
  if (!config.check_host) return;
  std::string_view host = request.header("Host");
  if (host.empty()) return;  // HTTP/1.0; a browser always sends one
  if (const size_t colon = host.rfind(':'); colon != host.npos && host.find(']', colon) == host.npos)
    host = host.substr(0, colon);
  constexpr std::array<std::string_view, 3> kOwn{"localhost", "[::1]", "0.0.0.0"};
  const auto is = [&](std::string_view name) { return http::equal_ignoring_case(host, name); };
  const bool loopback = host.starts_with("127.") && host.find_first_not_of("0123456789.") == host.npos;
  if (loopback || std::any_of(kOwn.begin(), kOwn.end(), is) ||
      std::any_of(config.allowed_hosts.begin(), config.allowed_hosts.end(), is))
    return;
  throw ApiError(403, "permission_error",
                 fmt::format("the Host header is {}, which is not a name of this server; start it with that name among "
                             "the allowed hosts",
                             io::quote(host)),
                 "", "host_not_allowed");
}

namespace {
[[noreturn]] void refuse_origin(const std::string& what) {
  throw ApiError(
      403, "permission_error",
      what + ", and pages of other origins may not use this server; start it with the origin among the CORS origins",
      "", "origin_not_allowed");
}

// Of the same host and port as the request was sent to. The scheme may differ: a proxy may add TLS.
bool is_own(std::string_view origin, std::string_view host) {
  const size_t scheme = origin.find("://");
  if (scheme == origin.npos || host.empty()) return false;
  const auto without_default = [](std::string_view authority) {
    for (const std::string_view port : {":80", ":443"})
      if (authority.ends_with(port)) authority.remove_suffix(port.size());
    return authority;
  };
  return http::equal_ignoring_case(without_default(origin.substr(scheme + 3)), without_default(host));
}
}  // namespace

bool is_listed_origin(const ServiceConfig& config, std::string_view origin) {
  const auto is = [&](std::string_view name) { return name == "*" || name == origin; };
  return std::any_of(config.cors_origins.begin(), config.cors_origins.end(), is);
}

void check_origin(const ServiceConfig& config, const http::Request& request) {
  const std::string_view origin = request.header("Origin"), site = request.header("Sec-Fetch-Site");
  if (is_listed_origin(config, origin)) return;
  if (!origin.empty() && !is_own(origin, request.header("Host"))) refuse_origin("the Origin is " + io::quote(origin));
  if (site.empty() || http::equal_ignoring_case(site, "same-origin") || http::equal_ignoring_case(site, "none")) return;
  const bool link = request.method == "GET" && request.path == "/" &&
                    http::equal_ignoring_case(request.header("Sec-Fetch-Mode"), "navigate") &&
                    http::equal_ignoring_case(request.header("Sec-Fetch-Dest"), "document");
  if (!link) refuse_origin("the Sec-Fetch-Site is " + io::quote(site));
}

}  // namespace sluice::server
