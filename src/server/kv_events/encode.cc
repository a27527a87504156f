// SPDX-License-Identifier: Apache-2.0
#include "server/kv_events/encode.h"

#include <nlohmann/json.hpp>

namespace sluice::server {

namespace {
using Json = nlohmann::ordered_json;  // the tag "type" first: readers need not look ahead

// Where the model's steps find keys and values. It is the name of that tier whatever the device: a router takes "CPU"
// for memory from which they would have to be fetched.
constexpr const char* kMedium = "GPU";

Json stored(const engine::CacheEvent& e) {
  Json keys;  // what a block's hash depends on beside tokens, for each block; null: on nothing for any
  if (!e.salt.empty() && !e.parent) {
    keys = Json::array();
    keys.push_back(Json::array({e.salt}));
    while (keys.size() < e.blocks.size()) keys.push_back(nullptr);
  }
  Json out;
  out["type"] = "BlockStored";
  out["block_hashes"] = e.blocks;
  out["parent_block_hash"] = e.parent ? Json(*e.parent) : Json();
  out["token_ids"] = e.tokens;
  out["block_size"] = e.tokens.size() / e.blocks.size();
  out["lora_id"] = nullptr;
  out["medium"] = kMedium;
  out["lora_name"] = nullptr;
  out["extra_keys"] = std::move(keys);
  return out;
}

Json event(const engine::CacheEvent& e) {
  switch (e.kind) {
    case engine::CacheEvent::Kind::stored:
      return stored(e);
    case engine::CacheEvent::Kind::removed:
      return {{"type", "BlockRemoved"}, {"block_hashes", e.blocks}, {"medium", kMedium}};
    case engine::CacheEvent::Kind::cleared:
      break;
  }
  return {{"type", "AllBlocksCleared"}};
}
}  // namespace

std::string encode_batch(double time, std::span<const engine::CacheEvent> events, KvEventsConfig::Format format) {
  Json all = Json::array();
  for (const engine::CacheEvent& e : events) {
    Json map = event(e);
    if (format == KvEventsConfig::Format::map) {
      all.push_back(std::move(map));
      continue;
    }
    Json values = Json::array();
    for (auto& value : map) values.push_back(std::move(value));
    all.push_back(std::move(values));
  }
  constexpr int kRank = 0;  // there is one process
  std::string out;
  Json::to_msgpack(Json::array({time, std::move(all), kRank}), nlohmann::detail::output_adapter<char>(out));
  return out;
}

}  // namespace sluice::server
