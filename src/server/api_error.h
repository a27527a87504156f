// SPDX-License-Identifier: Apache-2.0
// What a client is told when its request cannot be answered: OpenAI's error object and an HTTP status. The one table
// from sluice::Error to both.
#pragma once

#include <exception>
#include <stdexcept>
#include <string>
#include <string_view>

#include "base/error.h"
#include "server/http/message.h"

namespace sluice::server {

class ApiError : public std::runtime_error {
 public:
  ApiError(int http_status, std::string kind, const std::string& sentence, std::string field = "",
           std::string name = "")
      : std::runtime_error(sentence),
        status(http_status),
        type(std::move(kind)),
        param(std::move(field)),
        code(std::move(name)) {}

  int status;
  std::string type;   // "invalid_request_error"
  std::string param;  // the request's field; "": none
  std::string code;   // "context_length_exceeded"; "": none
};

// 400 about one field of the request; the sentence begins with its name.
[[noreturn]] void refuse(std::string_view param, const std::string& sentence, std::string code = "");

// The table. Everything that is not ApiError or Error is our own fault.
ApiError to_api_error(const std::exception& error);
// What the HTTP server refuses by itself.
ApiError to_api_error(int status, std::string_view sentence);

// {"error": {"message", "type", "param", "code"}}
std::string error_body(const ApiError& error);
std::string error_json(const ApiError& error);  // the object in it
http::Response error_response(const ApiError& error);

}  // namespace sluice::server
