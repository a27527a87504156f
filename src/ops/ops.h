// SPDX-License-Identifier: Apache-2.0
// Every operation of a model and of sampling, beside matrix products (linear.h) and experts (moe/backend.h): one class,
// one implementation per device. tests/ops checks each function on each device against its definition in double.
//
// D is the run's type, bfloat16 or float32. Operations read D, compute in float32, and round where the formula says
// D(...). Pages of grouped-query attention are of D or e4m3. Matrices, tables and batches lie in the memory of the
// device; work is enqueued on the queue of the Context that the object was made with. A row of a result depends on its
// own rows of the inputs alone, bit for bit.
#pragma once

#include <memory>
#include <span>
#include <utility>

#include "device/context.h"
#include "ops/batch.h"
#include "ops/linear.h"
#include "ops/mamba.h"
#include "ops/matrix.h"
#include "ops/mla.h"
#include "ops/pages.h"
#include "ops/rope.h"
#include "ops/workspace.h"
#include "sampling/choose.h"
#include "tensor/tensor.h"

namespace sluice::ops {

// Weight of a root-mean-square norm, float32 [n]; empty: no norm.
struct RmsNorm {
  Tensor weight;
  float eps = 1e-6f;
  explicit operator bool() const { return !weight.empty(); }
};

// The results of a layer's experts before they are added up. Row r of the sum is D(sum over k of weight[r, k] *
// result[r, k]), k ascending, in float32 with fused multiply-adds; rows from *num_rows on are zeros.
struct ExpertResults {
  const void* results = nullptr;      // D [R, top_k, cols], aligned to 16 bytes; null: none
  const float* weights = nullptr;     // [R, top_k]; null: 1
  const int32_t* num_rows = nullptr;  // [1], as Batch::num_rows: nothing in a step writes it; null: R
  int64_t top_k = 0;                  // at most 64 on a GPU
};

// What is added to the residual stream: D(first + second), or first alone where second.data is null. `first` may be a
// sum that has not been computed yet.
struct Change {
  ConstMatrix first, second;
  ExpertResults experts;  // where it has results, their sum is `first`
  Change(ConstMatrix one, ConstMatrix two = {}) : first(one), second(two) {}
  Change(Matrix one) : first(one) {}
  Change(const ExpertResults& one, ConstMatrix two) : second(two), experts(one) {}
};

// A product of the rows that a norm gives, which may be computed with it: z [rows, outputs] = y W^T.
struct NormProduct {
  const Linear* linear = nullptr;
  Matrix z;
};

// cos and sin of the batch's positions, each float32 [rows, half], rounded to D as Hugging Face's are.
struct RopeAngles {
  const float *cosine = nullptr, *sine = nullptr;
  int64_t half = 0;  // pairs per head; 0: no rotary embedding
};

// What turns the projected q | k | v of grouped-query attention into queries and pages.
struct QkvLayout {
  // Columns: heads * head_dim | kv_heads * head_dim twice. head_dim is at most 1024 on a GPU, as the width that latent
  // attention caches is.
  int64_t heads = 0, kv_heads = 0, head_dim = 0;
  RmsNorm q_norm, k_norm;  // over each head; empty: none
  bool rotary = false;     // halves layout over the whole head
};

struct AttentionOptions {
  float scale = 1;  // of the scores
  // A row's bits depend on its position, its query and the sequence's pages alone. False: they may depend on how many
  // new rows its sequence has in the batch as well, and probabilities may be rounded to bfloat16 where the pages are
  // (docs/numerics.md, "Attention"). Always true on the CPU.
  bool row_invariant = true;
};

// What state_scan takes beside its rows: f32 [heads] each.
struct StateScanOptions {
  const Tensor &dt_bias, &a, &skip;
  // A row's bits depend on its own sequence up to it alone. False: they may depend on how many new rows its sequence
  // has in the batch and which of them store states, and products may be those of two bfloat16 parts of a float32
  // value (docs/numerics.md, "Mamba-2"). Always true on the CPU.
  bool row_invariant = true;
};

class Ops {
 public:
  explicit Ops(Context& ctx) : ctx_(ctx), workspace_(ctx.device()) {}
  virtual ~Ops() = default;
  Ops(const Ops&) = delete;
  Ops& operator=(const Ops&) = delete;

  Context& ctx() const { return ctx_; }
  // Scratch memory of the device, for callers and for the operations themselves.
  Workspace& workspace() { return workspace_; }

  // --- rows -----------------------------------------------------------------------------------------------------
  // y[r] = D(table[ids[r]]); ids [y.rows] on the device, checked by the host before; table bf16 or f32 [V, cols].
  virtual void embed(const int32_t* ids, const Tensor& table, Matrix y) = 0;
  // y[i] = x[rows[i]], i in [0, y.rows); rows on the device.
  virtual void gather_rows(ConstMatrix x, const int32_t* rows, Matrix y) = 0;
  // y = x, of one type.
  virtual void copy(ConstMatrix x, Matrix y) = 0;
  // x = D(x + y)
  virtual void add(Matrix x, ConstMatrix y) = 0;
  // gate = D(D(silu(gate)) * up): SiLU-gated MLP, rounded where the separate tensor operations round.
  virtual void silu_multiply(Matrix gate, ConstMatrix up) = 0;
  // x = D(D(max(x, 0))^2)
  virtual void relu_squared(Matrix x) = 0;

  // The largest |x|; NaN if there is one. Waits for the result.
  virtual float amax(ConstMatrix x) = 0;

  // --- norms ----------------------------------------------------------------------------------------------------
  // y[r] = D(weight * D(x[r] * rsqrt(mean(x[r]^2) + eps))): Hugging Face rounds before the weight as well as after.
  // y may be x. `rounded`, unless plain, becomes the codes and scales of y, bit for bit those that a product would make
  // of it (linear.h). On a GPU rows are then whole eights of columns, aligned to 16 bytes.
  virtual void rms_norm(ConstMatrix x, const RmsNorm& norm, Matrix y, const RoundedRows& rounded = {}) = 0;
  // x = D(x + change), then y = rms_norm(x): the residual stream's two steps between mixers.
  virtual void add_rms_norm(Matrix x, const Change& change, const RmsNorm& norm, Matrix y,
                            const RoundedRows& rounded = {}) = 0;
  // add_rms_norm(), then the product. On a GPU one launch where rows are few and the matrix is a small one of bfloat16.
  virtual void add_rms_norm_multiply(Matrix x, const Change& change, const RmsNorm& norm, Matrix y,
                                     const RoundedRows& rounded, const NormProduct& product);
  // x float32 [rows, cols]; gate D. v = x * silu(gate); each group of cols / groups values is normalised by itself;
  // y = D(v * rsqrt(mean + eps) * weight). Everything before the last rounding in float32.
  virtual void gated_group_rms_norm(ConstMatrix x, ConstMatrix gate, int64_t groups, const RmsNorm& norm, Matrix y) = 0;

  // --- attention ------------------------------------------------------------------------------------------------
  // cosine and sine [rows, pairs] of the positions, multiplied by the frequencies' attention factor, rounded to
  // `dtype`.
  virtual void rope_angles(const RopeFrequencies& f, const int32_t* positions, int64_t rows, DType dtype, float* cosine,
                           float* sine) = 0;
  // qkv D [rows, (heads + 2 kv_heads) * head_dim]: norms the heads of q and k, rotates them, and stores k and v, which
  // are of D, in the pages at Batch::kv_slots. q stays in its columns; what those of k hold afterwards is not
  // specified.
  virtual void norm_rope_store(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                               const Pages& keys, const Pages& values) = 0;
  // Causal attention over paged keys and values; the new rows' own are in the pages already. q [rows, heads *
  // keys.width]; heads is a multiple of keys.heads, query head h reads key head h / (heads / keys.heads). out [rows,
  // heads * value_width]. Row r of a sequence sees the positions [0, context + r]. values.data null: the values are the
  // first value_width columns of the keys (latent attention in its absorbed form). q and out are of one type: D, or
  // float32 or absorbed_type() in the absorbed form. Codes of e4m3 pages are widened exactly; the keys' scale
  // multiplies the scores, the values' scale the weighted sum. float32 throughout, online softmax in tiles at fixed
  // positions; out is rounded once to its type. Where options.row_invariant is false a GPU may round probabilities to
  // bfloat16, and see absorbed_type().
  virtual void attention(const Batch& batch, ConstMatrix q, const Pages& keys, const Pages& values, int64_t value_width,
                         const AttentionOptions& options, Matrix out) = 0;

  // norm_rope_store(), then attention() over the pages with the queries of qkv, bit for bit. A GPU does both in one
  // kernel where every sequence has one new row and they are not too many. What qkv holds afterwards is not specified.
  virtual void norm_rope_attention(const Batch& batch, const QkvLayout& layout, const RopeAngles& angles, Matrix qkv,
                                   const Pages& keys, const Pages& values, const AttentionOptions& options, Matrix out);

  // --- latent attention (DeepSeek) ------------------------------------------------------------------------------
  // latent D [rows, latent + rope]: norms the latent part, rotates the rest and the last `rope` columns of each head of
  // q D [rows, heads * (nope + rope)], and stores the latent row in the pages. What `latent` holds afterwards is not
  // specified.
  virtual void mla_norm_rope_store(const Batch& batch, const MlaShape& shape, RopeLayout layout,
                                   const RopeAngles& angles, const RmsNorm& norm, Matrix q, Matrix latent,
                                   const Pages& keys) = 0;
  // The key half of kv_b moves to the query, the value half to the output:
  //   q . (Wk latent) = (q Wk) . latent,   sum p (Wv latent) = Wv (sum p latent).
  // kv_b bf16 or f32 [heads * (nope + value), latent], for each head `nope` key rows, then `value` rows.
  // q D [rows, heads * (nope + rope)], rotated -> out A(...) [rows, heads * (latent + rope)]: [q Wk | rotary part].
  // A is float32, or absorbed_type().
  virtual void mla_absorb(const MlaShape& shape, const Tensor& kv_b, ConstMatrix q, Matrix out) = 0;
  // What attention takes absorbed queries and gives its results in where it is fastest, for a model that runs in
  // `dtype`: float32 on the CPU. In bfloat16 a GPU rounds probabilities to bfloat16, whatever
  // AttentionOptions::row_invariant says, and the results of pieces of a long sequence where that is false.
  virtual DType absorbed_type(const MlaShape& shape, DType dtype) const = 0;
  // mixed A [rows, heads * latent] -> out D [rows, heads * value].
  virtual void mla_expand(const MlaShape& shape, const Tensor& kv_b, ConstMatrix mixed, Matrix out) = 0;
  // Latent attention whole: q as above -> out D [rows, heads * value]. The three functions before, with absorbed_type()
  // between them. Where options.row_invariant is false a GPU may compute prompts (kPromptRows) from the keys and values
  // that kv_b makes of the latent rows, both rounded to bfloat16; whether it does depends on all prompts of the batch.
  virtual void mla_attention(const Batch& batch, const MlaShape& shape, const Tensor& kv_b, ConstMatrix q,
                             const Pages& keys, const AttentionOptions& options, Matrix out);

  // --- Mamba-2 --------------------------------------------------------------------------------------------------
  // xbc D [rows, channels] -> out f32 or conv_type(D) [rows, channels], the values of D(silu(D(sum_t weight[t] * x[row
  // - taps + 1 + t] + bias))). weight f32 [taps, channels], last tap the newest; bias f32 [channels] or empty. State:
  // the last taps - 1 input rows, f32 [taps - 1, channels].
  virtual void causal_conv(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, const Tensor& weight,
                           const Tensor& bias, const States& states, Matrix out) = 0;
  // What causal_conv gives and state_scan takes where they are fastest, for a model that runs in `dtype`: float32 on
  // the CPU, D on a GPU.
  virtual DType conv_type(DType dtype) const = 0;
  // For each head h, with g = h / (heads / groups), in float32:
  //   dt' = softplus(dt + dt_bias[h]);  S = exp(dt' a[h]) S + (dt' x) outer B_g;  y = S C_g + skip[h] x.
  // xbc f32 or conv_type(D) [rows, channels]; dt D [rows, heads]; dt_bias, a = -exp(A_log) and skip (D) f32 [heads]; y
  // f32 [rows, inner]. State: f32 [heads, state, head_dim]. time_step_limit is (0, infinity) in every published
  // configuration and not applied.
  virtual void state_scan(const Batch& batch, const MambaShape& shape, ConstMatrix xbc, ConstMatrix dt,
                          const StateScanOptions& options, const States& states, Matrix y) = 0;
  // state[to] = state[from] for each pair (from, to) of places, in any order: every `to` is named once, and is no
  // pair's `from`.
  virtual void copy_states(const States& states, std::span<const std::pair<int32_t, int32_t>> places) = 0;

  // --- experts --------------------------------------------------------------------------------------------------
  // For benchmarks: logits [layers * rows, E], a layer after the other, that choose every expert as often; those of a
  // row follow from its layer, its number in the layer and positions[rows] alone (routing/random_logits.h).
  virtual void random_logits(const int32_t* positions, int64_t rows, Matrix logits) = 0;

  // --- the head -------------------------------------------------------------------------------------------------
  // For each row: edits its logits (float32 [.., V]; they are changed), then chooses a token: sampling/choose.h is the
  // definition. Log probabilities, where wanted, are those of the logits as they came. Waits for the result.
  virtual void sample(Matrix logits, const sampling::SampleBatch& batch, std::span<sampling::Sampled> out) = 0;
  // sample() in two halves: the first one enqueues, the second one waits for the results. A second batch may be begun
  // before the results of the first are taken; they come in the order of the batches.
  virtual void begin_sample(Matrix logits, const sampling::SampleBatch& batch) = 0;
  virtual void end_sample(std::span<sampling::Sampled> out) = 0;
  // Each negative id of ids [count], on the device, becomes the token that row ~id of the batch that was begun last
  // chooses; 0 where that has none to choose. So a step can be enqueued before the host knows its tokens.
  virtual void take_sampled(int32_t* ids, int64_t count) = 0;
  // to[i] = from[i] for the pieces, of which the first is then treated as take_sampled() treats ids. One operation,
  // where a copy of integers and take_sampled() are two that wait for each other: it reads the host's memory in place,
  // which must stay as it is until the event that is returned. Recorded work follows, which begins when all of this has
  // ended: other operations may read a batch (batch.h) before.
  virtual std::shared_ptr<Event> move_batch(const BatchMove& move) = 0;
  // out[i] = ln softmax(logits[i])[ids[i]], in double; NaN when the row holds one. Waits for the result.
  virtual void log_likelihoods(ConstMatrix logits, std::span<const int32_t> ids, std::span<double> out) = 0;

 private:
  Context& ctx_;
  Workspace workspace_;
};

// What a loader and a scheduler ask of a device's operations.
struct OpsTraits {
  // A row's result is the same, bit for bit, whatever else is in the batch, even without
  // LinearOptions::deterministic. Elsewhere the order of a product's sums may follow the number of rows.
  bool row_invariant = true;
  // Prompt tokens of a step where nobody says how many. A GPU reads the weights of all experts for 512 tokens as for
  // 8192: those of Qwen3-30B-A3B take 4 times as long for 8192 tokens in pieces of 512 (bench/results/moe_h200.md).
  int64_t prompt_rows = 512;
};
OpsTraits traits_of(DeviceId device);  // throws as make_ops() does

// The operations on ctx.device(). `ctx` must live longer. Throws unsupported, with the reason, for a device that this
// build has no operations for.
std::unique_ptr<Ops> make_ops(Context& ctx);

}  // namespace sluice::ops
