// SPDX-License-Identifier: Apache-2.0
// One HTTP request's way through the engine: submits its prompts, gathers the events, writes the answer as a whole or
// as a stream, and cancels everything when the client goes away.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "engine/request.h"
#include "server/api_error.h"
#include "server/fields.h"
#include "server/http/exchange.h"
#include "server/json_out.h"
#include "server/service.h"

namespace sluice::server {

// The form of an answer. Called on the server's thread, one event after the other.
class AnswerWriter {
 public:
  virtual ~AnswerWriter() = default;

  // For streams: each returns server-sent events, "" for none.
  virtual std::string begin_stream() { return {}; }
  virtual std::string stream_event(size_t prompt, const engine::Event& event) = 0;
  virtual std::string end_stream() = 0;

  // For answers as a whole: events are added, then the body is written.
  virtual void add(size_t prompt, const engine::Event& event) = 0;
  virtual std::string whole() = 0;

  // What a client is told when the answer fails: in the middle of a stream, or instead of a whole answer.
  virtual std::string error_event(const ApiError& error);
  virtual http::Response error_reply(const ApiError& error) { return error_response(error); }

  // The version of the weights that the engine ran when it made the event that is passed next.
  void set_weight_version(std::string version) { weight_version_ = std::move(version); }

 protected:
  // The version that goes with the latest event.
  const std::string& weight_version() const { return weight_version_; }
  // SGLang's "metadata" of an OpenAI answer; here also of the last chunk of each choice of a stream.
  std::string metadata_json() const { return JsonObject().add("weight_version", weight_version_).str(); }

 private:
  std::string weight_version_;
};

// "data: ...\n\n"
std::string sse(std::string_view json);
inline constexpr std::string_view kStreamDone = "data: [DONE]\n\n";

// What a request for an answer begins with. Throws ApiError 503 while the model is not there, 400 for no JSON object.
struct AnswerRequest {
  AnswerRequest(Service& service, const http::Exchange& exchange);
  AnswerRequest(const AnswerRequest&) = delete;  // `fields` refers to `body`
  AnswerRequest& operator=(const AnswerRequest&) = delete;

  std::shared_ptr<const ServedModel> model;
  engine::Limits limits;
  io::JsonValue body;
  Fields fields;
};

struct Job {
  std::string id;                         // of the answer
  std::vector<RequestName> names;         // for /abort_request
  std::vector<engine::Request> requests;  // one per prompt
  std::unique_ptr<AnswerWriter> writer;
  bool stream = false;
};

// Returns when everything is submitted; the answer follows. Throws ApiError and what EngineClient::submit throws, with
// nothing left in the engine.
void start_generation(Service& service, const std::shared_ptr<http::Exchange>& exchange, Job job);

}  // namespace sluice::server
