// SPDX-License-Identifier: Apache-2.0
// One function an endpoint, each in the file that its comment names. A function answers the exchange, now or later, or
// throws: ApiError, or sluice::Error by the table in api_error.cc.
#pragma once

#include <memory>

#include "server/http/exchange.h"
#include "server/service.h"

namespace sluice::server {

using ExchangePtr = std::shared_ptr<http::Exchange>;

// chat.cc, completions.cc, generate.cc
void chat_completions(Service& service, const ExchangePtr& exchange);
void completions(Service& service, const ExchangePtr& exchange);
void generate(Service& service, const ExchangePtr& exchange);

// models.cc
void list_models(Service& service, const ExchangePtr& exchange);
void show_model(Service& service, const ExchangePtr& exchange);  // /v1/models/{id}
void model_info(Service& service, const ExchangePtr& exchange);
void version(Service& service, const ExchangePtr& exchange);

// health.cc
void health(Service& service, const ExchangePtr& exchange);
void health_generate(Service& service, const ExchangePtr& exchange);

// metrics.cc
void metrics(Service& service, const ExchangePtr& exchange);

// tokenize.cc
void tokenize(Service& service, const ExchangePtr& exchange);
void detokenize(Service& service, const ExchangePtr& exchange);
void apply_template(Service& service, const ExchangePtr& exchange);

// control.cc
void flush_cache(Service& service, const ExchangePtr& exchange);
void abort_request(Service& service, const ExchangePtr& exchange);
void update_weights_from_disk(Service& service, const ExchangePtr& exchange);

// playground.cc
void playground(Service& service, const ExchangePtr& exchange);

}  // namespace sluice::server
