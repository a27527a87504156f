// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <cstring>

#include "ops/elementwise.h"

namespace sluice::model {

namespace {
int64_t weight_bytes(const std::vector<Sublayer>& sublayers) {
  int64_t n = 0;
  for (const Sublayer& s : sublayers)
    n += s.norm.weight.bytes() + std::visit([](const auto& mixer) { return mixer.weight_bytes(); }, s.mixer);
  return n;
}

ops::ConstMatrix view(const Tensor& table) {
  return {table.data(), table.dtype(), table.dim(0), table.dim(1), table.dim(1)};
}
}  // namespace

Decoder::Decoder(Parts parts) : parts_(std::move(parts)) {
  ModelInfo& info = parts_.info;
  info.vocab = parts_.embedding.dim(0);
  info.hidden = parts_.embedding.dim(1);
  info.has_draft = parts_.draft.has_value();
  cache_shape_.dtype = info.dtype;
  number_cache_layers(parts_.sublayers);
  info.weight_bytes = parts_.embedding.bytes() + weight_bytes(parts_.sublayers);
  info.weight_bytes += parts_.head.weight_bytes();
  for (const Sublayer& s : parts_.sublayers)
    if (const auto* m = std::get_if<MoeLayer>(&s.mixer); m != nullptr && info.experts.empty())
      info.experts = to_string(m->experts->spec());
  if (!parts_.draft) return;
  number_cache_layers(parts_.draft->sublayers);
  info.weight_bytes += weight_bytes(parts_.draft->sublayers) + parts_.draft->projection.weight_bytes();
}

void Decoder::number_cache_layers(std::vector<Sublayer>& sublayers) {
  for (Sublayer& s : sublayers) {
    if (auto* a = std::get_if<AttentionLayer>(&s.mixer)) {
      a->cache_layer = cache_shape_.attention.size();
      cache_shape_.attention.push_back(a->cache());
    } else if (auto* l = std::get_if<MlaLayer>(&s.mixer)) {
      l->cache_layer = cache_shape_.attention.size();
      cache_shape_.attention.push_back(l->cache());
    } else if (auto* m = std::get_if<MambaLayer>(&s.mixer)) {
      m->cache_layer = cache_shape_.mamba.size();
      cache_shape_.mamba.push_back(m->shape);
    }
  }
}

void Decoder::verify(const Batch& batch, const Cache& cache) const {
  check(batch.positions.size() == batch.tokens.size(), "a batch has {} tokens but {} positions", batch.tokens.size(),
        batch.positions.size());
  cache.verify(batch.sequences);
  int64_t rows = 0;
  for (const Sequence& s : batch.sequences) {
    check(s.first_row == rows, "a sequence begins at row {} of the batch; the one before it ends at {}", s.first_row,
          rows);
    rows += s.rows;
    check(s.context + s.rows <= parts_.info.max_positions,
          "a sequence of {} tokens is longer than the model's {} positions", s.context + s.rows,
          parts_.info.max_positions);
  }
  check(rows == batch.rows(), "the batch's sequences have {} rows, its tokens {}", rows, batch.rows());
  for (const int32_t r : batch.logit_rows)
    check(r >= 0 && r < batch.rows(), "logits are wanted of row {} of a batch of {} rows", r, batch.rows());
}

void Decoder::angles(Step& step) const {
  const auto half = static_cast<int64_t>(parts_.rope.inv_freq.size());
  if (half == 0) return;
  float* cosine = step.workspace.take<float>(step.rows() * half);
  float* sine = step.workspace.take<float>(step.rows() * half);
  ops::rope_angles(parts_.rope, step.batch.positions, step.dtype, cosine, sine);
  step.cosine = cosine;
  step.sine = sine;
}

void Decoder::run_sublayers(const Step& step, const std::vector<Sublayer>& sublayers, ops::Matrix x) const {
  const ops::Matrix normed = step.matrix(x.cols), change = step.matrix(x.cols);
  int layer = 0;
  for (const Sublayer& s : sublayers) {
    s.norm.run(step, x, normed);
    std::visit([&](const auto& mixer) { mixer.run(step, normed, change); }, s.mixer);
    ops::add_to(step.ctx, x, change);
    if (s.ends_layer && step.observer != nullptr) step.observer->layer(++layer, x);
  }
}

void Decoder::finish(const Step& step, ops::ConstMatrix x, const Norm& norm, const Dense& head,
                     const Outputs& out) const {
  const auto wanted = static_cast<int64_t>(step.batch.logit_rows.size());
  const auto row_bytes = static_cast<size_t>(x.cols * bytes_of(x.dtype));
  if (out.hidden != nullptr) norm.run(step, x, {out.hidden, x.dtype, x.rows, x.cols, x.cols});
  if (out.logits == nullptr || wanted == 0) return;
  const ops::Matrix rows = step.workspace.matrix(x.dtype, wanted, x.cols);
  for (int64_t i = 0; i < wanted; ++i)
    std::memcpy(rows.row(i), x.row(step.batch.logit_rows[static_cast<size_t>(i)]), row_bytes);
  norm.run(step, rows, rows);
  head.run(step, rows, {out.logits, DType::f32, wanted, head.rows(), head.rows()});
}

void Decoder::forward(Context& ctx, const Batch& batch, Cache& cache, ops::Workspace& workspace,
                      const Outputs& out) const {
  verify(batch, cache);
  for (const Sequence& s : batch.sequences)
    if (s.context == 0) cache.reset(s.slot);
  ops::Workspace::Scope scope(workspace);
  Step step{ctx, batch, cache, workspace, parts_.info.dtype, nullptr, nullptr, out.observer};
  angles(step);
  const ops::Matrix x = step.matrix(parts_.info.hidden);
  ops::embed(ctx, batch.tokens, view(parts_.embedding), x);
  if (out.observer != nullptr) out.observer->layer(0, x);
  run_sublayers(step, parts_.sublayers, x);
  finish(step, x, parts_.final_norm, parts_.head, out);
}

void Decoder::draft(Context& ctx, const Batch& batch, const void* hidden, Cache& cache, ops::Workspace& workspace,
                    const Outputs& out) const {
  if (!parts_.draft) return Model::draft(ctx, batch, hidden, cache, workspace, out);
  verify(batch, cache);
  const DraftHead& draft = *parts_.draft;
  ops::Workspace::Scope scope(workspace);
  Step step{ctx, batch, cache, workspace, parts_.info.dtype, nullptr, nullptr, out.observer};
  angles(step);
  const int64_t n = parts_.info.hidden;
  const ops::Matrix pair = step.matrix(2 * n), x = step.matrix(n);
  ops::embed(ctx, batch.tokens, view(draft.embedding), pair.columns(0, n));
  draft.embedding_norm.run(step, pair.columns(0, n), pair.columns(0, n));
  draft.hidden_norm.run(step, {hidden, step.dtype, step.rows(), n, n}, pair.columns(n, n));
  draft.projection.run(step, pair, x);
  run_sublayers(step, draft.sublayers, x);
  finish(step, x, draft.final_norm, draft.head, out);
}

}  // namespace sluice::model
