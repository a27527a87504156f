// SPDX-License-Identifier: Apache-2.0
#include "server/http/framing.h"

#include <fmt/format.h>

#include "io/quote.h"
#include "server/http/message.h"

namespace sluice::server::http {

std::string framing_fault(const boost::beast::http::request_header<>& head) {
  using boost::beast::http::field;
  const auto codings = head.count(field::transfer_encoding), hosts = head.count(field::host);
  if (codings > 0) {
    const auto value = head[field::transfer_encoding];
    const std::string_view coding{value.data(), value.size()};
    if (codings > 1 || !equal_ignoring_case(coding, "chunked"))
      return fmt::format("Transfer-Encoding is {}; accepted: chunked", io::quote(coding));
  }
  if (hosts > 1 || (hosts == 0 && head.version() >= 11))
    return fmt::format("the request has {} Host headers; accepted: one", hosts);
  return {};
}

}  // namespace sluice::server::http
