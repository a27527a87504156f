// SPDX-License-Identifier: Apache-2.0
// GET /: a page to talk to the model. playground.html is part of the program; no file is read.
#include "server/endpoints.h"
#include "server/playground_html.h"

namespace sluice::server {

void playground(Service&, const ExchangePtr& exchange) {
  // Nothing from elsewhere, and no page may frame it.
  static constexpr const char* kPolicy =
      "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; connect-src 'self'; "
      "frame-ancestors 'none'; base-uri 'none'; form-action 'none'";
  exchange->reply({.body = kPlaygroundHtml,
                   .content_type = "text/html; charset=utf-8",
                   .headers = {{"Content-Security-Policy", kPolicy}, {"X-Content-Type-Options", "nosniff"}}});
}

}  // namespace sluice::server
