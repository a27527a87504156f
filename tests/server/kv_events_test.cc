// SPDX-License-Identifier: Apache-2.0
// KV events before they reach a socket: the queue that the engine never waits for, the bytes of a batch, the options.
#include <gtest/gtest.h>

#include "base/error.h"
#include "server/kv_events/batch_queue.h"
#include "server/kv_events/config.h"
#include "server/kv_events/encode.h"

namespace sluice::server {
namespace {

using engine::CacheEvent;

CacheEvent stored(std::vector<uint64_t> blocks, size_t block_size = 2) {
  CacheEvent e;
  e.blocks = std::move(blocks);
  e.tokens.assign(e.blocks.size() * block_size, 7);
  return e;
}

TEST(BatchQueue, GivesBatchesInOrder) {
  BatchQueue queue(10);
  EXPECT_TRUE(queue.push(1, {stored({1})}));
  EXPECT_FALSE(queue.push(2, {stored({2})})) << "the reader knows already";
  const auto batches = queue.take();
  ASSERT_EQ(batches.size(), 2U);
  for (uint64_t i = 0; i < 2; ++i) {
    EXPECT_EQ(batches[i].sequence, i);
    EXPECT_EQ(batches[i].time, static_cast<double>(i + 1));
    EXPECT_EQ(batches[i].events.at(0).blocks, std::vector<uint64_t>{i + 1});
  }
  EXPECT_TRUE(queue.take().empty());
  EXPECT_TRUE(queue.push(3, {stored({3})}));
  EXPECT_EQ(queue.take().at(0).sequence, 2U);
  EXPECT_EQ(queue.dropped(), 0U);
}

TEST(BatchQueue, AFullOneForgetsAndSaysSo) {
  BatchQueue queue(3);
  for (uint64_t i = 0; i < 4; ++i) queue.push(0, {stored({i})});
  auto batches = queue.take();
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].sequence, 3U) << "the gap shows";
  ASSERT_EQ(batches[0].events.size(), 2U);
  EXPECT_EQ(batches[0].events[0].kind, CacheEvent::Kind::cleared);
  EXPECT_EQ(batches[0].events[1].blocks, std::vector<uint64_t>{3});
  EXPECT_EQ(queue.dropped(), 3U);
  // Token ids count too, but a single batch is never too large.
  EXPECT_TRUE(queue.push(0, {stored({1, 2}, size_t{9} << 20)}));
  EXPECT_FALSE(queue.push(0, {{.kind = CacheEvent::Kind::cleared}, stored({3})}));
  batches = queue.take();
  ASSERT_EQ(batches.size(), 1U);
  EXPECT_EQ(batches[0].sequence, 5U);
  EXPECT_EQ(batches[0].events.size(), 2U) << "one that says cleared already needs no other";
}

TEST(EncodeBatch, WritesMapsAndArrays) {
  CacheEvent first = stored({1, UINT64_MAX});
  first.salt = "s";
  CacheEvent next = stored({3});
  next.parent = UINT64_MAX;
  next.salt = "s";
  const std::vector<CacheEvent> events{
      {.kind = CacheEvent::Kind::cleared}, first, next, {.kind = CacheEvent::Kind::removed, .blocks = {1}}};
  // Bytes by the specification of msgpack.
  const std::string time("\xca\x3f\xc0\x00\x00", 5);  // 1.5
  const auto text = [](const std::string& s) { return static_cast<char>(0xa0 + s.size()) + s; };
  const std::string max = "\xcf\xff\xff\xff\xff\xff\xff\xff\xff", nil = "\xc0", tokens = "\x94\x07\x07\x07\x07",
                    zero(1, '\0');
  EXPECT_EQ(encode_batch(1.5, events, KvEventsConfig::Format::array),
            "\x93" + time + "\x94" +                                                                                 //
                "\x91" + "\xb0" + "AllBlocksCleared" +                                                               //
                "\x99" + text("BlockStored") + "\x92\x01" + max + nil + tokens + "\x02" + nil + text("GPU") + nil +  //
                "\x92\x91" + text("s") + nil +                                                                       //
                "\x99" + text("BlockStored") + "\x91\x03" + max + "\x92\x07\x07" + "\x02" + nil + text("GPU") + nil +
                nil +  //
                "\x93" + text("BlockRemoved") + "\x91\x01" + text("GPU") + zero);
  EXPECT_EQ(encode_batch(1.5, std::span(events).last(1), KvEventsConfig::Format::map),
            "\x93" + time + "\x91" + "\x83" + text("type") + text("BlockRemoved") + text("block_hashes") + "\x91\x01" +
                text("medium") + text("GPU") + zero);
}

TEST(KvEventsConfig, ReadsWhatVllmAndSglangTake) {
  const auto parse = [](std::string_view json) { return parse_kv_events_config(json, "the events"); };
  const KvEventsConfig defaults = parse("{}");
  EXPECT_FALSE(defaults.enabled);
  const KvEventsConfig sglang = parse(R"({"publisher": "zmq", "topic": "kv", "buffer_steps": 7})");
  EXPECT_TRUE(sglang.enabled);
  EXPECT_EQ(sglang.endpoint, "tcp://*:5557");
  EXPECT_EQ(sglang.replay_endpoint, "");
  EXPECT_EQ(sglang.topic, "kv");
  EXPECT_EQ(sglang.buffer_steps, 7U);
  EXPECT_EQ(sglang.hwm, 100'000);
  EXPECT_EQ(sglang.format, KvEventsConfig::Format::map);
  EXPECT_TRUE(parse(R"({"enable_kv_cache_events": true, "replay_endpoint": null})").enabled);
  EXPECT_FALSE(parse(R"({"enable_kv_cache_events": false, "publisher": "zmq"})").enabled);
  for (const char* bad : {"", "7", "[]", R"({"publisher": 1})", R"({"hwm": 0})", R"({"endpoint": "udp://a"})",
                          R"({"port": 1})", R"({"event_format": ""})", R"({"topic": "a", "topic": "b"})"}) {
    try {
      parse(bad);
      ADD_FAILURE() << bad;
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ErrorCode::invalid_argument) << bad;
      EXPECT_NE(std::string(error.what()).find("the events"), std::string::npos) << error.what();
    }
  }
  EXPECT_TRUE(is_listened_at("tcp://*:5557"));
  EXPECT_TRUE(is_listened_at("tcp://[::1]:5557"));
  EXPECT_TRUE(is_listened_at("ipc:///tmp/a"));
  EXPECT_FALSE(is_listened_at("tcp://indexer:5557"));
  EXPECT_FALSE(is_listened_at("tcp://127.0.0.1:5557"));
}

}  // namespace
}  // namespace sluice::server
