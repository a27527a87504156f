// SPDX-License-Identifier: Apache-2.0
// A client for one thing: post JSON to a server on this network and read its events as they come. HTTP/1.0, so that
// the answer is the connection's bytes until it ends.
//
// Written on sockets: these few lines replace a dependency (libcurl) for a client that needs no TLS, redirects or kept
// connections. Boost.Beast stays in server/http (tools/layers.py).
#pragma once

#include <functional>
#include <string>
#include <string_view>

namespace sluice::apps {

struct HttpTarget {
  std::string host = "127.0.0.1", port = "30000", api_key;
};

// "http://host:port", with or without a path after it (which must be empty or "/v1"). Throws invalid_argument.
HttpTarget parse_base_url(const std::string& url);

// The body of GET `path`. Throws io, and invalid_argument with the server's sentence for a status other than 200.
std::string http_get(const HttpTarget& target, const std::string& path);

// POSTs `json`; the body of the answer. Throws as http_get.
std::string http_post(const HttpTarget& target, const std::string& path, const std::string& json);

// POSTs `json`; calls `on_event` with the text after each "data: " as soon as it is complete. Throws as http_get.
void http_post_stream(const HttpTarget& target, const std::string& path, const std::string& json,
                      const std::function<void(std::string_view)>& on_event);

}  // namespace sluice::apps
