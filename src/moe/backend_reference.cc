// SPDX-License-Identifier: Apache-2.0
#include "moe/backend_reference.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/math.h"
#include "format/quantize_rows.h"
#include "moe/check.h"
#include "routing/route.h"

namespace sluice::moe {

namespace {

using format::Format;
using format::InputFormat;
using weights::QuantTensor;

// Both sides of a product are held as float values that are exact (codes times MX or NVFP4 block scales), a float scale
// for 128 columns (FP8 groups and blocks; absent: 1) and a float scale for the whole row.
constexpr int64_t kGroup = 128;
struct Row {
  const float* values;
  const float* group_scales;  // [ceil(K/128)] or null
  float scale;
};

int64_t groups_of(int64_t cols) { return ceil_div(cols, kGroup); }

// Sixteen partial sums in a fixed order: the same bits on every machine, and the compiler may use vectors.
float dot(const float* a, const float* b, int64_t n) {
  constexpr int kLanes = 16;
  float lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= n; i += kLanes)
    for (int l = 0; l < kLanes; ++l) lanes[l] += a[i + l] * b[i + l];
  for (int l = 0; i < n; ++i, ++l) lanes[l] += a[i] * b[i];
  for (int step = kLanes / 2; step > 0; step /= 2)
    for (int l = 0; l < step; ++l) lanes[l] += lanes[l + step];
  return lanes[0];
}

float product(const Row& x, const Row& w, int64_t cols) {
  float sum = 0.0f;
  if (x.group_scales == nullptr && w.group_scales == nullptr) {
    sum = dot(x.values, w.values, cols);
  } else {
    for (int64_t g = 0; g < groups_of(cols); ++g) {
      const int64_t begin = g * kGroup;
      const float scale = (x.group_scales ? x.group_scales[g] : 1.0f) * (w.group_scales ? w.group_scales[g] : 1.0f);
      sum += dot(x.values + begin, w.values + begin, std::min(kGroup, cols - begin)) * scale;
    }
  }
  return sum * x.scale * w.scale;
}

// Row n of expert e, decoded into values[K]; the returned Row points there.
Row weight_row(const QuantTensor& w, int64_t e, int64_t n, float* values) {
  const format::FormatInfo f = format::info(w.format);
  const int64_t k = w.cols, row = e * w.rows + n;
  Row out{values, nullptr, 1.0f};
  if (w.format == Format::bf16) {
    const auto* codes = w.codes.as<bf16_t>() + row * k;
    for (int64_t i = 0; i < k; ++i) values[i] = bf16_to_float(codes[i]);
    return out;
  }
  const auto* codes = w.codes.as<uint8_t>() + row * k * f.bits / 8;
  for (int64_t i = 0; i < k; ++i)
    values[i] = f.bits == 4 ? format::e2m1_to_float(codes[i / 2] >> (i % 2 * 4) & 15) : format::e4m3_to_float(codes[i]);
  if (f.scale == format::ScaleType::f32) {
    const float* scales = w.scales.as<float>();
    if (w.format == Format::fp8_block)
      out.group_scales = scales + (e * ceil_div<int64_t>(w.rows, f.group_n) + n / f.group_n) * groups_of(k);
    else
      out.scale = w.format == Format::fp8_tensor ? scales[e] : scales[row];
    return out;
  }
  const auto* scales = w.scales.as<uint8_t>() + row * ceil_div<int64_t>(k, f.group_k);
  for (int64_t i = 0; i < k; ++i) {
    const uint8_t s = scales[i / f.group_k];
    values[i] *= f.scale == format::ScaleType::e8m0 ? format::e8m0_to_float(s) : format::e4m3_to_float(s);
  }
  if (f.global_scale) out.scale = w.global.as<float>()[e];
  return out;
}

// Rows of inputs in the same three parts.
struct Rows {
  float* values;        // [R, K]
  float* group_scales;  // [R, ceil(K/128)]; used by fp8_group only
  float* scales;        // [R]
  int64_t cols;
  InputFormat format;

  static int64_t floats(int64_t rows, int64_t cols) { return rows * (cols + groups_of(cols) + 1); }
  Rows(float* memory, int64_t rows, int64_t k, InputFormat f)
      : values(memory),
        group_scales(memory + rows * k),
        scales(group_scales + rows * groups_of(k)),
        cols(k),
        format(f) {}

  Row at(int64_t r) const {
    return {values + r * cols, format == InputFormat::fp8_group ? group_scales + r * groups_of(cols) : nullptr,
            scales[r]};
  }

  // Rounds x[K], in float32, to the input format.
  void set(int64_t r, const float* x, float input_scale) const {
    float* out = values + r * cols;
    scales[r] = 1.0f;
    if (format == InputFormat::plain) {
      std::copy_n(x, cols, out);
      return;
    }
    format::QuantRows q = format::quantize_rows(format, x, 1, cols, input_scale);
    if (!q.row_scales.empty()) scales[r] = std::exchange(q.row_scales[0], 1.0f);
    std::copy(q.group_scales.begin(), q.group_scales.end(), group_scales + r * groups_of(cols));
    std::fill(q.group_scales.begin(), q.group_scales.end(), 1.0f);
    format::dequantize_rows(q, out);  // codes times block scales, which is exact
  }

  float value(int64_t r, int64_t k) const {
    const Row row = at(r);
    return row.values[k] * (row.group_scales ? row.group_scales[k / kGroup] : 1.0f) * row.scale;
  }
};

float round_to(DType d, float x) { return d == DType::bf16 ? round_to_bf16(x) : x; }

class ReferenceLayer : public MoeLayer {
 public:
  ReferenceLayer(const MoeSpec& spec, const weights::ExpertWeights& w) : spec_(spec) { set(w); }

  const MoeSpec& spec() const override { return spec_; }

  bool row_invariant() const override { return true; }
  int64_t weight_bytes() const override {
    int64_t bytes = 0;
    for (const QuantTensor* q : {&w_.up, &w_.gate, &w_.down})
      bytes += q->codes.bytes() + q->scales.bytes() + q->global.bytes();
    return bytes;
  }

  int64_t workspace_bytes(int64_t tokens) const override { return Workspace(*this, nullptr, tokens).bytes; }

  void refit(Context&, const weights::ExpertWeights& w) override {
    check_weights(spec_, w);
    set(w);
  }

  void run(Context& ctx, const MoeArgs& a) const override;

 private:
  // Slot s = t * K + k. All float32.
  struct Workspace {
    Workspace(const ReferenceLayer& layer, void* memory, int64_t tokens);
    int32_t* ids;              // [T, K] global; -1: absent
    float* weights;            // [T, K]
    float *up, *gate;          // [T, K, I]
    float* down;               // [T, K, H]
    float *input, *activated;  // Rows of [T, H] and [T*K, I]
    void* route_scratch;
    int64_t bytes;
  };

  // Copies: the caller's memory is free afterwards.
  void set(const weights::ExpertWeights& w) {
    w_ = w;
    for (QuantTensor* q : {&w_.up, &w_.gate, &w_.down})
      for (Tensor* t : {&q->codes, &q->scales, &q->global}) *t = t->clone();
    for (Tensor* t : {&w_.bias_up, &w_.bias_gate, &w_.bias_down, &w_.alpha, &w_.beta, &w_.limit}) *t = t->clone();
  }
  int64_t slots(int64_t tokens) const { return tokens * spec_.top_k; }
  void route(const MoeArgs& a, const Workspace& ws) const;
  void activate(int64_t slot, int32_t expert, const Workspace& ws, const Rows& activated) const;
  void write_output(const MoeArgs& a, int64_t t, const Workspace& ws) const;
  void write_trace(const MoeArgs& a, const Workspace& ws, const Rows& input, const Rows& activated) const;

  // Calls body(slot, row n, Row of the weights) for each slot whose expert is here, each weight row decoded once.
  template <class Body>
  void for_each_row(Context& ctx, const QuantTensor& w, const Workspace& ws, int64_t tokens, Body&& body) const;

  MoeSpec spec_;
  weights::ExpertWeights w_;
};

ReferenceLayer::Workspace::Workspace(const ReferenceLayer& layer, void* memory, int64_t tokens) {
  const MoeSpec& s = layer.spec_;
  const int64_t n = layer.slots(tokens);
  int64_t used = 0;
  const auto take = [&](int64_t size) {
    char* p = static_cast<char*>(memory) + used;
    used = round_up<int64_t>(used + size, 64);
    return static_cast<void*>(memory ? p : nullptr);
  };
  const auto floats = [&](int64_t count) { return static_cast<float*>(take(count * int64_t{sizeof(float)})); };
  ids = static_cast<int32_t*>(take(n * int64_t{sizeof(int32_t)}));
  weights = floats(n);
  up = floats(n * s.inter);
  gate = floats(s.gated() ? n * s.inter : 0);
  down = floats(n * s.hidden);
  input = floats(Rows::floats(tokens, s.hidden));
  activated = floats(Rows::floats(n, s.inter));
  route_scratch = take(s.routed ? 0 : routing::route_scratch_bytes(s.routing_params()));
  bytes = used;
}

void ReferenceLayer::route(const MoeArgs& a, const Workspace& ws) const {
  const int64_t n = slots(a.tokens);
  if (spec_.routed) {
    routing::read_given(a.topk_ids, {a.topk_weights, a.topk_weights_dtype == DType::bf16}, spec_.given_scale(), n,
                        ws.ids, ws.weights);
  } else {
    routing::route(spec_.routing, spec_.routing_params(), {a.logits, a.logits_dtype == DType::bf16},
                   {a.bias, a.bias_dtype == DType::bf16}, a.tokens, ws.ids, ws.weights, ws.route_scratch);
  }
  for (int64_t i = 0; i < n; ++i) {
    const bool here = ws.ids[i] >= spec_.local_offset && ws.ids[i] < spec_.local_offset + spec_.locals();
    if (a.chosen_ids) a.chosen_ids[i] = ws.ids[i] >= 0 && ws.ids[i] < spec_.experts ? ws.ids[i] : -1;
    if (a.chosen_weights) a.chosen_weights[i] = ws.weights[i];
    if (!here) ws.ids[i] = -1;
  }
}

template <class Body>
void ReferenceLayer::for_each_row(Context& ctx, const QuantTensor& w, const Workspace& ws, int64_t tokens,
                                  Body&& body) const {
  std::vector<std::vector<int64_t>> slots_of(static_cast<size_t>(spec_.locals()));
  for (int64_t s = 0; s < slots(tokens); ++s)
    if (ws.ids[s] >= 0) slots_of[static_cast<size_t>(ws.ids[s] - spec_.local_offset)].push_back(s);
  std::vector<std::vector<float>> decoded(static_cast<size_t>(ctx.pool.size()),
                                          std::vector<float>(static_cast<size_t>(w.cols)));
  for (int64_t e = 0; e < spec_.locals(); ++e) {
    const auto& members = slots_of[static_cast<size_t>(e)];
    if (members.empty()) continue;
    ctx.pool.parallel_for(w.rows, [&](int64_t n, int worker) {
      const Row row = weight_row(w, e, n, decoded[static_cast<size_t>(worker)].data());
      for (int64_t slot : members) body(slot, n, row);
    });
  }
}

void ReferenceLayer::activate(int64_t slot, int32_t expert, const Workspace& ws, const Rows& activated) const {
  const int64_t e = expert - spec_.local_offset, inter = spec_.inter;
  float* up = ws.up + slot * inter;
  float* gate = spec_.gated() ? ws.gate + slot * inter : up;
  if (spec_.fp8_block_trtllm) {
    format::round_row(InputFormat::fp8_group, up, inter);
    if (spec_.gated()) format::round_row(InputFormat::fp8_group, gate, inter);
  }
  const auto add_bias = [&](float* x, const Tensor& bias) {
    for (int64_t i = 0; i < inter && !bias.empty(); ++i) x[i] += bias.as<float>()[e * inter + i];
    for (int64_t i = 0; i < inter && spec_.weight_on_input; ++i) x[i] *= ws.weights[slot];
  };
  add_bias(up, w_.bias_up);
  if (spec_.gated()) add_bias(gate, w_.bias_gate);

  activation::Params p;
  if (!w_.alpha.empty()) p.alpha = w_.alpha.as<float>()[e];
  if (!w_.beta.empty()) p.beta = w_.beta.as<float>()[e];
  if (!w_.limit.empty()) p.limit = w_.limit.as<float>()[e];
  std::vector<float> y(static_cast<size_t>(inter));
  activation::Activations::visit(spec_.act, [&]<class A> {
    for (int64_t i = 0; i < inter; ++i) y[static_cast<size_t>(i)] = A::apply(up[i], gate[i], p);
  });
  const bool to_run_type = spec_.inputs == InputFormat::plain || spec_.inputs == InputFormat::nvfp4_token;
  for (float& v : y) v = to_run_type ? round_to(spec_.dtype, v) : v;
  activated.set(slot, y.data(), w_.input_scale2);
}

void ReferenceLayer::write_output(const MoeArgs& a, int64_t t, const Workspace& ws) const {
  const int64_t hidden = spec_.hidden, k_count = spec_.top_k;
  const auto store = [&](int64_t i, float v) {
    if (spec_.dtype == DType::bf16)
      static_cast<bf16_t*>(a.output)[i] = float_to_bf16(v);
    else
      static_cast<float*>(a.output)[i] = v;
  };
  if (!finalizes(spec_, a)) {
    for (int64_t s = t * k_count; s < (t + 1) * k_count; ++s)
      for (int64_t h = 0; h < hidden; ++h) store(s * hidden + h, ws.ids[s] >= 0 ? ws.down[s * hidden + h] : 0.0f);
    return;
  }
  for (int64_t h = 0; h < hidden; ++h) {
    float sum = 0.0f;
    for (int64_t s = t * k_count; s < (t + 1) * k_count; ++s)
      if (ws.ids[s] >= 0) sum = std::fma(spec_.weight_on_input ? 1.0f : ws.weights[s], ws.down[s * hidden + h], sum);
    store(t * hidden + h, sum);
  }
}

void ReferenceLayer::write_trace(const MoeArgs& a, const Workspace& ws, const Rows& input,
                                 const Rows& activated) const {
  const int64_t t = a.tokens, k = spec_.top_k, inter = spec_.inter, hidden = spec_.hidden;
  Trace& trace = *a.trace;
  trace.input = Tensor(DType::f32, {t, hidden});
  for (int64_t r = 0; r < t; ++r)
    for (int64_t h = 0; h < hidden; ++h) trace.input.as<float>()[r * hidden + h] = input.value(r, h);
  const auto copy = [&](Tensor& to, int64_t width, auto&& value) {
    to = Tensor(DType::f32, {t, k, width});
    for (int64_t s = 0; s < t * k; ++s)
      for (int64_t i = 0; i < width; ++i) to.as<float>()[s * width + i] = ws.ids[s] >= 0 ? value(s, i) : 0.0f;
  };
  copy(trace.up, inter, [&](int64_t s, int64_t i) { return ws.up[s * inter + i]; });
  trace.gate = {};
  if (spec_.gated()) copy(trace.gate, inter, [&](int64_t s, int64_t i) { return ws.gate[s * inter + i]; });
  copy(trace.activated, inter, [&](int64_t s, int64_t i) { return activated.value(s, i); });
  copy(trace.down, hidden, [&](int64_t s, int64_t i) { return ws.down[s * hidden + i]; });
}

void ReferenceLayer::run(Context& ctx, const MoeArgs& given) const {
  check_args(spec_, given);
  const MoeArgs a = real_args(given);
  const int64_t hidden = spec_.hidden, inter = spec_.inter, k_count = spec_.top_k;
  if (a.tokens == 0) return;
  check_workspace(a.workspace, a.workspace_size, a.tokens, workspace_bytes(a.tokens), 64);
  const Workspace ws(*this, a.workspace, a.tokens);
  const Rows input(ws.input, a.tokens, hidden, spec_.inputs);
  const Rows activated(ws.activated, slots(a.tokens), inter, spec_.inputs);

  route(a, ws);
  ctx.pool.parallel_for(a.tokens, [&](int64_t t, int) {
    std::vector<float> x(static_cast<size_t>(hidden));
    for (int64_t h = 0; h < hidden; ++h)
      x[static_cast<size_t>(h)] = spec_.dtype == DType::bf16
                                      ? bf16_to_float(static_cast<const bf16_t*>(a.hidden)[t * hidden + h])
                                      : static_cast<const float*>(a.hidden)[t * hidden + h];
    input.set(t, x.data(), w_.input_scale1);
  });

  for_each_row(ctx, w_.up, ws, a.tokens, [&](int64_t slot, int64_t n, const Row& w) {
    ws.up[slot * inter + n] = product(input.at(slot / k_count), w, hidden);
  });
  if (spec_.gated())
    for_each_row(ctx, w_.gate, ws, a.tokens, [&](int64_t slot, int64_t n, const Row& w) {
      ws.gate[slot * inter + n] = product(input.at(slot / k_count), w, hidden);
    });
  ctx.pool.parallel_for(slots(a.tokens), [&](int64_t slot, int) {
    if (ws.ids[slot] >= 0) activate(slot, ws.ids[slot], ws, activated);
  });
  for_each_row(ctx, w_.down, ws, a.tokens, [&](int64_t slot, int64_t n, const Row& w) {
    const int64_t e = ws.ids[slot] - spec_.local_offset;
    const float bias = w_.bias_down.empty() ? 0.0f : w_.bias_down.as<float>()[e * hidden + n];
    ws.down[slot * hidden + n] = round_to(spec_.dtype, product(activated.at(slot), w, inter) + bias);
  });
  ctx.pool.parallel_for(a.tokens, [&](int64_t t, int) { write_output(a, t, ws); });
  if (a.trace) write_trace(a, ws, input, activated);
}

class ReferenceBackend : public Backend {
 public:
  std::string_view name() const override { return "reference"; }
  Support supports(const MoeSpec&) const override { return Support::yes("plain loops in float32"); }
  std::unique_ptr<MoeLayer> prepare(Context&, const MoeSpec& spec, const weights::ExpertWeights& w,
                                    const PrepareOptions& options) const override {
    check_no_memory(name(), options);
    validate(spec);
    check_weights(spec, w);
    return std::make_unique<ReferenceLayer>(spec, w);
  }
};

}  // namespace

std::unique_ptr<Backend> make_reference_backend() { return std::make_unique<ReferenceBackend>(); }

}  // namespace sluice::moe
