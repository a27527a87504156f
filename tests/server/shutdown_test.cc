// SPDX-License-Identifier: Apache-2.0
// The end of the whole server in one process: while an administrator's request waits for a reload, and beside jobs.
#include <gtest/gtest.h>

#include <future>
#include <memory>

#include "model/models.h"
#include "server/api_server.h"
#include "server/in_process_engine.h"
#include "tests/server/fake_engine.h"
#include "tests/server/socket_client.h"

namespace sluice::server {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

std::string post(const std::string& path, const std::string& body) {
  return "POST " + path + " HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: " +
         std::to_string(body.size()) + "\r\nConnection: close\r\n\r\n" + body;
}

// What outlives the test when it fails: the server's threads then still use it.
struct Scene {
  ThreadPool pool{2};
  std::promise<void> reloading, go;
  std::unique_ptr<ApiServer> server;
  std::promise<void> ended;
};

// What the request that waits is told when the server ends; "" when it never ends. `patience`: for what cannot be seen
// from here, that the request waits and that the drain has given up.
std::string answer_to_the_one_that_waits(milliseconds patience) {
  const auto scene = std::make_shared<Scene>();
  const std::string folder = std::string(SLUICE_SOURCE_DIR) + "/tests/fixtures/qwen3-moe";
  model::LoadOptions options;
  options.path = folder;
  Context ctx{scene->pool};
  http::Options http;
  http.port = 0;
  scene->server = std::make_unique<ApiServer>(http, ServiceConfig());
  scene->server->set_ready(tiny_model(), std::make_shared<InProcessEngine>(ctx, model::load_live_model(ctx, options),
                                                                           options, tiny_model()->tokenizer,
                                                                           engine::EngineConfig{.cache_tokens = 4096},
                                                                           [scene, options](const std::string&) {
                                                                             scene->reloading.set_value();
                                                                             scene->go.get_future().wait();
                                                                             return options;
                                                                           }));
  http::Client first(scene->server->port()), second(scene->server->port());
  first.send(post("/update_weights_from_disk", R"({"model_path": ")" + tiny_model()->path + "\"}"));
  EXPECT_EQ(scene->reloading.get_future().wait_for(seconds(120)), std::future_status::ready);
  second.send(post("/flush_cache", ""));
  std::this_thread::sleep_for(patience);  // for it to be queued after the reload
  std::thread([scene] {
    scene->server->drain(milliseconds(0));
    scene->server.reset();
    scene->ended.set_value();
  }).detach();
  std::this_thread::sleep_for(patience);  // for the drain to give up waiting and to stop the engine
  scene->go.set_value();
  const std::string answer = second.rest();
  return scene->ended.get_future().wait_for(seconds(120)) == std::future_status::ready ? answer : "";
}

TEST(Shutdown, EndsWithAnAdminRequestThatWaitsForAReload) {
  std::string answer;
  // Longer where a busy machine was not that far: the request then has another answer.
  for (milliseconds patience(200); patience <= seconds(10); patience *= 2) {
    answer = answer_to_the_one_that_waits(patience);
    ASSERT_NE(answer, "") << "the server never ends, or has no answer";
    if (answer.find("the engine is stopping") != std::string::npos) break;
  }
  EXPECT_NE(answer.find("503"), std::string::npos) << answer;
  EXPECT_NE(answer.find("the engine is stopping"), std::string::npos) << answer;
}

// Two jobs, so that one is due when the other ends: stop() then comes between the timer and the job.
TEST(Shutdown, EndsBesideJobsThatAreDue) {
  http::Options options;
  options.port = 0;
  for (int i = 0; i < 200; ++i) {
    http::Server server(options, nullptr, nullptr);
    for (int job = 0; job < 2; ++job)
      server.every(milliseconds(1), [] { std::this_thread::sleep_for(milliseconds(1)); });
    server.start();
    std::this_thread::sleep_for(std::chrono::microseconds(3000 + 37 * i));
    server.stop();
  }
}

}  // namespace
}  // namespace sluice::server
