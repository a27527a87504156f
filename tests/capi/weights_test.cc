// SPDX-License-Identifier: Apache-2.0
// What a trainer calls: other tensors, memory given back, checksums. With the bundled checkpoint, in BF16 by its files.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "sluice/sluice.hpp"
#include "tests/capi/bundled_model.h"

namespace {

const std::string kNorm = "backbone.layers.0.norm.weight";
const std::string kExpert = "backbone.layers.1.mixer.experts.0.up_proj.weight";

// One tensor with memory of its own.
struct Owned {
  std::string name, dtype;
  std::vector<int64_t> shape;
  std::vector<uint16_t> bits;
  sluice_tensor view() const {
    auto t = SLUICE_INIT(sluice_tensor);
    t.name = name.c_str();
    t.dtype = dtype.c_str();
    t.shape = shape.data();
    t.rank = shape.size();
    t.data = bits.data();
    return t;
  }
  // Every value halved, but for those that would become subnormal.
  Owned halved() const {
    Owned out = *this;
    for (uint16_t& b : out.bits)
      if ((b & 0x7f80) > 0x80) b = static_cast<uint16_t>(b - 0x80);
    return out;
  }
};

class CapiWeights : public testing::Test {
 protected:
  void SetUp() override { start("auto"); }
  void start(const char* load_format) {
    sluice_engine_destroy(engine_);
    auto model = SLUICE_INIT(sluice_model_options);
    model.dtype = "float32";
    model.load_format = load_format;
    auto options = SLUICE_INIT(sluice_engine_options);
    options.threads = 2;
    options.model = &model;
    options.cache_tokens = 4096;
    ASSERT_EQ(sluice_engine_create(kFolder.c_str(), &options, &engine_), SLUICE_OK) << sluice_last_error();
  }
  void TearDown() override { sluice_engine_destroy(engine_); }

  struct Answer {
    std::vector<int32_t> ids;
    int64_t updates = -1;
    bool operator==(const Answer& o) const { return ids == o.ids; }
  };
  Answer answer() {
    const std::vector<int32_t> prompt{20, 45, 77, 101, 13, 7, 8, 9};
    auto r = SLUICE_INIT(sluice_request);
    r.prompt = prompt.data();
    r.prompt_count = prompt.size();
    r.max_new_tokens = 12;
    r.ignore_eos = 1;
    sluice_stream* stream = nullptr;
    EXPECT_EQ(sluice_engine_submit(engine_, &r, 1, 0, &stream), SLUICE_OK) << sluice_last_error();
    Answer a;
    for (int32_t state = 0; stream != nullptr && state != SLUICE_STREAM_DONE;) {
      auto event = SLUICE_INIT(sluice_event);
      EXPECT_EQ(sluice_stream_next(stream, 1000, &event, &state), SLUICE_OK);
      if (state != SLUICE_STREAM_EVENT) continue;
      a.ids.insert(a.ids.end(), event.tokens, event.tokens + event.token_count);
      a.updates = event.weight_updates;
    }
    sluice_stream_destroy(stream);
    return a;
  }
  sluice_status submit() {
    const int32_t id = 5;
    auto r = SLUICE_INIT(sluice_request);
    r.prompt = &id;
    r.prompt_count = 1;
    r.max_new_tokens = 1;
    sluice_stream* stream = nullptr;
    const sluice_status status = sluice_engine_submit(engine_, &r, 1, 0, &stream);
    sluice_stream_destroy(stream);
    return status;
  }
  sluice_weights* weights() {
    sluice_weights* out = nullptr;
    EXPECT_EQ(sluice_engine_get_weights(engine_, &out), SLUICE_OK) << sluice_last_error();
    return out;
  }
  Owned read(const std::string& name) {
    sluice_weights* all = weights();
    size_t index = 0;
    EXPECT_EQ(sluice_weights_find(all, name.c_str(), &index), SLUICE_OK) << sluice_last_error();
    auto t = SLUICE_INIT(sluice_tensor);
    EXPECT_EQ(sluice_weights_get(all, index, &t), SLUICE_OK) << sluice_last_error();
    Owned out{t.name, t.dtype, {t.shape, t.shape + t.rank}, {}};
    EXPECT_EQ(out.name, name);
    EXPECT_EQ(out.dtype, "bfloat16");
    size_t elements = 1;
    for (const int64_t size : out.shape) elements *= static_cast<size_t>(size);
    out.bits.resize(elements);
    std::memcpy(out.bits.data(), t.data, elements * 2);
    sluice_weights_destroy(all);
    return out;
  }
  std::string checksum_of(const std::string& name) {
    sluice_weights* all = weights();
    size_t index = 0;
    char sum[65] = {};
    EXPECT_EQ(sluice_weights_find(all, name.c_str(), &index), SLUICE_OK) << sluice_last_error();
    EXPECT_EQ(sluice_weights_checksum(all, index, sum, sizeof sum), SLUICE_OK);
    sluice_weights_destroy(all);
    return sum;
  }
  sluice_status update(const std::vector<sluice_tensor>& tensors) {
    return sluice_engine_update_tensors(engine_, tensors.data(), tensors.size(), 0);
  }
  int64_t updates() {
    auto info = SLUICE_INIT(sluice_engine_info);
    EXPECT_EQ(sluice_engine_get_info(engine_, &info), SLUICE_OK);
    return info.weight_updates;
  }

  sluice_engine* engine_ = nullptr;
};

TEST_F(CapiWeights, NamesValuesAndChecksums) {
  sluice_weights* all = weights();
  size_t count = 0;
  ASSERT_EQ(sluice_weights_count(all, &count), SLUICE_OK);
  EXPECT_EQ(count, 126u);
  std::string before;
  for (size_t i = 0; i < count; ++i) {
    auto t = SLUICE_INIT(sluice_tensor);
    ASSERT_EQ(sluice_weights_get(all, i, &t), SLUICE_OK);
    EXPECT_LT(before, t.name);
    before = t.name;
  }
  size_t index = 0;
  ASSERT_EQ(sluice_weights_find(all, kNorm.c_str(), &index), SLUICE_OK);
  const Owned norm = read(kNorm);
  std::vector<double> values(norm.bits.size());
  ASSERT_EQ(sluice_weights_values(all, index, 0, 256, values.data()), SLUICE_OK);
  for (size_t i = 0; i < values.size(); ++i) {
    const uint32_t wide = uint32_t{norm.bits[i]} << 16;
    float value = 0;
    std::memcpy(&value, &wide, 4);
    EXPECT_EQ(values[i], value);
  }
  char sum[65] = {};
  ASSERT_EQ(sluice_weights_checksum(all, index, sum, sizeof sum), SLUICE_OK);
  EXPECT_EQ(std::string(sum).find_first_not_of("0123456789abcdef"), std::string::npos);
  EXPECT_EQ(std::strlen(sum), 64u);
  EXPECT_EQ(sluice_weights_checksum(all, index, sum, 64), SLUICE_BUFFER_TOO_SMALL);
  EXPECT_EQ(sluice_weights_find(all, "model.nothing", &index), SLUICE_NOT_FOUND);
  EXPECT_STREQ(sluice_last_error(), "there is no tensor \"model.nothing\"");
  auto t = SLUICE_INIT(sluice_tensor);
  EXPECT_EQ(sluice_weights_get(all, count, &t), SLUICE_INVALID_ARGUMENT);
  // Results are looked at before the work: neither the index is looked up nor a checksum computed.
  sluice_tensor zeros{};
  EXPECT_EQ(sluice_weights_get(all, count, &zeros), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "out.struct_size is 0; set it with SLUICE_INIT");
  EXPECT_EQ(sluice_weights_checksum(all, count, nullptr, 65), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "buffer is NULL and size is 65; size must be 0 to ask for the length");
  EXPECT_EQ(sluice_weights_values(all, count, 0, 1, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "values is NULL and count is 1");
  EXPECT_EQ(sluice_weights_values(all, index, 250, 7, values.data()), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_weights_values(all, index, -1, 1, values.data()), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_weights_values(all, index, 0, 1, nullptr), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_weights_count(nullptr, &count), SLUICE_INVALID_ARGUMENT);
  sluice_weights_destroy(all);
  EXPECT_EQ(sluice_engine_get_weights(nullptr, &all), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(all, nullptr);
}

TEST_F(CapiWeights, TensorsTakeTheOldOnesPlaces) {
  const Answer fresh = answer();
  EXPECT_EQ(fresh.updates, 0);
  const Owned norm = read(kNorm), expert = read(kExpert);
  sluice_weights* old = weights();
  {
    Owned changed = norm.halved(), other = expert.halved();
    ASSERT_EQ(update({changed.view(), other.view()}), SLUICE_OK) << sluice_last_error();
    std::fill(changed.bits.begin(), changed.bits.end(), uint16_t{0x7fff});  // copied: this is the caller's again
  }
  EXPECT_EQ(read(kNorm).bits, norm.halved().bits);
  const Answer changed = answer();
  EXPECT_NE(changed, fresh);
  EXPECT_EQ(changed.updates, 1);
  size_t index = 0;
  double first = 0;
  ASSERT_EQ(sluice_weights_find(old, kNorm.c_str(), &index), SLUICE_OK);
  ASSERT_EQ(sluice_weights_values(old, index, 0, 1, &first), SLUICE_OK);
  const uint32_t wide = uint32_t{norm.bits[0]} << 16;
  float value = 0;
  std::memcpy(&value, &wide, 4);
  EXPECT_EQ(first, value) << "what was asked for before the update stays";
  sluice_weights_destroy(old);
  ASSERT_EQ(update({norm.view(), expert.view()}), SLUICE_OK);
  EXPECT_EQ(answer(), fresh);
  EXPECT_EQ(updates(), 2);
}

// A later version of the header has more fields.
struct NewerTensor {
  sluice_tensor known;
  const void* more;
};

TEST_F(CapiWeights, TensorsOfANewerCaller) {
  const Owned norm = read(kNorm).halved(), expert = read(kExpert).halved();
  NewerTensor both[] = {{norm.view(), nullptr}, {expert.view(), nullptr}};
  for (NewerTensor& t : both) t.known.struct_size = sizeof t;
  both[1].more = &both;
  EXPECT_EQ(sluice_engine_update_tensors(engine_, &both[0].known, 2, 0), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "tensors[1] sets a field that this version of the library does not know");
  both[1].more = nullptr;
  ASSERT_EQ(sluice_engine_update_tensors(engine_, &both[0].known, 2, 0), SLUICE_OK) << sluice_last_error();
  EXPECT_EQ(read(kNorm).bits, norm.bits);
  EXPECT_EQ(read(kExpert).bits, expert.bits);
}

TEST_F(CapiWeights, AllOrNothing) {
  const Answer fresh = answer();
  const Owned norm = read(kNorm), changed = norm.halved(), expert = read(kExpert).halved();
  const auto refused = [&](const sluice_tensor& bad, const std::string& sentence) {
    EXPECT_EQ(update({expert.view(), bad}), SLUICE_INVALID_ARGUMENT) << sentence;
    EXPECT_NE(std::string(sluice_last_error()).find(sentence), std::string::npos) << sluice_last_error();
  };
  auto t = changed.view();
  t.name = "model.nothing";
  refused(t, "has no tensor \"model.nothing\"");
  t = changed.view();
  t.name = nullptr;
  refused(t, "tensor.name is NULL");
  t.name = kExpert.c_str();
  t.shape = expert.shape.data();
  t.rank = 2;
  t.data = expert.bits.data();
  refused(t, "is given twice");
  t = changed.view();
  t.dtype = "float32";
  refused(t, "accepted: bfloat16, as the checkpoint has it");
  t.dtype = "float7";
  refused(t, "the type of tensor \"" + kNorm + "\" is \"float7\"; accepted: float32, float16, bfloat16");
  t.dtype = nullptr;
  refused(t, "tensor.dtype is NULL");
  t = changed.view();
  const int64_t longer = 1 << 30, negative = -1;
  t.shape = &longer;  // refused before its bytes are read
  refused(t, "has the shape [1073741824]; accepted: [256]");
  t.shape = &negative;
  EXPECT_EQ(update({expert.view(), t}), SLUICE_INVALID_ARGUMENT);
  t.shape = nullptr;
  refused(t, "but shape is NULL");
  t.rank = 9;
  refused(t, "has 9 dimensions; accepted: at most 8");
  t = changed.view();
  t.data = nullptr;
  refused(t, "data is NULL");
  t = changed.view();
  t.struct_size = 3;
  refused(t, "tensors[1].struct_size is 3; accepted: " + std::to_string(sizeof t) + ", as tensors[0] has");
  EXPECT_EQ(sluice_engine_update_tensors(engine_, nullptr, 1, 0), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(sluice_engine_update_tensors(engine_, &t, 0, 0), SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(answer(), fresh);
  EXPECT_EQ(updates(), 0);
}

TEST_F(CapiWeights, SeveralCallsAreOneUpdate) {
  const Answer fresh = answer();
  const Owned norm = read(kNorm), expert = read(kExpert);
  EXPECT_EQ(sluice_engine_end_update(engine_, 0), SLUICE_INVALID_ARGUMENT);
  EXPECT_STREQ(sluice_last_error(), "no update has begun; begin one first");
  ASSERT_EQ(sluice_engine_begin_update(engine_), SLUICE_OK);
  ASSERT_EQ(update({norm.halved().view()}), SLUICE_OK);
  ASSERT_EQ(update({expert.halved().view()}), SLUICE_OK);
  EXPECT_EQ(answer(), fresh);
  EXPECT_EQ(read(kNorm).bits, norm.bits);
  ASSERT_EQ(sluice_engine_end_update(engine_, 1), SLUICE_OK);
  EXPECT_EQ(updates(), 1);
  EXPECT_EQ(read(kNorm).bits, norm.halved().bits);
  EXPECT_NE(answer(), fresh);
}

TEST_F(CapiWeights, DummiesRunUntilAllTensorsHaveCome) {
  const Answer fresh = answer();
  const std::string checksum = checksum_of(kNorm);
  sluice_weights* all = weights();
  size_t count = 0;
  ASSERT_EQ(sluice_weights_count(all, &count), SLUICE_OK);
  struct Copy {
    std::string name, dtype;
    std::vector<int64_t> shape;
    std::vector<char> bytes;
  };
  std::vector<Copy> copies(count);
  std::vector<sluice_tensor> tensors;
  size_t norm = 0;
  for (size_t i = 0; i < count; ++i) {
    auto t = SLUICE_INIT(sluice_tensor);
    ASSERT_EQ(sluice_weights_get(all, i, &t), SLUICE_OK);
    Copy& c = copies[i] = {t.name, t.dtype, {t.shape, t.shape + t.rank}, {}};
    size_t size = c.dtype == "float32" ? 4 : 2;
    for (const int64_t n : c.shape) size *= static_cast<size_t>(n);
    c.bytes.assign(static_cast<const char*>(t.data), static_cast<const char*>(t.data) + size);
    t.name = c.name.c_str();
    t.dtype = c.dtype.c_str();
    t.shape = c.shape.data();
    t.data = c.bytes.data();
    tensors.push_back(t);
    if (c.name == kNorm) norm = i;
  }
  sluice_weights_destroy(all);
  int64_t come = -1, total = -1;
  char missing[256];
  ASSERT_EQ(sluice_engine_sent_tensors(engine_, &come, &total, missing, sizeof missing, nullptr), SLUICE_OK);
  EXPECT_EQ(come + total, 0) << "the weights are a folder's";

  start("dummy");
  const Answer of_dummies = answer();
  EXPECT_NE(of_dummies, fresh);
  auto bad = tensors[norm];
  const int64_t longer = 1 << 30;
  bad.shape = &longer;  // refused before its bytes are read
  EXPECT_EQ(update({bad}), SLUICE_INVALID_ARGUMENT);
  EXPECT_NE(std::string(sluice_last_error()).find("has the shape [1073741824]; accepted: [256]"), std::string::npos)
      << sluice_last_error();
  bad = tensors[norm];
  std::swap(tensors[norm], tensors.back());
  tensors.pop_back();
  ASSERT_EQ(sluice_engine_update_tensors(engine_, tensors.data(), 50, 0), SLUICE_OK) << sluice_last_error();
  ASSERT_EQ(sluice_engine_update_tensors(engine_, tensors.data() + 50, tensors.size() - 50, 0), SLUICE_OK);
  ASSERT_EQ(sluice_engine_sent_tensors(engine_, &come, &total, missing, sizeof missing, nullptr), SLUICE_OK);
  EXPECT_EQ(come, static_cast<int64_t>(count) - 1);
  EXPECT_EQ(total, static_cast<int64_t>(count));
  EXPECT_EQ(missing, kNorm);
  EXPECT_EQ(sluice_engine_sent_tensors(engine_, &come, nullptr, missing, sizeof missing, nullptr),
            SLUICE_INVALID_ARGUMENT);
  EXPECT_EQ(answer(), of_dummies);
  EXPECT_EQ(updates(), 0);
  EXPECT_EQ(sluice_engine_get_weights(engine_, &all), SLUICE_UNSUPPORTED);
  ASSERT_EQ(update({bad}), SLUICE_OK) << sluice_last_error();
  EXPECT_EQ(updates(), 1);
  EXPECT_EQ(answer(), fresh);
  EXPECT_EQ(checksum_of(kNorm), checksum);
  ASSERT_EQ(sluice_engine_sent_tensors(engine_, &come, &total, missing, sizeof missing, nullptr), SLUICE_OK);
  EXPECT_STREQ(missing, "");

  start("dummy");
  ASSERT_EQ(sluice_engine_update_weights(engine_, kFolder.c_str()), SLUICE_OK) << sluice_last_error();
  EXPECT_EQ(answer(), fresh);
  EXPECT_EQ(checksum_of(kNorm), checksum);
}

TEST_F(CapiWeights, ReleasedMemoryComesBack) {
  const Answer fresh = answer();
  const Owned norm = read(kNorm);
  ASSERT_EQ(update({norm.halved().view()}), SLUICE_OK);
  const Answer updated = answer();
  constexpr sluice_memory kBoth = SLUICE_MEMORY_WEIGHTS | SLUICE_MEMORY_KV_CACHE;
  for (const sluice_memory bad : {0, 4, -1})
    EXPECT_EQ(sluice_engine_release_memory(engine_, bad), SLUICE_INVALID_ARGUMENT);
  ASSERT_EQ(sluice_engine_release_memory(engine_, kBoth), SLUICE_OK) << sluice_last_error();
  ASSERT_EQ(sluice_engine_release_memory(engine_, kBoth), SLUICE_OK) << "twice is once";
  EXPECT_EQ(submit(), SLUICE_BUSY);
  EXPECT_NE(std::string(sluice_last_error()).find("weights and kv_cache is released"), std::string::npos);
  EXPECT_EQ(update({norm.view()}), SLUICE_BUSY);
  ASSERT_EQ(sluice_engine_resume_memory(engine_, SLUICE_MEMORY_WEIGHTS), SLUICE_OK);
  EXPECT_EQ(submit(), SLUICE_BUSY);
  ASSERT_EQ(sluice_engine_resume_memory(engine_, SLUICE_MEMORY_KV_CACHE), SLUICE_OK);
  EXPECT_EQ(submit(), SLUICE_BUSY) << "the updated tensor has not come again";
  EXPECT_NE(std::string(sluice_last_error()).find(kNorm), std::string::npos) << sluice_last_error();
  ASSERT_EQ(update({norm.halved().view()}), SLUICE_OK);
  EXPECT_EQ(answer(), updated);
  ASSERT_EQ(update({norm.view()}), SLUICE_OK);
  EXPECT_EQ(answer(), fresh);
}

}  // namespace
