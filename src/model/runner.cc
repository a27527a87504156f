// SPDX-License-Identifier: Apache-2.0
#include "model/runner.h"

#include <algorithm>

#include "base/math.h"

namespace sluice::model {

namespace {
BatchLimits batch_limits(const ModelInfo& info, const RunnerConfig& c) {
  const int64_t blocks = c.sequences * ceil_div(c.sequence_tokens, c.cache.block_size);
  return {c.rows, c.sequences, blocks, info.vocab, info.max_positions};
}
}  // namespace

Runner::Runner(Context& ctx, const Model& model, const RunnerConfig& config)
    : ops_(ops::make_ops(ctx)),
      model_(&model),
      cache_(ctx.device(), model.cache_shape(), config.cache),
      states_(config.cache.slots, config.cache.versions()),
      batch_(ctx.device(), model.cache_shape(), config.cache, batch_limits(model.info(), config)) {
  const ModelInfo& info = model.info();
  if (config.recording.enabled && RecordedSteps::supported(ctx)) {
    const RecordedSteps::Limits limits{config.sequences, config.rows, 1 + config.drafts, config.sequence_tokens};
    recorded_ = std::make_unique<RecordedSteps>(*ops_, config.recording, limits);
    most_recorded_rows_ = std::min(config.rows, config.sequences * limits.rows_each);
  }
  if (config.drafts == 0) return;
  if (!info.has_draft)
    fail(ErrorCode::unsupported, "{} has no multi-token-prediction layer to draft with", info.architecture);
  hidden_ = Tensor(ctx.device(), info.dtype, {config.rows, info.hidden});
  drafter_ = std::make_unique<Drafter>(*ops_, info, model.cache_shape(), config.cache, batch_limits(info, config),
                                       config.drafts);
}

void Runner::set_model(const Model& model) {
  if (recorded_) recorded_->clear();  // also for another model at the same address
  model_ = &model;
}

void Runner::release_cache() {
  if (recorded_) recorded_->clear();
  cache_.release();
}

// Each growth costs the recordings, so it doubles as long as decoding may want as many.
void Runner::reserve_logits(int64_t rows) {
  const int64_t have = logits_.empty() ? 0 : logits_.dim(0);
  if (rows <= have) return;
  if (recorded_) {
    recorded_->clear();
    rows = std::max(rows, std::min(2 * have, most_recorded_rows_));
  }
  logits_ = Tensor();
  logits_ = Tensor(ops_->ctx().device(), DType::f32, {rows, model_->info().vocab});
}

ops::Matrix Runner::logits() {
  const int64_t vocab = model_->info().vocab;
  return {logits_.address(), DType::f32, logit_rows_, vocab, vocab};
}

void Runner::clear() { batch_.clear(); }

void Runner::run(Observer* observer) {
  const ModelInfo& info = model_->info();
  const DeviceId device = ops_->ctx().device().id();
  if (observer != nullptr && !device.shares_host_memory())
    fail(ErrorCode::unsupported, "a model on {} cannot be observed; accepted: cpu", to_string(device));
  cache_.restore();
  logit_rows_ = batch_.logit_rows();
  std::optional<StepShape> shape;
  if (recorded_ && observer == nullptr) shape = recorded_->shape_of(batch_.batch());
  if (shape) batch_.pad(shape->sequences, shape->rows(), shape->longest_context);
  reserve_logits(batch_.logit_rows());
  const Batch& batch = batch_.batch();
  Outputs out{.logits = {logits_.address(), DType::f32, batch.logit_rows, info.vocab, info.vocab},
              .hidden = {},
              .observer = observer};
  if (drafter_) out.hidden = {hidden_.address(), info.dtype, batch.rows, info.hidden, info.hidden};
  if (!shape) {
    batch_.upload(*ops_);
    return model_->forward(*ops_, batch, cache_, out);
  }
  const auto bring = [this](bool replays) { replays ? batch_.move(*ops_) : batch_.upload(*ops_); };
  recorded_->run(*shape, bring, [this, batch, out] { model_->forward(*ops_, batch, cache_, out); });
}

void Runner::log_likelihoods(std::span<const int32_t> ids, std::span<double> out) {
  ops::Matrix rows = logits();
  rows.rows = static_cast<int64_t>(ids.size());
  ops_->log_likelihoods(rows, ids, out);
}

void Runner::log_likelihoods_of(int64_t row, std::span<const int32_t> ids, std::span<double> out) {
  ops::Matrix same = logits();
  same.data = same.row(row);
  same.rows = static_cast<int64_t>(ids.size());
  same.stride = 0;
  ops_->log_likelihoods(same, ids, out);
}

void Runner::read_logits(int64_t first, int64_t rows, float* out) {
  const ops::Matrix all = logits();
  check(first >= 0 && rows >= 0 && first + rows <= all.rows, "logits of rows [{}, {}) of {} rows", first, first + rows,
        all.rows);
  Queue& queue = ops_->ctx().queue;
  queue.copy(out, all.row(first), rows * all.cols * static_cast<int64_t>(sizeof(float)));
  queue.wait();
}

void Runner::copy_state(int from, int to) {
  const std::pair<int32_t, int32_t> places{states_.place(from), states_.place(to)};
  for (size_t i = 0; i < cache_.shape().mamba.size(); ++i) {
    ops_->copy_states(cache_.conv_states(i), {&places, 1});
    ops_->copy_states(cache_.ssm_states(i), {&places, 1});
  }
}

void Runner::make_drafts(std::span<const DraftRequest> requests) {
  if (drafter_) drafter_->make(*model_, requests, cache_, states_);
}

void Runner::advance_draft_head(std::span<const Accepted> sequences) {
  if (!drafter_) return;
  const ModelInfo& info = model_->info();
  drafter_->advance(*model_, sequences, {hidden_.address(), info.dtype, hidden_.dim(0), info.hidden, info.hidden},
                    cache_, states_);
}

}  // namespace sluice::model
