// SPDX-License-Identifier: Apache-2.0
// Running a model over golden inputs: whole sequences, in chunks, or token by token; and what the run looked like
// inside.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>

#include "base/bf16.h"
#include "model/batch.h"
#include "model/models.h"
#include "tests/support/golden.h"

namespace sluice::model {

inline ThreadPool& test_pool() {
  static ThreadPool pool(2);
  return pool;
}
inline Context test_context() { return Context{test_pool()}; }

inline std::unique_ptr<Model> load(const std::string& folder, DType dtype, const std::string& quantization = "") {
  Context ctx = test_context();
  LoadOptions o;
  o.path = folder;
  o.dtype = dtype;
  o.quantization = quantization;
  return load_model(ctx, o);
}

inline std::vector<float> to_floats(ops::ConstMatrix m) {
  std::vector<float> out;
  for (int64_t r = 0; r < m.rows; ++r)
    for (int64_t c = 0; c < m.cols; ++c)
      out.push_back(m.dtype == DType::f32 ? static_cast<const float*>(m.row(r))[c]
                                          : bf16_to_float(static_cast<const uint16_t*>(m.row(r))[c]));
  return out;
}

struct Recorder : Observer {
  struct Moe {
    std::vector<float> input, logits, weights, routed, output;
    std::vector<int32_t> ids;
  };
  std::map<int, std::vector<float>> layers;  // appended over calls
  std::map<int, Moe> moe_layers;

  void layer(int index, ops::ConstMatrix hidden) override {
    const std::vector<float> v = to_floats(hidden);
    layers[index].insert(layers[index].end(), v.begin(), v.end());
  }
  void moe(const MoeView& view) override {
    Moe& m = moe_layers[view.layer];
    const auto append = [](auto& to, const auto& from) { to.insert(to.end(), from.begin(), from.end()); };
    append(m.input, to_floats(view.input));
    append(m.logits, to_floats(view.router_logits));
    append(m.ids, view.ids);
    append(m.weights, view.weights);
    append(m.routed, to_floats(view.routed));
    append(m.output, to_floats(view.output));
  }
};

// A model with one or more sequences in a cache of its own. Blocks are dealt out in a scrambled order.
class TestRunner {
 public:
  explicit TestRunner(const Model& model, int slots = 1, int64_t block_size = 16, int64_t max_tokens = 640,
                      int64_t draft_rows = 0)
      : model_(model),
        ctx_(test_context()),
        ops_(ops::make_ops(ctx_)),
        config_{(max_tokens + block_size - 1) / block_size * slots, block_size, slots, draft_rows},
        cache_(ctx_.device(), model.cache_shape(), config_),
        states_(slots, config_.versions()),
        batch_(ctx_.device(), model.cache_shape(), config_,
               {max_tokens * slots, slots, config_.blocks, model.info().vocab, model.info().max_positions}) {
    const int64_t per_slot = config_.blocks / slots;
    for (int s = 0; s < slots; ++s) {
      std::vector<int32_t> blocks;
      for (int64_t i = 0; i < per_slot; ++i) blocks.push_back(static_cast<int32_t>((per_slot - 1 - i) * slots + s));
      blocks_.push_back(blocks);
    }
  }

  struct Part {
    int slot = 0;
    std::vector<int32_t> tokens;
    int64_t context = 0;
    bool drafts = false;
  };
  // Logits [rows of all parts, V]; poisoned before.
  std::vector<float> forward(const std::vector<Part>& parts, Observer* observer = nullptr) {
    return run(parts, nullptr, observer);
  }
  std::vector<float> draft(const std::vector<Part>& parts, const Tensor& hidden) {
    return run(parts, &hidden, nullptr);
  }
  // D [rows, hidden] of the last call.
  const Tensor& hidden() const { return hidden_; }
  void commit(int slot, int64_t accepted) { states_.commit(slot, accepted); }
  ops::Workspace& workspace() { return ops_->workspace(); }

 private:
  static ops::Matrix view(Tensor& t) { return {t.address(), t.dtype(), t.dim(0), t.dim(1), t.dim(1)}; }

  std::vector<float> run(const std::vector<Part>& parts, const Tensor* draft_hidden, Observer* observer) {
    batch_.clear();
    for (const Part& p : parts)
      batch_.add({p.slot, p.tokens, p.context, blocks_[static_cast<size_t>(p.slot)],
                  static_cast<int64_t>(p.tokens.size()), p.drafts},
                 states_);
    const ModelInfo& info = model_.info();
    Tensor logits(DType::f32, {batch_.rows(), info.vocab}), hidden(info.dtype, {batch_.rows(), info.hidden});
    std::fill_n(logits.as<float>(), logits.elements(), NAN);
    const Batch& batch = batch_.upload(ctx_.queue);
    const Outputs out{view(logits), view(hidden), observer};
    if (draft_hidden != nullptr) {
      Tensor input = *draft_hidden;
      model_.draft(*ops_, batch, view(input), cache_, out);
    } else {
      model_.forward(*ops_, batch, cache_, out);
    }
    hidden_ = hidden;
    return {logits.as<float>(), logits.as<float>() + logits.elements()};
  }

  const Model& model_;
  Context ctx_;
  std::unique_ptr<ops::Ops> ops_;
  CacheConfig config_;
  Cache cache_;
  StateTable states_;
  BatchBuilder batch_;
  std::vector<std::vector<int32_t>> blocks_;
  Tensor hidden_;
};

// Every element within absolute + relative * |expected|; prints the largest difference.
inline void expect_close(const std::vector<float>& actual, const std::vector<float>& expected, double absolute,
                         double relative, const std::string& what) {
  ASSERT_EQ(actual.size(), expected.size()) << what;
  double worst = 0;
  int failures = 0;
  for (size_t i = 0; i < actual.size(); ++i) {
    const double d = std::abs(static_cast<double>(actual[i]) - expected[i]);
    if (!(d <= absolute + relative * std::abs(expected[i])) && ++failures <= 3)
      ADD_FAILURE() << what << "[" << i << "] is " << actual[i] << ", expected " << expected[i];
    worst = std::max(worst, d);
  }
  EXPECT_EQ(failures, 0) << what;
  testing::Test::RecordProperty(what, std::to_string(worst));
  std::printf("    %-20s max |difference| %.2e\n", what.c_str(), worst);
}

inline int32_t argmax(const float* row, int64_t n) {
  return static_cast<int32_t>(std::max_element(row, row + n) - row);
}

template <class T>
std::vector<T> part(const std::vector<T>& all, size_t begin, size_t count) {
  return {all.begin() + static_cast<std::ptrdiff_t>(begin), all.begin() + static_cast<std::ptrdiff_t>(begin + count)};
}

}  // namespace sluice::model
