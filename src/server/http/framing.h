// SPDX-License-Identifier: Apache-2.0
// Heads that Beast lets pass, although a proxy before this server could read them in another way.
#pragma once

#include <boost/beast/http/message.hpp>
#include <string>

namespace sluice::server::http {

// Why the request is refused; empty: it is not. A Transfer-Encoding other than chunked (RFC 9112, 6.1), and not exactly
// one Host in HTTP/1.1 (3.2): the check against foreign names must see the one that was meant.
std::string framing_fault(const boost::beast::http::request_header<>& head);

}  // namespace sluice::server::http
