// SPDX-License-Identifier: Apache-2.0
#include "model/decoder.h"

#include <algorithm>

namespace sluice::model {

namespace {
int64_t weight_bytes(const std::vector<Sublayer>& sublayers) {
  int64_t n = 0;
  for (const Sublayer& s : sublayers)
    n += s.norm.weight.bytes() + std::visit([](const auto& mixer) { return mixer.weight_bytes(); }, s.mixer);
  return n;
}
}  // namespace

Decoder::Decoder(Parts parts) : parts_(std::move(parts)) {
  ModelInfo& info = parts_.info;
  info.vocab = parts_.embedding.dim(0);
  info.hidden = parts_.embedding.dim(1);
  info.has_draft = parts_.draft.has_value();
  cache_shape_.dtype = info.kv_dtype;
  number_layers(parts_.sublayers);
  info.embedding_bytes = parts_.embedding.bytes();
  info.weight_bytes = info.embedding_bytes + weight_bytes(parts_.sublayers);
  info.weight_bytes += parts_.head.weight_bytes();
  for (const Sublayer& s : parts_.sublayers)
    if (const auto* m = std::get_if<MoeBlock>(&s.mixer)) {
      if (info.experts.empty()) info.experts = to_string(m->experts->spec());
      info.expert_bytes += m->experts->weight_bytes();
      info.row_invariant = info.row_invariant && m->experts->row_invariant();
    }
  if (!parts_.draft) return;
  number_layers(parts_.draft->sublayers);
  info.weight_bytes += weight_bytes(parts_.draft->sublayers) + parts_.draft->projection.weight_bytes();
}

void Decoder::number_layers(std::vector<Sublayer>& sublayers) {
  int64_t blocks = 0;
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
    } else if (auto* e = std::get_if<MoeBlock>(&s.mixer)) {
      e->number = blocks++;
    }
  }
}

namespace {
// Of all expert layers at once: a launch in each would be a part of what the benchmark measures.
ops::Matrix random_logits(const ForwardContext& forward, const std::vector<Sublayer>& sublayers) {
  const MoeBlock* last = nullptr;
  for (const Sublayer& s : sublayers)
    if (const auto* m = std::get_if<MoeBlock>(&s.mixer)) last = m;
  if (last == nullptr || !last->random_routing) return {};
  const ops::Matrix logits =
      forward.ops.workspace().matrix(last->router_floats ? DType::f32 : forward.dtype,
                                     (last->number + 1) * forward.rows(), last->experts->spec().experts);
  forward.ops.random_logits(forward.batch.positions, forward.rows(), logits);
  return logits;
}
}  // namespace

ForwardContext Decoder::begin(ops::Ops& ops, const Batch& batch, Cache& cache, const std::vector<Sublayer>& sublayers,
                              Observer* observer) const {
  ForwardContext forward{ops, batch, cache, parts_.info.dtype, {}, observer, parts_.info.row_invariant, {}};
  forward.random_logits = random_logits(forward, sublayers);
  const auto half = static_cast<int64_t>(parts_.rope.inv_freq.size());
  if (half == 0) return forward;
  auto* cosine = ops.workspace().take<float>(batch.rows * half);
  auto* sine = ops.workspace().take<float>(batch.rows * half);
  ops.rope_angles(parts_.rope, batch.positions, batch.rows, forward.dtype, cosine, sine);
  forward.angles = {cosine, sine, half};
  return forward;
}

namespace {
bool has_shared_experts(const Sublayer& s) {
  const auto* m = std::get_if<MoeBlock>(&s.mixer);
  return m != nullptr && m->shared;
}

// Experts whose results the norm of the next sublayer adds up. An observer wants each change by itself, and after the
// last sublayer comes no such norm.
bool sum_waits(const ForwardContext& forward, const std::vector<Sublayer>& sublayers, const Sublayer& s) {
  const auto* m = std::get_if<MoeBlock>(&s.mixer);
  return m != nullptr && &s != &sublayers.back() && forward.observer == nullptr && m->sum_can_wait(forward.rows());
}

// Enough for each of those.
MoeBlock::Unsummed unsummed_memory(const ForwardContext& forward, const std::vector<Sublayer>& sublayers,
                                   int64_t hidden) {
  int64_t top_k = 0;
  for (const Sublayer& s : sublayers)
    if (sum_waits(forward, sublayers, s))
      top_k = std::max<int64_t>(top_k, std::get<MoeBlock>(s.mixer).experts->spec().top_k);
  if (top_k == 0) return {};
  ops::Workspace& workspace = forward.ops.workspace();
  const int64_t rows = forward.rows() * top_k;
  return {workspace.matrix(forward.dtype, rows, hidden), workspace.take<float>(rows)};
}

// The experts of a sublayer if its norm may compute the router's product as well. Calibration observes what routers
// read.
const MoeBlock* multiplied_router(const ForwardContext& forward, const Sublayer& s) {
  const auto* m = std::get_if<MoeBlock>(&s.mixer);
  return m != nullptr && forward.observer == nullptr && m->router.linear() != nullptr ? m : nullptr;
}
}  // namespace

// A mixer's change is added to the residual stream together with the norm that follows it, which may add up the results
// of experts for that, and also rounds its rows for the mixer's first product where that takes them so.
void Decoder::run_sublayers(const ForwardContext& forward, const std::vector<Sublayer>& sublayers,
                            ops::Matrix x) const {
  const ops::Matrix normed = forward.matrix(x.cols), one = forward.matrix(x.cols);
  const bool shared = std::any_of(sublayers.begin(), sublayers.end(), has_shared_experts);
  const ops::Matrix two = shared ? forward.matrix(x.cols) : ops::Matrix{};
  const MoeBlock::Unsummed unsummed = unsummed_memory(forward, sublayers, x.cols);
  std::optional<ops::Change> change;  // that is not in x yet
  const auto add_change = [&] {
    if (change->second.data != nullptr) forward.ops.add(one, two);
    forward.ops.add(x, one);
    change.reset();
  };
  int layer = 0;
  for (const Sublayer& s : sublayers) {
    ops::Workspace::Scope scope(forward.ops.workspace());
    const ops::Rounding rounding = std::visit([&](const auto& mixer) { return mixer.rounding(x.rows); }, s.mixer);
    const ops::RoundedRows rounded = forward.ops.workspace().rounded_rows(rounding, x.rows, x.cols);
    const MoeBlock* experts = multiplied_router(forward, s);
    ops::Matrix logits;
    if (change && experts != nullptr) {
      logits = experts->logits(forward);
      forward.ops.add_rms_norm_multiply(x, *change, s.norm, normed, rounded, {experts->router.linear(), logits});
    } else if (change) {
      forward.ops.add_rms_norm(x, *change, s.norm, normed, rounded);
    } else {
      forward.ops.rms_norm(x, s.norm, normed, rounded);
    }
    const ops::LinearInput input(normed, rounded);
    change = std::visit(
        [&](const auto& mixer) -> ops::Change {
          if constexpr (std::is_same_v<decltype(mixer), const MoeBlock&>) {
            return mixer.run(forward, input, logits, one, two,
                             sum_waits(forward, sublayers, s) ? unsummed : MoeBlock::Unsummed());
          } else {
            mixer.run(forward, input, one);
            return one;
          }
        },
        s.mixer);
    if (!s.ends_layer || forward.observer == nullptr) continue;
    add_change();
    forward.observer->layer(++layer, x);
  }
  if (change) add_change();
}

void Decoder::finish(const ForwardContext& forward, ops::ConstMatrix x, const ops::RmsNorm& norm, const Dense& head,
                     const Outputs& out) const {
  if (out.hidden.data != nullptr) forward.ops.rms_norm(x, norm, out.hidden);
  const int64_t wanted = forward.batch.logit_rows;
  if (out.logits.data == nullptr || wanted == 0) return;
  const ops::Matrix rows = forward.ops.workspace().matrix(x.dtype, wanted, x.cols);
  forward.ops.gather_rows(x, forward.batch.logits_of, rows);
  forward.ops.rms_norm(rows, norm, rows);
  head.run(forward, rows, out.logits);
}

void Decoder::forward(ops::Ops& ops, const Batch& batch, Cache& cache, const Outputs& out) const {
  ops::Workspace::Scope scope(ops.workspace());
  const ForwardContext forward = begin(ops, batch, cache, parts_.sublayers, out.observer);
  const ops::Matrix x = forward.matrix(parts_.info.hidden);
  ops.embed(batch.tokens, parts_.embedding, x);
  if (out.observer != nullptr) out.observer->layer(0, x);
  run_sublayers(forward, parts_.sublayers, x);
  finish(forward, x, parts_.final_norm, parts_.head, out);
}

void Decoder::draft(ops::Ops& ops, const Batch& batch, ops::ConstMatrix hidden, Cache& cache,
                    const Outputs& out) const {
  if (!parts_.draft) return Model::draft(ops, batch, hidden, cache, out);
  const DraftHead& draft = *parts_.draft;
  ops::Workspace::Scope scope(ops.workspace());
  const ForwardContext forward = begin(ops, batch, cache, draft.sublayers, out.observer);
  const int64_t n = parts_.info.hidden;
  const ops::Matrix pair = forward.matrix(2 * n), x = forward.matrix(n);
  const ops::Matrix embedded = pair.columns(0, n);
  ops.embed(batch.tokens, draft.embedding, embedded);
  ops.rms_norm(embedded, draft.embedding_norm, embedded);
  ops.rms_norm(hidden, draft.hidden_norm, pair.columns(n, n));
  draft.projection.run(forward, pair, x);
  run_sublayers(forward, draft.sublayers, x);
  finish(forward, x, draft.final_norm, draft.head, out);
}

}  // namespace sluice::model
