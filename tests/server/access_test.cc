// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "server/api_error.h"
#include "server/api_server.h"
#include "server/routes.h"
#include "tests/server/socket_client.h"

namespace sluice::server {
namespace {

int status_of(const std::function<void()>& check) {
  try {
    check();
    return 200;
  } catch (const ApiError& error) {
    return error.status;
  }
}

int access(const ServiceConfig& config, std::vector<http::Header> headers, bool admin) {
  http::Request request;
  request.headers = std::move(headers);
  return status_of([&] { check_access(config, request, admin); });
}

TEST(Access, KeysOfEveryLength) {
  EXPECT_TRUE(equal_in_constant_time("", ""));
  EXPECT_TRUE(equal_in_constant_time("secret", "secret"));
  for (const char* other : {"", "s", "secre", "secrets", "Secret", "secres", "ecrets", "secretsecret"})
    EXPECT_FALSE(equal_in_constant_time(other, "secret")) << other;
  EXPECT_FALSE(equal_in_constant_time("x", ""));
}

TEST(Access, WhoMayDoWhat) {
  using Headers = std::vector<http::Header>;
  const Headers none, user{{"authorization", "bearer user"}}, admin{{"X-API-Key", "admin"}};
  const struct {
    const char *user_key, *admin_key;
    int none_user, none_admin, user_user, user_admin, admin_admin;
  } cases[]{{"", "", 200, 200, 200, 200, 200},
            {"user", "", 401, 401, 200, 200, 401},
            {"", "admin", 200, 401, 200, 401, 200},
            {"user", "admin", 401, 401, 200, 401, 200}};
  for (const auto& c : cases) {
    ServiceConfig config;
    config.api_key = c.user_key;
    config.admin_api_key = c.admin_key;
    EXPECT_EQ(access(config, none, false), c.none_user);
    EXPECT_EQ(access(config, none, true), c.none_admin);
    EXPECT_EQ(access(config, user, false), c.user_user);
    EXPECT_EQ(access(config, user, true), c.user_admin);
    EXPECT_EQ(access(config, admin, true), c.admin_admin);
  }
}

TEST(Access, HostNamesAgainstRebinding) {
  ServiceConfig config;
  config.allowed_hosts = {"box.lan"};
  const auto host = [&](const char* name) {
    http::Request request;
    request.headers = {{"Host", name}};
    return status_of([&] { check_host(config, request); });
  };
  for (const char* name :
       {"localhost", "LOCALHOST:30000", "127.0.0.1:80", "127.1.2.3", "[::1]", "[::1]:80", "box.lan:1", ""})
    EXPECT_EQ(host(name), 200) << name;
  for (const char* name : {"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "box.lan.evil", "::2"})
    EXPECT_EQ(host(name), 403) << name;
  config.check_host = false;
  EXPECT_EQ(host("evil.example"), 200);
}

TEST(Access, OtherOrigins) {
  ServiceConfig config;
  const auto ask = [&](std::vector<http::Header> headers, const char* method = "POST",
                       const char* path = "/flush_cache") {
    http::Request request;
    request.method = method;
    request.path = path;
    request.headers = std::move(headers);
    request.headers.push_back({"Host", "localhost:30000"});
    return status_of([&] { check_origin(config, request); });
  };
  EXPECT_EQ(ask({}), 200);  // no browser
  for (const char* own : {"http://localhost:30000", "HTTP://LOCALHOST:30000", "https://localhost:30000"})
    EXPECT_EQ(ask({{"Origin", own}}), 200) << own;
  for (const char* other :
       {"http://evil.example", "http://localhost", "http://localhost:3000", "http://127.0.0.1:30000", "null",
        "localhost:30000", "file://", "http://localhost:30000.evil.example"}) {
    EXPECT_EQ(ask({{"Origin", other}}), 403) << other;
    EXPECT_EQ(ask({{"Origin", other}, {"Sec-Fetch-Site", "same-origin"}}, "GET", "/metrics"), 403) << other;
  }
  for (const char* site : {"cross-site", "same-site", "Cross-Site", "anything"}) {
    EXPECT_EQ(ask({{"Sec-Fetch-Site", site}}), 403) << site;
    EXPECT_EQ(ask({{"Sec-Fetch-Site", site}}, "GET", "/health_generate"), 403) << site;
    EXPECT_EQ(
        ask({{"Sec-Fetch-Site", site}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "document"}}, "GET", "/"),
        200);  // a link
    EXPECT_EQ(ask({{"Sec-Fetch-Site", site}, {"Sec-Fetch-Mode", "navigate"}, {"Sec-Fetch-Dest", "iframe"}}, "GET", "/"),
              403);
  }
  for (const char* site : {"same-origin", "none"}) EXPECT_EQ(ask({{"Sec-Fetch-Site", site}}), 200) << site;
  config.cors_origins = {"http://friend.example"};
  EXPECT_EQ(ask({{"Origin", "http://friend.example"}, {"Sec-Fetch-Site", "cross-site"}}), 200);
  EXPECT_EQ(ask({{"Origin", "http://evil.example"}}), 403);
  config.cors_origins = {"*"};
  EXPECT_EQ(ask({{"Origin", "http://evil.example"}, {"Sec-Fetch-Site", "cross-site"}}), 200);
  EXPECT_EQ(ask({{"Sec-Fetch-Site", "cross-site"}}, "GET", "/metrics"), 200);
}

TEST(Access, OnlyHealthAndThePageAreOpen) {
  for (const Route& route : routes())
    EXPECT_EQ(route.access == Access::open, route.path == "/" || route.path == "/health" || route.path == "/ping")
        << route.path;
}

TEST(Routes, PathsAndMethods) {
  std::string allowed;
  EXPECT_NE(find_route("GET", "/health", allowed), nullptr);
  EXPECT_NE(find_route("HEAD", "/health", allowed), nullptr);
  EXPECT_EQ(find_route("POST", "/health", allowed), nullptr);
  EXPECT_EQ(allowed, "GET, HEAD");
  for (const char* path : {"/health/", "/Health", "health", "", "/v1/models/", "/v1/completions/x", "/*"}) {
    EXPECT_EQ(find_route("GET", path, allowed), nullptr) << path;
    EXPECT_EQ(allowed, "") << path;
  }
  EXPECT_NE(find_route("GET", "/v1/models/a/b", allowed), nullptr);
}

// What a server says before it can do anything else, in the form of the path's API.
TEST(Access, RefusalsHaveTheFormOfTheirApi) {
  http::Options options;
  options.port = 0;
  ApiServer server(options, ServiceConfig());
  std::string code = R"("code":"loading")";
  const auto refused = [&](const std::string& path) {
    http::Client client(server.port());
    client.send("POST " + path +
                " HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n" +
                "Content-Length: 2\r\n\r\n{}");
    const std::string answer = client.rest();
    EXPECT_TRUE(answer.starts_with("HTTP/1.1 503 ")) << answer;
    EXPECT_NE(answer.find("Retry-After: 1\r\n"), answer.npos) << answer;
    EXPECT_NE(answer.find(code), answer.npos) << answer;
    return answer.find(R"({"type":"error","error":{)") != answer.npos;
  };
  for (int round = 0; round < 2; ++round) {
    EXPECT_TRUE(refused("/v1/messages"));
    EXPECT_TRUE(refused("/v1/messages/count_tokens?beta=true"));
    EXPECT_FALSE(refused("/v1/completions"));
    server.service().set_draining();
    code = R"("code":"draining")";
  }
}

}  // namespace
}  // namespace sluice::server
