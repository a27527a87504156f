// SPDX-License-Identifier: Apache-2.0
// HTTP messages as the endpoints see them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace sluice::server::http {

struct Header {
  std::string name, value;
};

struct Request {
  std::string method;  // "GET"
  std::string path;    // "/v1/models/a%2Fb": without the query, not decoded
  std::string query;
  std::vector<Header> headers;
  std::string body;

  // The first header of that name, in any case; empty: none.
  std::string_view header(std::string_view name) const;
};

struct Response {
  int status = 200;
  std::string body = {};
  std::string content_type = "application/json";
  std::vector<Header> headers = {};
  bool close = false;  // the connection ends with this answer
};

const char* reason_phrase(int status);

// %41 -> A; a broken escape stays as it is.
std::string percent_decoded(std::string_view text);

// The client's own name for its request: the header X-Request-Id, when it is up to 128 printable ASCII characters.
std::string_view request_id_of(const Request& request);
bool is_request_id(std::string_view text);

bool equal_ignoring_case(std::string_view a, std::string_view b);

}  // namespace sluice::server::http
