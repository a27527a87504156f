// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_index.h"

#include <unordered_map>
#include <unordered_set>

#include "base/error.h"
#include "io/json.h"
#include "io/quote.h"

namespace sluice::io {

namespace {
// Collects "weight_map" and skips every other member of the top object ("metadata").
class IndexReader final : public JsonEvents {
 public:
  explicit IndexReader(std::string_view source) : source_(source) {}

  void null() override { scalar("null"); }
  void boolean(bool value) override { scalar(value ? "true" : "false"); }
  void integer(int64_t value) override { scalar(std::to_string(value)); }
  void real(double value) override { scalar(number_text(value)); }
  void string(std::string& value) override {
    if (!in_map()) return scalar(quote(value));
    add(value);
  }
  void key(std::string& value) override {
    if (in_map()) name_ = std::move(value);
    if (depth_ != 1) return;
    map_is_next_ = value == "weight_map";
    if (map_is_next_ && seen_map_) fail(ErrorCode::bad_file, "{} has weight_map twice", source_);
  }
  void begin_object() override {
    if (in_map()) scalar("an object");
    if (depth_ == 1 && map_is_next_) map_open_ = seen_map_ = true;
    ++depth_;
  }
  void end_object() override {
    if (--depth_ == 1) map_open_ = map_is_next_ = false;
  }
  void begin_array() override {
    scalar("an array");
    ++depth_;
  }
  void end_array() override { --depth_; }

  SafetensorsIndex take() {
    check_file(seen_map_, "{} has no weight_map", source_);
    check_file(!index_.tensors.empty(), "{} has an empty weight_map", source_);
    std::unordered_set<std::string_view> names;
    names.reserve(index_.tensors.size());
    for (const auto& [name, shard] : index_.tensors)
      if (!names.insert(name).second)
        fail(ErrorCode::bad_file, "{} names tensor {} twice, once in {}", source_, quote(name), index_.shards[shard]);
    return std::move(index_);
  }

 private:
  bool in_map() const { return map_open_ && depth_ == 2; }

  // Any value but a string inside the map, or an object as the map itself and the whole.
  void scalar(const std::string& value) const {
    check_file(depth_ != 0, "{} holds {}; it must be an object with weight_map", source_, value);
    check_file(!(depth_ == 1 && map_is_next_), "{}: weight_map is {}; it must be an object", source_, value);
    check_file(!in_map(), "{}: weight_map places tensor {} in {}; it must be the name of a shard", source_,
               quote(name_), value);
  }

  void add(const std::string& shard) {
    const auto [it, fresh] = shard_index_.try_emplace(shard, index_.shards.size());
    if (fresh) {
      // A hostile index must not make us open /etc/passwd, ../x or a device. Links inside the folder are followed:
      // the Hugging Face cache consists of them.
      const bool plain = !shard.empty() && shard != "." && shard != ".." && shard.size() <= 255 &&
                         shard.find_first_of(std::string_view("/\\\0", 3)) == shard.npos;
      check_file(plain, "{}: weight_map places tensor {} in {}; it must be the name of a file in the same folder",
                 source_, quote(name_), quote(shard));
      index_.shards.push_back(shard);
    }
    index_.tensors.emplace_back(std::move(name_), it->second);
  }

  std::string_view source_;
  SafetensorsIndex index_;
  std::unordered_map<std::string, size_t> shard_index_;
  std::string name_;
  int depth_ = 0;
  bool map_is_next_ = false, map_open_ = false, seen_map_ = false;
};
}  // namespace

SafetensorsIndex parse_safetensors_index(std::string_view text, std::string_view source) {
  IndexReader reader(source);
  parse_json(text, source, reader);
  return reader.take();
}

}  // namespace sluice::io
