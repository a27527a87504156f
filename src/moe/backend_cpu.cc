// SPDX-License-Identifier: Apache-2.0
#include "moe/backend_cpu.h"

#include <algorithm>
#include <cstring>

#include "activation/activations.h"
#include "base/math.h"
#include "format/quantize_rows.h"
#include "kernels/cpu/grouped_gemm.h"
#include "moe/check.h"
#include "routing/route.h"

namespace sluice::moe {

namespace {
using kernels::cpu::BumpAllocator;
using kernels::cpu::CpuKernel;
using kernels::cpu::GemmWorkspace;
using kernels::cpu::GroupedRows;
using kernels::cpu::Isa;
using kernels::cpu::kNTile;
using kernels::cpu::kPanelN;
using kernels::cpu::OutputTile;
using kernels::cpu::PackedRows;
using kernels::cpu::PackedWeights;
using kernels::cpu::SourceRow;

// Longer calls run in pieces of this many tokens: working memory stays bounded, and experts already get so many rows
// that reading the weights again costs less than 2 %.
constexpr int64_t kMaxTokens = 2048;

// Everything a run writes beside its output, in the caller's workspace.
struct Memory {
  int32_t* ids;                // [T, K] global; -1: contributes nothing
  float* weights;              // [T, K]
  int32_t* offsets;            // [L + 1] rows of each expert
  int32_t* cursor;             // [L]
  int32_t* row_token;          // [R] R = T * K at most
  int32_t* row_slot;           // [R] token * K + k
  int32_t* slot_row;           // [T, K]; -1: absent
  const void** finalize_rows;  // [T, K]
  float* finalize_weights;     // [T, K]
  std::byte* route_scratch;    // [workers][route_scratch]
  int64_t route_scratch_bytes;
  float* staging;  // [workers][staging_floats]
  int64_t staging_floats;
  PackedRows input;     // [T, H]
  PackedRows gathered;  // [R, H], only for kernels that want consecutive rows
  float* raw;           // [R, 2, I'], only for fp8_block_trtllm
  float* activated;     // [R, I']
  PackedRows middle;    // [R, I]
  std::byte* down;      // D [R, H]
  GemmWorkspace gemm;
};

class CpuMoeLayer final : public MoeLayer {
 public:
  // memory: of CpuBackend::prepared_bytes(spec) at least; null: the layer's own.
  CpuMoeLayer(Context& ctx, const MoeSpec& spec, const weights::ExpertWeights& w, Isa isa, void* memory)
      : spec_(spec),
        choice_(kernels::cpu::choose_cpu_kernel(isa, spec.weights, spec.inputs, spec.dtype)),
        workers_(ctx.pool.size()) {
    check_weights(spec, w);
    BumpAllocator given(memory);
    BumpAllocator* const where = memory == nullptr ? nullptr : &given;
    up_ = spec_.gated() ? PackedWeights(ctx, w.gate, &w.up, choice_.fp8_order, where)
                        : PackedWeights(ctx, w.up, nullptr, choice_.fp8_order, where);
    down_ = PackedWeights(ctx, w.down, nullptr, choice_.fp8_order, where);
    take_extras(w);
  }

  const MoeSpec& spec() const override { return spec_; }
  bool row_invariant() const override { return true; }
  int64_t weight_bytes() const override { return up_.bytes() + down_.bytes(); }
  int64_t workspace_bytes(int64_t tokens) const override {
    BumpAllocator counter(nullptr);
    lay_out(counter, std::min(tokens, kMaxTokens));
    return counter.used();
  }

  void refit(Context& ctx, const weights::ExpertWeights& w) override {
    check_weights(spec_, w);
    up_.refit(ctx, spec_.gated() ? w.gate : w.up, spec_.gated() ? &w.up : nullptr);
    down_.refit(ctx, w.down, nullptr);
    take_extras(w);
  }

  void run(Context& ctx, const MoeArgs& given) const override {
    check_args(spec_, given);
    const MoeArgs args = real_args(given);
    if (args.tokens == 0) return;
    check_workspace(args.workspace, args.workspace_size, args.tokens, workspace_bytes(args.tokens), 64);
    check(ctx.pool.size() <= workers_, "the layer was prepared for {} threads but runs on {}", workers_,
          ctx.pool.size());
    if (args.trace != nullptr) start_trace(*args.trace, args.tokens);
    for (int64_t t = 0; t < args.tokens; t += kMaxTokens)
      run_piece(ctx, args, t, std::min(kMaxTokens, args.tokens - t));
  }

 private:
  int64_t elem() const { return bytes_of(spec_.dtype); }
  int64_t padded_inter() const { return round_up<int64_t>(spec_.inter, kNTile); }
  bool bf16() const { return spec_.dtype == DType::bf16; }

  void take_extras(const weights::ExpertWeights& w) {
    input_scale1_ = w.input_scale1;
    input_scale2_ = w.input_scale2;
    bias_up_ = w.bias_up.clone();
    bias_gate_ = w.bias_gate.clone();
    bias_down_ = w.bias_down.clone();
    alpha_ = w.alpha.clone();
    beta_ = w.beta.clone();
    limit_ = w.limit.clone();
  }

  routing::Params routing_params() const {
    routing::Params p = spec_.routing_params();
    p.bf16 = bf16();
    return p;
  }

  Memory lay_out(BumpAllocator& c, int64_t tokens) const {
    const int64_t slots = tokens * spec_.top_k, locals = spec_.locals();
    Memory m{};
    m.ids = c.allocate<int32_t>(slots);
    m.weights = c.allocate<float>(slots);
    m.offsets = c.allocate<int32_t>(locals + 1);
    m.cursor = c.allocate<int32_t>(locals);
    m.row_token = c.allocate<int32_t>(slots);
    m.row_slot = c.allocate<int32_t>(slots);
    m.slot_row = c.allocate<int32_t>(slots);
    m.finalize_rows = c.allocate<const void*>(slots);
    m.finalize_weights = c.allocate<float>(slots);
    m.route_scratch_bytes = spec_.routed ? 0 : round_up<int64_t>(routing::route_scratch_bytes(routing_params()), 64);
    m.route_scratch = c.allocate<std::byte>(workers_ * m.route_scratch_bytes);
    m.staging_floats = round_up<int64_t>(std::max(up_.padded_k(), down_.padded_k()), 16);
    m.staging = c.allocate<float>(workers_ * m.staging_floats);
    m.input = allocate_packed_rows(c, choice_, tokens, spec_.hidden, up_.padded_k());
    if (choice_.contiguous_rows) m.gathered = allocate_packed_rows(c, choice_, slots, spec_.hidden, up_.padded_k());
    if (spec_.fp8_block_trtllm) m.raw = c.allocate<float>(slots * 2 * padded_inter());
    m.activated = c.allocate<float>(slots * padded_inter());
    m.middle = allocate_packed_rows(c, choice_, slots, spec_.inter, down_.padded_k());
    m.down = c.allocate<std::byte>(slots * spec_.hidden * elem());
    m.gemm = allocate_gemm_workspace(c, workers_, locals, slots);
    return m;
  }

  // Tokens [first, first + tokens) of a call.
  void run_piece(Context& ctx, const MoeArgs& args, int64_t first, int64_t tokens) const {
    BumpAllocator workspace(args.workspace);
    const Memory m = lay_out(workspace, tokens);
    route(ctx, args, m, first, tokens);
    const int64_t rows = sort_by_expert(m, tokens);
    if (rows > 0) {
      prepare_input(ctx, args, m, first, tokens, rows);
      gemm1(ctx, args, m, first);
      prepare_middle(ctx, args, m, first, rows);
      gemm2(ctx, args, m, first);
    }
    finalize(ctx, args, m, first, tokens);
  }

  void route(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first, int64_t tokens) const {
    const int64_t k = spec_.top_k;
    if (args.topk_ids != nullptr) {
      routing::Values given{args.topk_weights, args.topk_weights_dtype == DType::bf16};
      if (given) given = given.from(first * k);
      routing::read_given(args.topk_ids + first * k, given, spec_.given_scale(), tokens * k, m.ids, m.weights);
    } else {
      const routing::Params p = routing_params();
      const routing::Values logits{args.logits, args.logits_dtype == DType::bf16};
      const routing::Values bias{args.bias, args.bias_dtype == DType::bf16};
      constexpr int64_t kRun = 8;
      ctx.pool.parallel_for(ceil_div(tokens, kRun), [&](int64_t task, int worker) {
        const int64_t t = task * kRun, n = std::min(kRun, tokens - t);
        routing::route(spec_.routing, p, logits.from((first + t) * spec_.experts), bias, n, m.ids + t * k,
                       m.weights + t * k, m.route_scratch + worker * m.route_scratch_bytes);
      });
    }
    for (int64_t i = 0; i < tokens * k; ++i)
      if (m.ids[i] < 0 || m.ids[i] >= spec_.experts) m.ids[i] = -1;
    if (args.chosen_ids != nullptr) std::copy_n(m.ids, tokens * k, args.chosen_ids + first * k);
    if (args.chosen_weights != nullptr) std::copy_n(m.weights, tokens * k, args.chosen_weights + first * k);
  }

  // Counting sort of (token, slot) by local expert, stable: an expert's rows are in token order. Returns the rows.
  int64_t sort_by_expert(const Memory& m, int64_t tokens) const {
    const int64_t slots = tokens * spec_.top_k, locals = spec_.locals();
    std::fill_n(m.cursor, locals, 0);
    const auto local = [&](int64_t slot) {
      const int64_t e = m.ids[slot] < 0 ? -1 : int64_t{m.ids[slot]} - spec_.local_offset;
      return e < locals ? e : -1;
    };
    for (int64_t i = 0; i < slots; ++i)
      if (const int64_t e = local(i); e >= 0) ++m.cursor[e];
    m.offsets[0] = 0;
    for (int64_t e = 0; e < locals; ++e) {
      m.offsets[e + 1] = m.offsets[e] + m.cursor[e];
      m.cursor[e] = m.offsets[e];
    }
    for (int64_t i = 0; i < slots; ++i) {
      const int64_t e = local(i);
      m.slot_row[i] = e < 0 ? -1 : m.cursor[e]++;
      if (e < 0) continue;
      m.row_slot[m.slot_row[i]] = static_cast<int32_t>(i);
      m.row_token[m.slot_row[i]] = static_cast<int32_t>(i / spec_.top_k);
    }
    return m.offsets[locals];
  }

  void prepare_input(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first, int64_t tokens,
                     int64_t rows) const {
    const std::byte* hidden = static_cast<const std::byte*>(args.hidden) + first * spec_.hidden * elem();
    ctx.pool.parallel_for(tokens, [&](int64_t t, int worker) {
      pack_row(m.input, t, {hidden + t * spec_.hidden * elem(), spec_.dtype, false}, input_scale1_,
               m.staging + worker * m.staging_floats);
    });
    if (choice_.contiguous_rows)
      ctx.pool.parallel_for(rows, [&](int64_t r, int) { copy_packed_row(m.input, m.row_token[r], m.gathered, r); });
    if (args.trace == nullptr) return;
    for (int64_t t = 0; t < tokens; ++t) {
      float* out = args.trace->input.as<float>() + (first + t) * spec_.hidden;
      to_float(hidden + t * spec_.hidden * elem(), out, spec_.hidden);
      format::round_row(spec_.inputs, out, spec_.hidden, input_scale1_);
    }
  }

  void gemm1(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first) const {
    const bool gated = spec_.gated();
    const int64_t n_tile_cols = gated ? kPanelN : kNTile;
    const GroupedRows rows{spec_.locals(), m.offsets, choice_.contiguous_rows ? nullptr : m.row_token};
    grouped_gemm(ctx, choice_.contiguous_rows ? m.gathered : m.input, up_, rows, m.gemm, [&](const OutputTile& t) {
      const int64_t col = t.n_tile * n_tile_cols, cols = std::min(n_tile_cols, spec_.inter - col);
      for (int i = 0; i < t.m; ++i) {
        const int64_t row = t.row + i;
        float* tile = t.values + int64_t{i} * kNTile;
        float* up = gated ? tile + kPanelN : tile;
        float* gate = gated ? tile : nullptr;
        if (spec_.fp8_block_trtllm) {
          float* raw = m.raw + row * 2 * padded_inter();
          std::copy_n(up, cols, raw + col);
          if (gated) std::copy_n(gate, cols, raw + padded_inter() + col);
        } else {
          activate(args, m, first, {row, t.group, col, cols, up, gate, m.activated + row * padded_inter()});
        }
      }
    });
  }

  // `cols` columns of one row of GEMM1's results, from column `col` on.
  struct ResultPiece {
    int64_t row, expert, col, cols;
    float *up, *gate;  // [cols]; gate is null where the activation has none
    float* out;        // the whole row of activated values
  };
  // Bias, llama4's weight, activation, and the copies that a trace wants.
  void activate(const MoeArgs& args, const Memory& m, int64_t first, const ResultPiece& piece) const {
    const auto& [row, expert, col, cols, up, gate, out] = piece;
    add_bias(bias_up_, expert * spec_.inter + col, up, cols);
    if (gate != nullptr) add_bias(bias_gate_, expert * spec_.inter + col, gate, cols);
    if (spec_.weight_on_input) {
      const float weight = m.weights[m.row_slot[row]];
      for (int64_t c = 0; c < cols; ++c) up[c] *= weight;
      for (int64_t c = 0; c < cols && gate != nullptr; ++c) gate[c] *= weight;
    }
    if (args.trace != nullptr) {
      const int64_t at = (first * spec_.top_k + m.row_slot[row]) * spec_.inter + col;
      std::copy_n(up, cols, args.trace->up.as<float>() + at);
      if (gate != nullptr) std::copy_n(gate, cols, args.trace->gate.as<float>() + at);
    }
    kernels::cpu::ActivateArgs a;
    a.act = static_cast<kernels::cpu::ActivationCode>(spec_.act);
    a.up = up;
    a.gate = gate;
    a.out = out + col;
    a.cols = cols;
    if (!alpha_.empty()) a.alpha = alpha_.as<float>()[expert];
    if (!beta_.empty()) a.beta = beta_.as<float>()[expert];
    if (!limit_.empty()) a.limit = limit_.as<float>()[expert];
    choice_.row_ops->activate(a);
  }

  void prepare_middle(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first, int64_t rows) const {
    // `plain` and per-token NVFP4 round the activation to D first; the others quantise it straight from float32.
    const bool round_first =
        bf16() && (spec_.inputs == format::InputFormat::plain || spec_.inputs == format::InputFormat::nvfp4_token);
    ctx.pool.parallel_for(rows, [&](int64_t row, int worker) {
      float* activated = m.activated + row * padded_inter();
      if (spec_.fp8_block_trtllm) {
        float* up = m.raw + row * 2 * padded_inter();
        float* gate = spec_.gated() ? up + padded_inter() : nullptr;
        format::round_row(format::InputFormat::fp8_group, up, spec_.inter);
        if (gate != nullptr) format::round_row(format::InputFormat::fp8_group, gate, spec_.inter);
        activate(args, m, first, {row, expert_of(m, row), 0, spec_.inter, up, gate, activated});
      }
      pack_row(m.middle, row, {activated, DType::f32, round_first}, input_scale2_,
               m.staging + worker * m.staging_floats);
      if (args.trace != nullptr) {
        float* out = args.trace->activated.as<float>() + (first * spec_.top_k + m.row_slot[row]) * spec_.inter;
        for (int64_t c = 0; c < spec_.inter; ++c) out[c] = round_first ? round_to_bf16(activated[c]) : activated[c];
        format::round_row(spec_.inputs, out, spec_.inter, input_scale2_);
      }
    });
  }

  void gemm2(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first) const {
    const GroupedRows rows{spec_.locals(), m.offsets, nullptr};
    grouped_gemm(ctx, m.middle, down_, rows, m.gemm, [&](const OutputTile& t) {
      const int64_t col = t.n_tile * kNTile, cols = std::min<int64_t>(kNTile, spec_.hidden - col);
      for (int i = 0; i < t.m; ++i) {
        const int64_t row = t.row + i;
        float* values = t.values + int64_t{i} * kNTile;
        add_bias(bias_down_, t.group * spec_.hidden + col, values, cols);
        std::byte* out = m.down + (row * spec_.hidden + col) * elem();
        if (bf16())
          choice_.row_ops->round_bf16(values, reinterpret_cast<uint16_t*>(out), cols);
        else
          std::memcpy(out, values, static_cast<size_t>(cols) * 4);
        if (args.trace != nullptr)
          to_float(out, args.trace->down.as<float>() + (first * spec_.top_k + m.row_slot[row]) * spec_.hidden + col,
                   cols);
      }
    });
  }

  void finalize(Context& ctx, const MoeArgs& args, const Memory& m, int64_t first, int64_t tokens) const {
    const int64_t k = spec_.top_k, row_bytes = spec_.hidden * elem();
    std::byte* output = static_cast<std::byte*>(args.output);
    if (!finalizes(spec_, args)) {
      ctx.pool.parallel_for(tokens * k, [&](int64_t slot, int) {
        std::byte* out = output + (first * k + slot) * row_bytes;
        if (m.slot_row[slot] < 0)
          std::memset(out, 0, static_cast<size_t>(row_bytes));
        else
          std::memcpy(out, m.down + m.slot_row[slot] * row_bytes, static_cast<size_t>(row_bytes));
      });
      return;
    }
    ctx.pool.parallel_for(tokens, [&](int64_t t, int) {
      kernels::cpu::WeightedSumArgs a;
      a.rows = m.finalize_rows + t * k;
      a.weights = m.finalize_weights + t * k;
      for (int64_t i = t * k; i < (t + 1) * k; ++i) {
        if (m.slot_row[i] < 0) continue;
        m.finalize_rows[t * k + a.count] = m.down + m.slot_row[i] * row_bytes;
        m.finalize_weights[t * k + a.count++] = spec_.weight_on_input ? 1.0f : m.weights[i];
      }
      a.bf16 = bf16();
      a.cols = spec_.hidden;
      a.out = output + (first + t) * row_bytes;
      choice_.row_ops->weighted_sum(a);
    });
  }

  int64_t expert_of(const Memory& m, int64_t row) const { return int64_t{m.ids[m.row_slot[row]]} - spec_.local_offset; }

  void add_bias(const Tensor& bias, int64_t at, float* x, int64_t n) const {
    if (bias.empty()) return;
    const float* b = bias.as<float>() + at;
    for (int64_t i = 0; i < n; ++i) x[i] += b[i];
  }

  void to_float(const std::byte* x, float* out, int64_t n) const {
    if (!bf16()) {
      std::memcpy(out, x, static_cast<size_t>(n) * 4);
      return;
    }
    const auto* values = reinterpret_cast<const bf16_t*>(x);
    for (int64_t i = 0; i < n; ++i) out[i] = bf16_to_float(values[i]);
  }

  void start_trace(Trace& trace, int64_t tokens) const {
    const int64_t k = spec_.top_k;
    trace.input = Tensor(DType::f32, {tokens, spec_.hidden}).zero();
    trace.up = Tensor(DType::f32, {tokens, k, spec_.inter}).zero();
    trace.gate = spec_.gated() ? Tensor(DType::f32, {tokens, k, spec_.inter}).zero() : Tensor();
    trace.activated = Tensor(DType::f32, {tokens, k, spec_.inter}).zero();
    trace.down = Tensor(DType::f32, {tokens, k, spec_.hidden}).zero();
  }

  MoeSpec spec_;
  CpuKernel choice_;
  int workers_;
  PackedWeights up_, down_;  // up_: gate and up in pairs when gated
  float input_scale1_ = 1.0f, input_scale2_ = 1.0f;
  Tensor bias_up_, bias_gate_, bias_down_, alpha_, beta_, limit_;
};

class CpuBackend final : public Backend {
 public:
  explicit CpuBackend(CpuOptions options) : isa_(options.isa.value_or(kernels::cpu::best_isa())) {}

  std::string_view name() const override { return "cpu"; }

  Support supports(const MoeSpec& spec) const override {
    if (spec.dtype != DType::bf16 && spec.dtype != DType::f32)
      return Support::no(fmt::format("dtype={} is not computed; bfloat16 and float32 are", to_string(spec.dtype)));
    if (Support s = kernels::cpu::cpu_kernel_supported(isa_, spec.weights, spec.inputs); !s) return s;
    if (spec.fp8_block_trtllm && spec.inputs != format::InputFormat::fp8_group)
      return Support::no("fp8_block_trtllm goes with inputs=fp8_group only");
    if (spec.act_params && !activation::takes_params(spec.act))
      return Support::no(fmt::format("alpha, beta and limit belong to swiglu; {} would ignore them",
                                     name_of(activation::kActivations, spec.act)));
    return Support::yes(std::string(kernels::cpu::choose_cpu_kernel(isa_, spec.weights, spec.inputs, spec.dtype).name));
  }

  std::optional<int64_t> prepared_bytes(const MoeSpec& spec) const override {
    check_supported(spec);
    return PackedWeights::packed_bytes(spec.weights, spec.locals(), spec.inter, spec.hidden, spec.gated()) +
           PackedWeights::packed_bytes(spec.weights, spec.locals(), spec.hidden, spec.inter, false);
  }

  bool reads_apart() const override { return true; }

  std::unique_ptr<MoeLayer> prepare(Context& ctx, const MoeSpec& spec, const weights::ExpertWeights& w,
                                    const PrepareOptions& options) const override {
    check_supported(spec);
    const PreparedMemory& memory = options.memory;
    if (memory.data != nullptr) {
      const int64_t needed = *prepared_bytes(spec);
      check(memory.size >= needed, "memory has {} bytes; the prepared weights need {}", memory.size, needed);
      check(reinterpret_cast<uintptr_t>(memory.data) % 64 == 0, "memory is not aligned to 64 bytes");
    }
    return std::make_unique<CpuMoeLayer>(ctx, spec, w, isa_, memory.data);
  }

 private:
  void check_supported(const MoeSpec& spec) const {
    validate(spec);
    if (const Support s = supports(spec); !s) fail(ErrorCode::unsupported, "{}", s.reason);
  }

  Isa isa_;
};
}  // namespace

std::unique_ptr<Backend> make_cpu_backend(CpuOptions options) { return std::make_unique<CpuBackend>(options); }

}  // namespace sluice::moe
