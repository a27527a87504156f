// SPDX-License-Identifier: Apache-2.0
// THE LIST of endpoints.
#pragma once

#include <span>
#include <string_view>

#include "server/api_error.h"
#include "server/endpoints.h"

namespace sluice::server {

enum class Access : uint8_t {
  open,   // also without a key
  user,   // the API key
  admin,  // the admin API key when there is one, else the API key
};

struct Route {
  std::string_view method;
  std::string_view path;  // a trailing '*' stands for one non-empty rest
  void (*answer)(Service&, const ExchangePtr&);
  Access access = Access::user;
  // Answered on the server's own thread: only what takes microseconds, and must be answered while the workers are busy.
  bool at_once = false;
  // Takes as long as weights do, so it has a thread of its own: no request that makes text waits for it.
  bool slow = false;
};

std::span<const Route> routes();

// Null: none of that path, or only with another method; `allowed` says with which ("GET, HEAD").
const Route* find_route(std::string_view method, std::string_view path, std::string& allowed);

// A refusal in the form of the API that the path belongs to: Anthropic's at and below /v1/messages, else OpenAI's.
http::Response refusal(std::string_view path, const ApiError& error);

}  // namespace sluice::server
