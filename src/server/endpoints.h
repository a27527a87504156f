// SPDX-License-Identifier: Apache-2.0
// One function per endpoint, each in the file that its comment names. A function answers the exchange, now or later, or
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

// anthropic.cc, responses.cc
void anthropic_messages(Service& service, const ExchangePtr& exchange);
void anthropic_count_tokens(Service& service, const ExchangePtr& exchange);
void responses(Service& service, const ExchangePtr& exchange);

// models.cc
void list_models(Service& service, const ExchangePtr& exchange);
void show_model(Service& service, const ExchangePtr& exchange);  // /v1/models/{id}
void model_info(Service& service, const ExchangePtr& exchange);
void version(Service& service, const ExchangePtr& exchange);

// server_info.cc
void server_info(Service& service, const ExchangePtr& exchange);
void loads(Service& service, const ExchangePtr& exchange);

// inspect.cc
void start_expert_distribution_record(Service& service, const ExchangePtr& exchange);
void stop_expert_distribution_record(Service& service, const ExchangePtr& exchange);
void dump_expert_distribution_record(Service& service, const ExchangePtr& exchange);
void start_profile(Service& service, const ExchangePtr& exchange);
void stop_profile(Service& service, const ExchangePtr& exchange);

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
void pause_generation(Service& service, const ExchangePtr& exchange);
void continue_generation(Service& service, const ExchangePtr& exchange);

// weights.cc
void update_weights_from_disk(Service& service, const ExchangePtr& exchange);
void update_weights_from_tensor(Service& service, const ExchangePtr& exchange);
void begin_weight_update(Service& service, const ExchangePtr& exchange);
void end_weight_update(Service& service, const ExchangePtr& exchange);
void update_weight_version(Service& service, const ExchangePtr& exchange);
void refuse_weight_transport(Service& service, const ExchangePtr& exchange);  // SGLang's that need torch here

// weights_info.cc
void weights_checker(Service& service, const ExchangePtr& exchange);
void get_weights_by_name(Service& service, const ExchangePtr& exchange);

// memory.cc
void release_memory_occupation(Service& service, const ExchangePtr& exchange);
void resume_memory_occupation(Service& service, const ExchangePtr& exchange);

// playground.cc
void playground(Service& service, const ExchangePtr& exchange);

}  // namespace sluice::server
