// SPDX-License-Identifier: Apache-2.0
// Requests with tools before an engine that says what the test wants.
#pragma once

#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "server/api_error.h"
#include "server/routes.h"
#include "tests/server/fake_engine.h"
#include "tests/server/tool_model.h"

namespace sluice::server {

using engine::FinishReason;

inline const std::string kAsk = R"({"messages": [{"role": "user", "content": "a"}])";
// What the model of kHermesTemplate writes.
inline const std::string kCall =
    "<tool_call>\n{\"name\": \"get_weather\", \"arguments\": {\"city\": \"Paris\"}}\n</tool_call>";

inline io::JsonValue json(const std::string& text) { return io::parse_json_value(text, "the answer"); }

// The value at "choices.0.message", described when it is no string; "(none)": there is none or it is null.
inline std::string at(const io::JsonValue& value, const std::string& path) {
  const io::JsonValue* here = &value;
  for (size_t begin = 0; here != nullptr && begin <= path.size();) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string key = path.substr(begin, end - begin);
    const auto* array = here->as<io::JsonValue::Array>();
    if (array != nullptr)
      here = static_cast<size_t>(std::stoi(key)) < array->size() ? &array->at(static_cast<size_t>(std::stoi(key)))
                                                                 : nullptr;
    else
      here = here->find(key);
    begin = end + 1;
  }
  if (here == nullptr) return "(none)";
  return here->as<std::string>() ? *here->as<std::string>() : io::describe(*here);
}

class ToolsTest : public testing::Test {
 protected:
  explicit ToolsTest(const std::string& chat_template = kHermesTemplate, ServiceConfig config = {})
      : service_(std::move(config)) {
    engine_->bounds = {.vocab = 4096, .context_length = 4000, .has_tokenizer = true};
    service_.set_ready(model_with(chat_template), engine_);
  }
  ~ToolsTest() override { engine_->requests.clear(); }

  std::shared_ptr<FakeExchange> ask(const std::string& body, const char* path = "/v1/chat/completions") {
    auto exchange = std::make_shared<FakeExchange>("POST", path, body);
    std::string allowed;
    try {
      answer_when_compiled(service_, *find_route("POST", path, allowed), exchange);
    } catch (const std::exception& error) {
      exchange->reply(error_response(to_api_error(error)));
    }
    return exchange;
  }
  void say(const std::vector<std::string>& pieces, FinishReason reason = FinishReason::stop, int choice = 0) {
    const engine::RequestId id = engine_->requests.size();
    for (size_t i = 0; i < pieces.size(); ++i)
      engine_->send(id, choice, pieces[i], i + 1 == pieces.size() ? reason : FinishReason::none);
  }
  // The whole answer to `body` when the model says `pieces`.
  io::JsonValue whole(const std::string& body, const std::vector<std::string>& pieces,
                      FinishReason reason = FinishReason::stop, const char* path = "/v1/chat/completions") {
    const auto exchange = ask(body, path);
    EXPECT_EQ(exchange->response.body, "");
    say(pieces, reason);
    return json(exchange->response.body);
  }
  // The events of a stream, which have names.
  std::vector<io::JsonValue> events(const std::string& body, const std::vector<std::string>& pieces,
                                    FinishReason reason, const char* path) {
    const auto exchange = ask(body.substr(0, body.size() - 1) + R"(, "stream": true})", path);
    say(pieces, reason);
    std::vector<io::JsonValue> out;
    for (size_t begin = 0, end; (end = exchange->streamed.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string event = exchange->streamed.substr(begin, end - begin);
      const size_t data = event.find("\ndata: ");
      out.push_back(json(event.substr(data + 7)));
      EXPECT_EQ("event: " + at(out.back(), "type"), event.substr(0, data));
    }
    EXPECT_FALSE(out.empty()) << exchange->response.body;
    return out;
  }
  // The chunks of a stream.
  std::vector<io::JsonValue> stream(const std::string& body, const std::vector<std::string>& pieces,
                                    FinishReason reason = FinishReason::stop) {
    const auto exchange = ask(body.substr(0, body.size() - 1) + R"(, "stream": true})");
    say(pieces, reason);
    EXPECT_TRUE(exchange->streamed.ends_with("data: [DONE]\n\n")) << exchange->streamed << exchange->response.body;
    std::vector<io::JsonValue> chunks;
    for (size_t begin = 0, end; (end = exchange->streamed.find("\n\n", begin)) != std::string::npos; begin = end + 2) {
      const std::string line = exchange->streamed.substr(begin + 6, end - begin - 6);
      if (line != "[DONE]") chunks.push_back(json(line));
    }
    return chunks;
  }
  std::string prompt() {
    const auto& request = engine_->requests.at(engine_->requests.size()).request;
    return tiny_model()->tokenizer.decode(request.prompt, false);
  }
  std::string refused(const std::string& more, const std::string& begin = kAsk,
                      const char* path = "/v1/chat/completions") {
    const size_t before = engine_->requests.size();
    const auto exchange = ask(begin + ", " + more + "}", path);
    EXPECT_EQ(exchange->response.status, 400) << more;
    EXPECT_EQ(engine_->requests.size(), before);
    const io::JsonValue answer = json(exchange->response.body);
    EXPECT_NE(at(answer, "error.message").find(at(answer, "error.param")), std::string::npos)
        << exchange->response.body;
    return at(answer, "error.param");
  }

  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  Service service_;
};

}  // namespace sluice::server
