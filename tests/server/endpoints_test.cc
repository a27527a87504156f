// SPDX-License-Identifier: Apache-2.0
// The endpoints before an engine that does what the test says: order of events, failures, a full queue, a silent step.
#include <gtest/gtest.h>

#include "io/json_value.h"
#include "server/api_error.h"
#include "server/routes.h"
#include "tests/server/fake_engine.h"

namespace sluice::server {
namespace {

using engine::FinishReason;

class EndpointsTest : public testing::Test {
 protected:
  EndpointsTest() { service_.set_ready(tiny_model(), engine_); }
  // A sink holds its answer, and an answer its engine: a real engine lets go of the sink after the last event.
  ~EndpointsTest() override { engine_->requests.clear(); }

  std::shared_ptr<FakeExchange> ask(const char* method, const char* path, std::string body = "") {
    auto exchange = std::make_shared<FakeExchange>(method, path, std::move(body));
    std::string allowed;
    const Route* route = find_route(method, path, allowed);
    EXPECT_NE(route, nullptr);
    try {
      answer_when_compiled(service_, *route, exchange);
    } catch (const std::exception& error) {
      exchange->reply(refusal(path, to_api_error(error)));
    }
    return exchange;
  }
  static io::JsonValue json(const std::string& text) { return io::parse_json_value(text, "the answer"); }
  static std::string string_at(const io::JsonValue& value, std::initializer_list<const char*> keys) {
    const io::JsonValue* at = &value;
    for (const char* key : keys) {
      const auto* array = at->as<io::JsonValue::Array>();
      at = array != nullptr ? &array->at(static_cast<size_t>(std::stoi(key))) : at->find(key);
      if (at == nullptr) return "(none)";
    }
    return at->as<std::string>() ? *at->as<std::string>() : io::describe(*at);
  }

  std::shared_ptr<FakeEngine> engine_ = std::make_shared<FakeEngine>();
  Service service_{ServiceConfig()};
};

TEST_F(EndpointsTest, AWholeAnswerWaitsForEveryChoiceOfEveryPrompt) {
  const auto exchange = ask("POST", "/v1/completions", R"({"prompt": ["a", "b"], "n": 2, "max_tokens": 2})");
  ASSERT_EQ(engine_->requests.size(), 2u);
  for (const int choice : {1, 0})
    for (const engine::RequestId id : {2, 1}) {
      EXPECT_EQ(exchange->answered, 0);
      engine_->send(id, choice, "x");
      engine_->send(id, choice, std::to_string(id * 10 + static_cast<size_t>(choice)), FinishReason::length);
    }
  ASSERT_EQ(exchange->answered, 1);
  const io::JsonValue answer = json(exchange->response.body);
  for (const auto& [index, text] : {std::pair{"0", "x10"}, {"1", "x11"}, {"2", "x20"}, {"3", "x21"}})
    EXPECT_EQ(string_at(answer, {"choices", index, "text"}), text);
  EXPECT_EQ(string_at(answer, {"usage", "prompt_tokens"}), "6");  // a prompt counts once
  EXPECT_EQ(string_at(answer, {"usage", "completion_tokens"}), "8");
}

TEST_F(EndpointsTest, EchoedLogprobsWaitForTheFirstChoice) {
  for (const bool stream : {false, true}) {
    engine_->requests.clear();
    const auto exchange =
        ask("POST", "/v1/completions",
            std::string(R"({"prompt": [5, 6, 7], "n": 2, "max_tokens": 1, "echo": true, "logprobs": 0)") +
                (stream ? R"(, "stream": true})" : "}"));
    EXPECT_EQ(engine_->requests.at(1).request.params.prompt_logprobs_from, 0);
    engine_->send(1, 1, "second", FinishReason::length);
    engine_->send(1, 0, "first", FinishReason::length, {{{6, -1.F}, {}}, {{7, -2.F}, {}}});
    ASSERT_EQ(exchange->answered, 1);
    const std::string& all = stream ? exchange->streamed : exchange->response.body;
    size_t found = 0;
    for (size_t at = 0; (at = all.find("\"token_logprobs\":[null,-1,-2,-0.5]", at)) != all.npos; ++at) ++found;
    EXPECT_EQ(found, 2u) << all;
  }
}

// Parts of characters have names of their own, a name comes once, and a character counts with its last token.
TEST_F(EndpointsTest, LogprobsNameTokensThatAreNoWholeCharacters) {
  const auto& tokenizer = tiny_model()->tokenizer;
  const std::vector<int32_t> ids = tokenizer.encode("a\xe6\x97\xa5z");
  ASSERT_EQ(ids.size(), 5u);
  ASSERT_EQ(tokenizer.bytes_of(ids[1]), "\xe6");
  for (const bool stream : {false, true}) {
    engine_->requests.clear();
    const auto exchange =
        ask("POST", "/v1/completions",
            std::string(R"({"prompt": "a", "logprobs": 3)") + (stream ? R"(, "stream": true})" : "}"));
    for (size_t i = 0; i < ids.size(); ++i) {
      engine::Event event;
      event.request = 1;
      event.tokens = {ids[i]};
      event.text = i == 3 ? "\xe6\x97\xa5" : i == 0 ? "a" : i == 4 ? "z" : "";
      event.logprobs = {{{ids[i], -0.5F}, {{ids[1], -1.F}, {ids[2], -2.F}, {ids[1], -3.F}}}};
      if (i + 1 == ids.size()) event.reason = FinishReason::stop;
      engine_->requests.at(1).sink(event);
    }
    const std::string& all = stream ? exchange->streamed : exchange->response.body;
    std::string offsets, tops;
    const auto collect = [&](const char* key, std::string& out) {
      for (size_t at = 0; (at = all.find(key, at)) != all.npos;) {
        at += std::string_view(key).size();
        out += all.substr(at, all.find(']', at) - at) + ",";
      }
    };
    collect("\"text_offset\":[", offsets);
    collect("\"top_logprobs\":[", tops);
    EXPECT_EQ(offsets, "0,1,1,1,2,");
    const std::string parts = R"("bytes:\\xe6":-1,"bytes:\\x97":-2)";
    EXPECT_EQ(tops, "{" + parts + R"(,"a":-0.5},{)" + parts + "},{" + parts + "},{" + parts +
                        R"(,"bytes:\\xa5":-0.5},{)" + parts + R"(,"z":-0.5},)");
    EXPECT_EQ(all.find("\xef\xbf\xbd"), all.npos) << all;
  }
}

// Two tokens with one name: the chosen one's number is there.
TEST_F(EndpointsTest, ALogprobsNameIsTheChosenTokens) {
  const auto& tokenizer = tiny_model()->tokenizer;
  const int32_t special = tokenizer.encode("<|im_end|>").front();
  std::vector<int32_t> nameless;  // beyond the tokenizer
  for (int32_t id = static_cast<int32_t>(tokenizer.vocab_size()); nameless.size() < 2; ++id) nameless.push_back(id);
  const auto exchange = ask("POST", "/v1/completions", R"({"prompt": "a", "logprobs": 3})");
  engine::Event event;
  event.request = 1;
  event.tokens = {nameless[1]};
  event.logprobs = {{{nameless[1], -2.F}, {{nameless[0], -1.F}, {special, -1.5F}, {nameless[1], -2.F}}}};
  event.reason = FinishReason::stop;
  engine_->requests.at(1).sink(event);
  EXPECT_NE(exchange->response.body.find(R"("top_logprobs":[{"<|im_end|>":-1.5,"":-2}])"), std::string::npos)
      << exchange->response.body;
}

TEST_F(EndpointsTest, EmptyListsOfABatchDecodeToNothing) {
  const auto exchange = ask("POST", "/v1/detokenize", R"({"tokens": [[], [65], []]})");
  EXPECT_EQ(exchange->response.status, 200) << exchange->response.body;
  EXPECT_EQ(string_at(json(exchange->response.body), {"text", "0"}), "");
  EXPECT_EQ(string_at(json(exchange->response.body), {"text", "1"}),
            tiny_model()->tokenizer.decode(std::vector<int32_t>{65}));
  EXPECT_EQ(ask("POST", "/v1/detokenize", R"({"tokens": [[]]})")->response.body, R"({"text":[""]})");
  for (const char* other : {R"({"prompt": [[], [65]]})", R"({"prompt": [[]]})"})
    EXPECT_EQ(ask("POST", "/v1/completions", other)->response.status, 400) << other;
}

TEST_F(EndpointsTest, AFullQueueLeavesNothingBehind) {
  engine_->room = 0;
  const auto exchange = ask("POST", "/v1/completions", R"({"prompt": ["a", "b"], "rid": "again"})");
  EXPECT_EQ(exchange->response.status, 503);
  EXPECT_EQ(exchange->response.headers.at(0).name, "Retry-After");
  EXPECT_TRUE(engine_->requests.empty());
  engine_->room = 2;
  ask("POST", "/v1/completions", R"({"prompt": "a", "rid": "again"})");
  EXPECT_EQ(engine_->requests.size(), 1u);
}

TEST_F(EndpointsTest, AFailureEndsTheRequestAndItsOtherChoices) {
  const auto whole = ask("POST", "/v1/completions", R"({"prompt": ["a", "b"]})");
  engine_->send(1, 0, "", FinishReason::error);
  EXPECT_EQ(whole->response.status, 500);
  EXPECT_EQ(string_at(json(whole->response.body), {"error", "message"}), "broken weights");
  EXPECT_TRUE(engine_->requests.at(2).cancelled);

  const auto stream =
      ask("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "stream": true})");
  engine_->send(3, 0, "half");
  engine_->send(3, 0, "", FinishReason::error);
  EXPECT_EQ(stream->answered, 1);
  EXPECT_NE(stream->streamed.find("half"), std::string::npos);
  EXPECT_NE(stream->streamed.find("data: {\"error\":{\"message\":\"broken weights\""), std::string::npos);
  EXPECT_EQ(stream->streamed.find("[DONE]"), std::string::npos);
}

// As a whole answer's: with its status, which tells a client or a router to try again.
TEST_F(EndpointsTest, AStreamThatFailsBeforeItsFirstTokenIsAPlainError) {
  for (const auto& [path, body] :
       {std::pair{"/v1/completions", R"({"prompt": "a", "echo": true, "stream": true})"},
        {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "stream": true})"},
        {"/v1/messages", R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], "stream": true})"},
        {"/v1/responses", R"({"input": "a", "stream": true})"},
        {"/generate", R"({"text": "a", "stream": true})"}})
    for (const bool late : {false, true}) {
      const auto stream = ask("POST", path, body);
      engine_->send(engine_->requests.size(), 0, "", late ? FinishReason::timed_out : FinishReason::error);
      EXPECT_EQ(stream->answered, 1);
      EXPECT_EQ(stream->streamed, "") << path;
      EXPECT_EQ(stream->response.status, late ? 503 : 500) << path;
      EXPECT_EQ(!stream->response.headers.empty() && stream->response.headers.front().name == "Retry-After", late);
      const io::JsonValue answer = json(stream->response.body);
      EXPECT_EQ(string_at(answer, {"error", "code"}), late ? "timed_out" : "internal_error");
      EXPECT_EQ(string_at(answer, {"type"}), path == std::string_view("/v1/messages") ? "error" : "(none)");
    }
}

TEST_F(EndpointsTest, AClientThatLeavesCancels) {
  const auto exchange = ask("POST", "/generate", R"({"text": ["a", "b"], "stream": true})");
  ASSERT_TRUE(exchange->gone);
  exchange->gone();
  EXPECT_TRUE(engine_->requests.at(1).cancelled && engine_->requests.at(2).cancelled);
  engine_->send(1, 0, "late", FinishReason::cancelled);
  EXPECT_EQ(exchange->streamed.find("late"), std::string::npos);
}

TEST_F(EndpointsTest, NamesOfRequests) {
  const std::string body = R"({"prompt": "a", "rid": "r"})";
  ask("POST", "/v1/completions", body);
  EXPECT_EQ(ask("POST", "/v1/completions", body)->response.status, 400);
  EXPECT_EQ(engine_->requests.size(), 1u);
  EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": "r"})")->response.status, 200);
  EXPECT_TRUE(engine_->requests.at(1).cancelled);
  engine_->send(1, 0, "", FinishReason::cancelled);
  EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": "r"})")->response.status, 404);
}

// An abort that is told it was successful had an effect, also where the engine does not have the request yet.
TEST_F(EndpointsTest, AnAbortMayComeWhileTheRequestIsSubmitted) {
  engine_->while_submitting = [&] {
    EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": "r"})")->response.status, 200);
  };
  ask("POST", "/generate", R"({"text": ["a", "b"], "rid": "r"})");
  EXPECT_TRUE(engine_->requests.at(1).cancelled && engine_->requests.at(2).cancelled);
  ask("POST", "/generate", R"({"text": ["a", "b"], "rid": ["q", "s"]})");  // the first is still running
  EXPECT_FALSE(engine_->requests.at(3).cancelled || engine_->requests.at(4).cancelled);
  engine_->while_submitting = [&] {
    EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": "y"})")->response.status, 200);
  };
  ask("POST", "/generate", R"({"text": ["a", "b"], "rid": ["x", "y"]})");
  EXPECT_FALSE(engine_->requests.at(5).cancelled);
  EXPECT_TRUE(engine_->requests.at(6).cancelled);
  engine_->while_submitting = [&] {
    EXPECT_EQ(ask("POST", "/abort_request", R"({"abort_all": true})")->response.status, 200);
  };
  ask("POST", "/v1/completions", R"({"prompt": "a"})");
  EXPECT_TRUE(engine_->requests.at(7).cancelled);
}

TEST_F(EndpointsTest, EachPromptMayHaveItsOwnName) {
  ask("POST", "/generate", R"({"text": ["a", "b"], "rid": ["x", "y"]})");
  EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": "y"})")->response.status, 200);
  EXPECT_FALSE(engine_->requests.at(1).cancelled);
  EXPECT_TRUE(engine_->requests.at(2).cancelled);
}

// Whatever the client has called the request. name "": the id that the answer has.
TEST_F(EndpointsTest, AnAnswersIdIsAName) {
  const std::string chat = R"("messages": [{"role": "user", "content": "a"}]})", two = R"("text": ["a", "b"]})";
  const std::string twice = R"("text": "a", "sampling_params": {"n": 2}})";
  const struct {
    const char* path;
    std::string body;
    const char *name, *cancelled;  // of its prompts
  } cases[]{{"/v1/chat/completions", R"("request_id": "X1", )" + chat, "chatcmpl-X1", "x"},
            {"/v1/chat/completions", R"("rid": "mine", )" + chat, "", "x"},
            {"/v1/completions", R"("rid": "many", "prompt": ["a", "b"]})", "", "xx"},
            {"/v1/messages", R"("rid": "m", "max_tokens": 1, )" + chat, "", "x"},
            {"/v1/responses", R"("request_id": "r", "input": "a"})", "", "x"},
            {"/generate", two, "", "x-"},
            {"/generate", twice, "", "x"},
            {"/generate", R"("rid": "q", )" + two, "q", "xx"},
            {"/generate", R"("rid": "q2", )" + two, "q2-1", "-x"},
            {"/generate", R"("rid": "q3", )" + twice, "q3-1", "x"},
            {"/generate", R"("rid": ["z1", "z2"], "sampling_params": {"n": 2}, )" + two, "z2-1", "-x"},
            {"/generate", R"("rid": ["z3", null], )" + two, "", "x-"}};
  for (const auto& c : cases) {
    const size_t before = engine_->requests.size();
    const auto exchange = ask("POST", c.path, R"({"stream": true, )" + c.body);
    engine_->send(before + 1, 0, "x");
    const size_t id = exchange->streamed.find(R"("id":")") + 6;
    std::string name = c.name;
    if (name.empty()) name = exchange->streamed.substr(id, exchange->streamed.find('"', id) - id);
    EXPECT_EQ(ask("POST", "/abort_request", R"({"rid": ")" + name + "\"}")->response.status, 200) << name;
    std::string cancelled;
    for (size_t i = before + 1; i <= engine_->requests.size(); ++i)
      cancelled += engine_->requests.at(i).cancelled ? 'x' : '-';
    EXPECT_EQ(cancelled, c.cancelled) << name << " of " << c.body;
  }
}

TEST_F(EndpointsTest, APromptThatCannotFitIsNotTokenized) {
  const size_t most = tiny_model()->tokenizer.most_bytes_of_an_id();
  ASSERT_GT(most, 0u);
  const struct {
    size_t bytes;
    const char* says;
  } cases[]{{most * 101, "bytes"}, {400, "is longer than the model's context length of 100 tokens"}};
  for (const auto& c : cases) {
    const std::string text(c.bytes, '7');  // a token each
    for (const auto& [path, body] :
         {std::pair{"/v1/completions", R"({"prompt": ")" + text + "\"}"},
          {"/v1/completions", R"({"prompt": ["a", ")" + text + "\"]}"},
          {"/generate", R"({"text": ")" + text + "\"}"},
          {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": ")" + text + "\"}]}"}}) {
      const auto exchange = ask("POST", path, body);
      EXPECT_EQ(exchange->response.status, 400);
      const io::JsonValue answer = json(exchange->response.body);
      EXPECT_EQ(string_at(answer, {"error", "code"}), "context_length_exceeded");
      EXPECT_NE(string_at(answer, {"error", "message"}).find(c.says), std::string::npos) << exchange->response.body;
    }
  }
  EXPECT_TRUE(engine_->requests.empty());
}

TEST_F(EndpointsTest, HealthIsThatTheEngineMoves) {
  EXPECT_EQ(ask("GET", "/health")->response.status, 200);
  engine_->stalled = 1000;
  EXPECT_EQ(ask("GET", "/health")->response.status, 503);
  EXPECT_EQ(ask("GET", "/health_generate")->response.status, 503);
  EXPECT_TRUE(engine_->requests.empty());
  engine_->stalled = 0;
  engine_->failed = "a copy failed on cuda:0";
  for (const char* path : {"/health", "/health_generate"}) {
    const auto exchange = ask("GET", path);
    EXPECT_EQ(exchange->response.status, 503);
    EXPECT_NE(exchange->response.body.find("a copy failed on cuda:0"), std::string::npos) << exchange->response.body;
  }
  engine_->failed.clear();
  const auto one = ask("GET", "/health_generate");
  EXPECT_EQ(one->answered, 0);
  engine_->send(1, 0, "x", FinishReason::length);
  EXPECT_EQ(one->response.status, 200);
  engine_->room = 0;
  EXPECT_EQ(ask("GET", "/health_generate")->response.status, 200);  // a full queue is not sickness
  service_.set_draining();
  EXPECT_EQ(ask("GET", "/health")->response.status, 503);
  EXPECT_EQ(ask("POST", "/v1/completions", R"({"prompt": "a"})")->response.status, 503);
}

TEST_F(EndpointsTest, BeforeTheModelIsThere) {
  Service loading{ServiceConfig()};
  for (const Route& route : routes()) {
    if (route.path == "/" || route.path == "/version") continue;
    const auto exchange = std::make_shared<FakeExchange>(std::string(route.method), "/v1/models/x", "{}");
    try {
      route.answer(loading, exchange);
      ADD_FAILURE() << route.path;
    } catch (const ApiError& error) {
      EXPECT_EQ(error.status, 503) << route.path;
    }
  }
}

TEST_F(EndpointsTest, ReloadsAnswerInOneShape) {
  const std::string folder = tiny_model()->path;
  const auto update = [&](const std::string& more) {
    const auto exchange = ask("POST", "/update_weights_from_disk", "{" + more + "}");
    const io::JsonValue answer = json(exchange->response.body);
    for (const char* key : {"success", "message", "num_paused_requests", "weight_version"})
      EXPECT_NE(answer.find(key), nullptr) << key << " " << exchange->response.body;
    EXPECT_EQ(*answer.find("success")->as<bool>(), exchange->response.status == 200);
    EXPECT_EQ(answer.find("error") == nullptr, exchange->response.status == 200);
    return exchange;
  };
  const std::string own = R"("model_path": ")" + folder + '"';
  engine_->reload_error = "model.safetensors is cut";
  const auto failed = update(own);
  EXPECT_EQ(failed->response.status, 400);
  EXPECT_EQ(string_at(json(failed->response.body), {"message"}), "model.safetensors is cut");
  EXPECT_EQ(string_at(json(failed->response.body), {"error", "message"}), "model.safetensors is cut");
  EXPECT_EQ(service_.weight_version(), "0");
  engine_->reload_error.clear();
  EXPECT_EQ(update(own)->response.status, 200);
  EXPECT_EQ(service_.weight_version(), "1");
  EXPECT_EQ(update(own + R"(, "weight_version": "step-7", "flush_cache": false)")->response.status, 200);
  EXPECT_EQ(service_.weight_version(), "step-7");
  EXPECT_EQ(string_at(json(ask("GET", "/model_info")->response.body), {"weight_version"}), "step-7");
  EXPECT_EQ(string_at(json(ask("GET", "/model_info")->response.body), {"model_path"}), folder);
  EXPECT_EQ(engine_->reloads, 2);
  for (const std::string& body :
       {std::string(), std::string(R"("model_path": "")"), std::string(R"("model_path": null)"),
        R"("model_path": ")" + folder + R"(\u0000")", R"("model_path": ")" + folder + R"(\u0000/../other")",
        own + R"(, "flush_cache": 7)", own + R"(, "unknown": 1)", own + R"(, "weight_version": 7)"})
    EXPECT_EQ(update(body)->response.status, 400) << body;
  EXPECT_EQ(engine_->reloads, 2);
  EXPECT_EQ(service_.weight_version(), "step-7");
  EXPECT_EQ(update(own)->response.status, 200);
  EXPECT_EQ(service_.weight_version(), "3");
}

TEST_F(EndpointsTest, ParametersArriveAsTheyWereAsked) {
  ask("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], "temperature": 0.25,
      "top_p": 0.5, "top_k": -1, "min_p": 0.125, "presence_penalty": 1, "frequency_penalty": -1,
      "repetition_penalty": 1.5, "logit_bias": {"7": -100, "9": 2.5}, "seed": -1, "n": 3, "max_tokens": 9,
      "max_completion_tokens": 8, "min_tokens": 2, "stop": ["x", "y"], "stop_token_ids": [3], "ignore_eos": true,
      "skip_special_tokens": false, "include_stop_str_in_output": true, "logprobs": true, "top_logprobs": 4})");
  const engine::Params& p = engine_->requests.at(1).request.params;
  EXPECT_EQ(p.n, 3);
  EXPECT_EQ(p.max_tokens, 8);
  EXPECT_EQ(p.min_tokens, 2);
  EXPECT_EQ(p.sampling.temperature, 0.25);
  EXPECT_EQ(p.sampling.top_p, 0.5);
  EXPECT_EQ(p.sampling.top_k, 0);
  EXPECT_EQ(p.sampling.min_p, 0.125);
  EXPECT_EQ(p.sampling.presence_penalty, 1);
  EXPECT_EQ(p.sampling.frequency_penalty, -1);
  EXPECT_EQ(p.sampling.repetition_penalty, 1.5);
  EXPECT_EQ(p.sampling.seed, ~uint64_t{0});
  EXPECT_EQ(p.sampling.logit_bias, (std::vector<std::pair<int32_t, float>>{{7, -100.F}, {9, 2.5F}}));
  EXPECT_EQ(p.stop, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(p.stop_tokens, std::vector<int32_t>{3});
  EXPECT_TRUE(p.ignore_eos && p.include_stop && !p.skip_special_tokens && p.logprobs);
  EXPECT_EQ(p.top_logprobs, 4);
}

TEST_F(EndpointsTest, WhenARequestRunsIsItsOwn) {
  ServiceConfig config;
  config.priority_scheduling = true;
  Service service(config);
  service.set_ready(tiny_model(), engine_);
  const std::string when = R"("priority": -3, "timeout": 7.5, "queue_timeout": 2.5, "cache_salt": "tenant")";
  for (const auto& [path, body] :
       {std::pair{"/v1/completions", R"({"prompt": "a", )"},
        {"/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}], )"},
        {"/v1/messages", R"({"max_tokens": 1, "messages": [{"role": "user", "content": "a"}], )"},
        {"/v1/responses", R"({"input": "a", )"},
        {"/generate", R"({"text": "a", )"}}) {
    std::string allowed;
    find_route("POST", path, allowed)->answer(service, std::make_shared<FakeExchange>("POST", path, body + when + "}"));
    const engine::Request& request = engine_->requests.at(engine_->requests.size()).request;
    EXPECT_EQ(request.priority, -3) << path;
    EXPECT_EQ(request.timeout, 7.5) << path;
    EXPECT_EQ(request.queue_timeout, 2.5) << path;
    EXPECT_EQ(request.cache_salt, "tenant") << path;
  }
  engine_->requests.clear();  // before the service
}

TEST_F(EndpointsTest, DefaultsOfEachForm) {
  ask("POST", "/v1/completions", R"({"prompt": "a"})");
  ask("POST", "/v1/chat/completions", R"({"messages": [{"role": "user", "content": "a"}]})");
  ask("POST", "/generate", R"({"text": "a", "sampling_params": {"top_k": 5}})");
  EXPECT_EQ(engine_->requests.at(1).request.params.max_tokens, 16);
  EXPECT_EQ(engine_->requests.at(2).request.params.max_tokens, std::nullopt);  // to the context's end
  EXPECT_EQ(engine_->requests.at(3).request.params.max_tokens, 99);            // 128, cut to it
  EXPECT_EQ(engine_->requests.at(1).request.params.sampling.temperature, 1);
  EXPECT_NE(engine_->requests.at(1).request.params.sampling.seed, engine_->requests.at(2).request.params.sampling.seed);
}

TEST_F(EndpointsTest, ThoughtsAreKeptApart) {
  ServiceConfig config;
  config.reasoning_parser = "qwen3";
  Service service(config);
  service.set_ready(tiny_model(), engine_);
  const auto run = [&](const std::string& more) {
    auto exchange = std::make_shared<FakeExchange>("POST", "/v1/chat/completions",
                                                   R"({"messages": [{"role": "user", "content": "a"}])" + more + "}");
    chat_completions(service, exchange);
    const engine::RequestId id = engine_->requests.size();
    engine_->send(id, 0, "<think>\nhm");
    engine_->send(id, 0, "m</think>\n\nyes", FinishReason::stop);
    return exchange;
  };
  const io::JsonValue whole = json(run("")->response.body);
  EXPECT_EQ(string_at(whole, {"choices", "0", "message", "reasoning_content"}), "hmm");
  EXPECT_EQ(string_at(whole, {"choices", "0", "message", "content"}), "yes");
  EXPECT_EQ(string_at(whole, {"usage", "completion_tokens_details", "reasoning_tokens"}), "2");  // an event's one each
  const io::JsonValue plain = json(run(R"(, "separate_reasoning": false)")->response.body);
  EXPECT_EQ(string_at(plain, {"choices", "0", "message", "content"}), "<think>\nhmm</think>\n\nyes");
  EXPECT_EQ(string_at(plain, {"usage", "completion_tokens_details", "reasoning_tokens"}), "0");
  EXPECT_NE(plain.find("choices")->as<io::JsonValue::Array>()->at(0).find("message"), nullptr);
  EXPECT_NE(run(R"(, "separate_reasoning": false)")->response.body.find(R"("reasoning_content":null)"),
            std::string::npos);
  const std::string stream = run(R"(, "stream": true)")->streamed;
  EXPECT_NE(stream.find(R"("delta":{"reasoning_content":"hm"})"), stream.npos) << stream;
  EXPECT_NE(stream.find(R"("delta":{"reasoning_content":"m","content":"yes"})"), stream.npos) << stream;
}

TEST_F(EndpointsTest, MetricsCountByThemselves) {
  engine_->numbers.running = 2;
  engine_->numbers.finished_stop = 7;
  engine_->numbers.first_token_seconds.observe(0.03);
  engine_->numbers.first_token_seconds.observe(1000);
  service_.set_front([] {
    FrontStats front;
    front.http.connections = 5;
    front.http.answers = {{200, 4}, {404, 1}};
    front.bodies_waiting = 3;
    return front;
  });
  const std::string text = ask("GET", "/metrics")->response.body;
  for (const char* line :
       {"sluice:http_connections{model_name=\"tiny\"} 5\n", "sluice:http_bodies_waiting{model_name=\"tiny\"} 3\n",
        "sluice:http_responses_total{model_name=\"tiny\",status=\"404\"} 1\n",
        "sluice:num_running_reqs{model_name=\"tiny\"} 2\n",
        "sluice:finished_requests_total{model_name=\"tiny\",finished_reason=\"stop\"} 7\n",
        "sluice:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"0.02\"} 0\n",
        "sluice:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"0.05\"} 1\n",
        "sluice:time_to_first_token_seconds_bucket{model_name=\"tiny\",le=\"+Inf\"} 2\n",
        "sluice:time_to_first_token_seconds_count{model_name=\"tiny\"} 2\n",
        "# TYPE sluice:time_to_first_token_seconds histogram\n"})
    EXPECT_NE(text.find(line), std::string::npos) << line;
}

}  // namespace
}  // namespace sluice::server
