// SPDX-License-Identifier: Apache-2.0
#include "server/api_error.h"

#include <nlohmann/json.hpp>

namespace sluice::server {

namespace {
constexpr const char* kInvalid = "invalid_request_error";

ApiError from_error(const Error& error) {
  const std::string text = error.what();
  switch (error.code()) {
    case ErrorCode::invalid_argument: {
      // The sentence begins with the parameter's name: "temperature is -1; accepted: 0 or more".
      const size_t space = text.find(' ');
      return {400, kInvalid, text, space == text.npos ? "" : text.substr(0, space)};
    }
    case ErrorCode::bad_file:
      return {400, kInvalid, text};
    case ErrorCode::unsupported:
      return {400, kInvalid, text, "", "unsupported"};
    case ErrorCode::not_found:
      return {404, kInvalid, text, "", "not_found"};
    case ErrorCode::busy:
      return {503, "overloaded_error", text, "", "server_overloaded"};
    case ErrorCode::out_of_memory:
      return {503, "server_error", text, "", "out_of_memory"};
    case ErrorCode::cuda:
      return {503, "server_error", text, "", "device_failed"};
    case ErrorCode::io:
    case ErrorCode::internal:
      break;
  }
  return {500, "server_error", text, "", "internal_error"};
}
}  // namespace

void refuse(std::string_view param, const std::string& sentence, std::string code) {
  throw ApiError(400, kInvalid, sentence, std::string(param), std::move(code));
}

ApiError to_api_error(const std::exception& error) {
  if (const auto* api = dynamic_cast<const ApiError*>(&error)) return *api;
  if (const auto* own = dynamic_cast<const Error*>(&error)) return from_error(*own);
  if (dynamic_cast<const std::bad_alloc*>(&error)) return {503, "server_error", "out of memory", "", "out_of_memory"};
  return {500, "server_error", error.what(), "", "internal_error"};
}

ApiError to_api_error(int status, std::string_view sentence) {
  return {status,
          status == 503   ? "overloaded_error"
          : status >= 500 ? "server_error"
                          : kInvalid,
          std::string(sentence)};
}

std::string error_json(const ApiError& error) {
  const auto text_or_null = [](const std::string& s) {
    return s.empty() ? nlohmann::ordered_json() : nlohmann::ordered_json(s);
  };
  const nlohmann::ordered_json object{{"message", error.what()},
                                      {"type", error.type},
                                      {"param", text_or_null(error.param)},
                                      {"code", text_or_null(error.code)}};
  // A sentence may quote the request; what is not UTF-8 in it must not end in another error.
  return object.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
}

std::string error_body(const ApiError& error) { return fmt::format("{{\"error\":{}}}", error_json(error)); }

http::Response error_response(const ApiError& error) {
  http::Response response{.status = error.status, .body = error_body(error)};
  if (error.status == 503) response.headers.push_back({"Retry-After", "1"});
  if (error.status == 401) response.headers.push_back({"WWW-Authenticate", "Bearer"});
  return response;
}

}  // namespace sluice::server
