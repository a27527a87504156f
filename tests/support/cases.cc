// SPDX-License-Identifier: Apache-2.0
#include "tests/support/cases.h"

#include <cmath>

#include "format/quantize_weights.h"
#include "routing/route.h"
#include "tests/support/reference_moe.h"

namespace sluice::test {

namespace {

using activation::Activation;
using format::Format;
using format::InputFormat;
using routing::Method;

constexpr bool given(Choice c) { return c != Choice::f32_logits && c != Choice::bf16_logits; }

MoeSpec spec_of(Format f, InputFormat inputs, int64_t hidden, int64_t inter, int experts, int top_k) {
  MoeSpec s;
  s.experts = experts;
  s.top_k = top_k;
  s.hidden = hidden;
  s.inter = inter;
  s.weights = f;
  s.inputs = inputs;
  return s;
}

// Smallest unit that a format lets sizes be multiples of, or 1.
int unit_of(Format f) {
  const format::FormatInfo i = format::info(f);
  return i.group_k > 1 && i.group_n == 1 ? i.group_k : 1;
}

void set_method(MoeSpec& s, Method m) {
  s.routing = m;
  if (m == Method::llama4) s.top_k = 1;
  if (m == Method::deepseek_v3 && s.experts % 4 == 0 && s.experts >= 8) s.groups = 4, s.top_groups = 2;
  if (m == Method::deepseek_v3 || m == Method::minimax2) s.routed_scale = 2.5f;
}

// Of a method's parameters only its scale acts on given weights, so the others must not be there.
void set_routed(MoeSpec& s, Choice choice) {
  s.routed = given(choice);
  if (s.routed) s.groups = s.top_groups = 1, s.norm_topk = true;
}

class List {
 public:
  void add(MoeSpec s, int64_t tokens, Choice choice = Choice::f32_logits, Pattern pattern = Pattern::distinct) {
    set_routed(s, choice);
    s.tokens = tokens;
    cases_.push_back({s, tokens, choice, pattern});
  }
  std::vector<Case> cases_;
};

// Every format, input format, activation and run type, on a size that is an odd multiple of the format's group; the
// routing method goes round.
void add_products(List& list) {
  size_t turn = 0;
  for (const auto& [f, name] : format::kFormats)
    for (const auto& [inputs, input_name] : format::kInputFormats) {
      if (!format::fits(f, inputs)) continue;
      for (const auto& [a, act_name] : activation::kActivations)
        for (DType dtype : {DType::bf16, DType::f32}) {
          const int unit = unit_of(f);
          MoeSpec s = spec_of(f, inputs, unit > 1 ? unit * 5 : 136, unit > 1 ? unit * 3 : 72, 8, 3);
          s.act = a;
          s.dtype = dtype;
          s.bias = turn % 3 == 1;
          s.act_params = a == Activation::swiglu && turn % 2 == 1;
          set_method(s, routing::kMethods[turn % routing::kMethods.size()].value);
          list.add(s, 4, turn % 2 ? Choice::bf16_logits : Choice::f32_logits);
          ++turn;
        }
    }
}

void add_sizes(List& list) {
  for (const auto& [f, name] : format::kFormats) {
    const InputFormat inputs = format::info(f).input;
    const int unit = unit_of(f);
    const auto size = [&](int64_t wanted) { return (wanted + unit - 1) / unit * unit; };
    for (auto [h, i] :
         {std::pair<int64_t, int64_t>{1, 1}, {33, 65}, {128, 128}, {200, 130}, {257, 961}, {640, 232}, {96, 248}})
      list.add(spec_of(f, inputs, size(h), size(i), 5, 2), 3, Choice::unpacked);
    const bool whole = f == Format::nvfp4;  // Nemotron-3-Nano's sizes; elsewhere a quarter
    list.add(spec_of(f, inputs, whole ? 2688 : 672, size(whole ? 1856 : 464), 2, 1), 2, Choice::unpacked);
    for (int64_t tokens : {0, 1, 2, 7, 33, 150}) list.add(spec_of(f, inputs, size(96), size(160), 16, 4), tokens);
    list.add(spec_of(f, inputs, size(64), size(64), 4, 1), 70, Choice::packed, Pattern::one);
    list.add(spec_of(f, inputs, 32, 32, 512, 22), 9);
  }
}

void add_choices(List& list) {
  for (Choice c : {Choice::unpacked, Choice::bf16_given, Choice::packed})
    for (Pattern p : {Pattern::distinct, Pattern::one, Pattern::absent, Pattern::none}) {
      MoeSpec s = spec_of(Format::nvfp4, InputFormat::nvfp4, 64, 96, 12, 4);
      s.local_offset = 4;
      s.local_experts = 5;
      list.add(s, 9, c, p);
      s.finalize = false;
      s.dtype = DType::f32;
      list.add(s, 5, c, p);
    }
  for (const auto& [m, name] : routing::kMethods)  // a rank's window, routed over all experts
    for (DType dtype : {DType::bf16, DType::f32}) {
      MoeSpec s = spec_of(Format::bf16, InputFormat::plain, 64, 48, 32, 6);
      set_method(s, m);
      s.dtype = dtype;
      s.local_offset = 24;
      s.local_experts = 8;
      list.add(s, 21, dtype == DType::f32 ? Choice::f32_logits : Choice::bf16_logits);
    }
}

void add_special_numerics(List& list) {
  for (DType dtype : {DType::bf16, DType::f32})
    for (Activation a : {Activation::swiglu, Activation::relu2}) {
      MoeSpec s = spec_of(Format::fp8_block, InputFormat::fp8_group, 256, 384, 8, 2);
      s.act = a;
      s.dtype = dtype;
      s.fp8_block_trtllm = true;
      list.add(s, 6);
      s.fp8_f32_sums = true;
      list.add(s, 6);
    }
  for (Format f : {Format::fp8_tensor, Format::fp8_channel, Format::fp8_block})
    for (InputFormat x : {InputFormat::fp8_static, InputFormat::fp8_token, InputFormat::fp8_group})
      for (Activation a : {Activation::swiglu, Activation::geglu, Activation::relu2})
        for (int64_t tokens : {3, 70}) {
          if (!format::fits(f, x)) continue;
          MoeSpec s = spec_of(f, x, 328, 200, 6, 2);
          s.act = a;
          s.fp8_f32_sums = true;
          list.add(s, tokens);
        }
  for (Format f : {Format::fp8_tensor, Format::bf16})
    for (bool on_input : {false, true}) {
      MoeSpec s = spec_of(f, f == Format::bf16 ? InputFormat::plain : InputFormat::fp8_static, 128, 64, 16, 1);
      s.routing = Method::llama4;
      s.weight_on_input = on_input;
      list.add(s, 12, Choice::bf16_logits);
      s.bias = true;  // the weight multiplies the biased result
      list.add(s, 12, Choice::bf16_logits);
    }
  MoeSpec s = spec_of(Format::bf16, InputFormat::plain, 64, 32, 16, 4);
  s.routing = Method::sigmoid_renorm;
  s.norm_topk = false;
  list.add(s, 8);
}

// --- Random data -----------------------------------------------------------------------------------------------------

class Random {
 public:
  explicit Random(std::mt19937& rng) : rng_(rng) {}
  float normal() { return normal_(rng_); }
  bool one_in(unsigned n) { return rng_() % n == 0; }
  unsigned below(unsigned n) { return static_cast<unsigned>(rng_() % n); }

  // [rows, cols] of about unit variance over sqrt(cols), rows and columns of different scales, one in 400 an outlier.
  std::vector<float> matrix(int64_t rows, int64_t cols) {
    std::vector<float> column(static_cast<size_t>(cols)), w;
    for (auto& c : column) c = std::exp2(0.5f * normal());
    for (int64_t r = 0; r < rows; ++r) {
      const float row = std::exp2(0.7f * normal()) / std::sqrt(static_cast<float>(cols));
      for (int64_t c = 0; c < cols; ++c)
        w.push_back(normal() * row * column[static_cast<size_t>(c)] * (one_in(400) ? 12.0f : 1.0f));
    }
    return w;
  }

 private:
  std::mt19937& rng_;
  std::normal_distribution<float> normal_;
};

weights::QuantTensor random_stack(Random& random, Format f, int64_t experts, int64_t rows, int64_t cols) {
  weights::QuantTensor q = weights::make_quant_tensor(f, experts, rows, cols);
  for (int64_t e = 0; e < experts; ++e) {
    const auto w = random.matrix(rows, cols);
    void* scales = q.scales.empty() ? nullptr : q.scales.rows(e, e + 1).data();
    float* global = q.global.empty() ? nullptr : q.global.as<float>() + e;
    format::quantize_weight(f, w.data(), rows, cols, q.codes.rows(e, e + 1).data(), scales, global);
  }
  return q;
}

template <class F>
Tensor floats(Shape shape, F&& value) {
  Tensor t(DType::f32, std::move(shape));
  for (int64_t i = 0; i < t.elements(); ++i) t.as<float>()[i] = value();
  return t;
}

Tensor in_type(DType d, const Shape& shape, const std::vector<float>& x) {
  Tensor t(d, shape);
  for (size_t i = 0; i < x.size(); ++i) {
    if (d == DType::bf16)
      t.as<bf16_t>()[i] = float_to_bf16(x[i]);
    else
      t.as<float>()[i] = x[i];
  }
  return t;
}

void add_extras(Random& random, const MoeSpec& s, weights::ExpertWeights& w) {
  const int64_t l = s.locals();
  const auto small = [&] { return 0.2f * random.normal(); };
  if (s.bias) {
    w.bias_up = floats({l, s.inter}, small);
    if (s.gated()) w.bias_gate = floats({l, s.inter}, small);
    w.bias_down = floats({l, s.hidden}, small);
  }
  if (s.act_params) {
    w.alpha = floats({l}, [&] { return 1.702f + small(); });
    w.beta = floats({l}, [&] { return 1.0f + small(); });
    w.limit = floats({l}, [&] { return 2.0f + std::fabs(small()); });  // low, so that it acts
  }
}

int32_t given_id(Random& random, const Case& c, int slot, int32_t first) {
  const auto experts = static_cast<unsigned>(c.spec.experts);
  switch (c.pattern) {
    case Pattern::distinct:
      return static_cast<int32_t>((static_cast<unsigned>(first) + static_cast<unsigned>(slot)) % experts);
    case Pattern::one:
      return c.spec.local_offset + c.spec.locals() / 2;
    case Pattern::absent: {
      const unsigned dice = random.below(4);
      if (dice == 0) return -1;
      if (dice == 1) return c.choice == Choice::packed ? 32767 : static_cast<int32_t>(experts + random.below(1000000));
      return static_cast<int32_t>(random.below(experts));
    }
    case Pattern::none:
      return random.one_in(2) ? -1 : c.spec.local_offset - 1;
  }
  return -1;
}

void add_given(Random& random, const Case& c, Problem& p) {
  const int64_t k = c.spec.top_k;
  std::vector<float> weights;
  p.ids = Tensor(DType::i32, {c.tokens, k});
  for (int64_t t = 0; t < c.tokens; ++t) {
    const auto first = static_cast<int32_t>(random.below(static_cast<unsigned>(c.spec.experts)));
    for (int64_t i = 0; i < k; ++i) {
      const int32_t id = given_id(random, c, static_cast<int>(i), first);
      const float weight = 0.4f * random.normal();
      weights.push_back(weight);
      p.ids.as<int32_t>()[t * k + i] = c.choice == Choice::packed ? routing::pack(id, weight) : id;
    }
  }
  if (c.choice != Choice::packed)
    p.given_weights = in_type(c.choice == Choice::bf16_given ? DType::bf16 : DType::f32, {c.tokens, k}, weights);
}

void add_logits(Random& random, const Case& c, Problem& p) {
  const int64_t experts = c.spec.experts;
  std::vector<float> logits(static_cast<size_t>(c.tokens * experts)), bias(static_cast<size_t>(experts));
  for (auto& v : logits) v = 2 * random.normal();
  for (auto& v : bias) v = 0.3f * random.normal();
  const DType type = c.choice == Choice::bf16_logits ? DType::bf16 : DType::f32;
  p.logits = in_type(type, {c.tokens, experts}, logits);
  if (routing::takes_bias(c.spec.routing))
    p.bias = in_type(random.one_in(2) ? DType::bf16 : DType::f32, {experts}, bias);
}

// What calibration would find for GEMM2's input: the largest activation of the tokens, a little less, so that some
// values saturate.
float calibrated(const Problem& p, float largest_code) {
  MoeSpec s = p.spec;
  s.inputs = InputFormat::plain;
  s.routed = true;
  s.top_k = 1;
  s.weight_on_input = false;
  std::vector<int32_t> ids;
  for (int64_t t = 0; t < p.tokens; ++t) ids.push_back(s.local_offset + static_cast<int32_t>(t % s.locals()));
  const auto r = reference_moe(s, p.weights, p.hidden, ids, std::vector<float>(ids.size(), 1.0f));
  double amax = 1e-3;
  for (const Bounded& v : r.activated) amax = std::max(amax, std::fabs(v.value));
  return static_cast<float>(0.8 * amax / largest_code);
}

}  // namespace

std::string Case::name() const {
  constexpr const char* kChoices[] = {"f32 logits", "bf16 logits", "given", "given bf16", "packed"};
  constexpr const char* kPatterns[] = {"", ", one expert", ", absent experts", ", no local expert"};
  return to_string(spec) + " (" + kChoices[static_cast<int>(choice)] + kPatterns[static_cast<int>(pattern)] + ")";
}

std::vector<Case> conformance_cases() {
  List list;
  add_products(list);
  add_sizes(list);
  add_choices(list);
  add_special_numerics(list);
  return list.cases_;
}

Case random_case(std::mt19937& rng) {
  Random random(rng);
  const auto pick = [&](const auto& table) { return table[random.below(static_cast<unsigned>(table.size()))].value; };
  const Format f = pick(format::kFormats);
  InputFormat inputs = pick(format::kInputFormats);
  while (!format::fits(f, inputs)) inputs = pick(format::kInputFormats);
  const int unit = unit_of(f), largest = 330 / unit;
  const auto size = [&] { return static_cast<int64_t>(unit) * (1 + random.below(static_cast<unsigned>(largest))); };
  const int experts = 1 + static_cast<int>(random.below(40));
  Case c;
  c.spec = spec_of(f, inputs, size(), size(), experts,
                   1 + static_cast<int>(random.below(std::min<unsigned>(8, static_cast<unsigned>(experts)))));
  c.spec.act = pick(activation::kActivations);
  c.spec.dtype = random.one_in(3) ? DType::f32 : DType::bf16;
  c.spec.bias = random.one_in(3);
  c.spec.act_params = activation::takes_params(c.spec.act) && random.one_in(2);
  c.spec.fp8_block_trtllm = inputs == InputFormat::fp8_group && random.one_in(2);
  c.spec.fp8_f32_sums = format::is_fp8(f) && random.one_in(2);
  c.spec.finalize = !random.one_in(5);
  set_method(c.spec, pick(routing::kMethods));
  if (c.spec.groups > 1) c.spec.top_k = std::min(c.spec.top_k, experts / 2);
  c.spec.weight_on_input = c.spec.routing == Method::llama4 && random.one_in(2);
  if (random.one_in(2)) {
    c.spec.local_experts = 1 + static_cast<int>(random.below(static_cast<unsigned>(experts)));
    c.spec.local_offset = static_cast<int>(random.below(static_cast<unsigned>(experts - c.spec.local_experts + 1)));
  }
  c.choice = static_cast<Choice>(random.below(5));
  c.pattern = c.spec.local_offset > 0 ? static_cast<Pattern>(random.below(4)) : static_cast<Pattern>(random.below(3));
  set_routed(c.spec, c.choice);
  c.spec.tokens = c.tokens = random.below(40);
  return c;
}

Problem make_problem(const Case& c, std::mt19937& rng) {
  Random random(rng);
  Problem p;
  p.spec = c.spec;
  p.tokens = c.tokens;
  const MoeSpec& s = c.spec;
  p.weights.up = random_stack(random, s.weights, s.locals(), s.inter, s.hidden);
  if (s.gated()) p.weights.gate = random_stack(random, s.weights, s.locals(), s.inter, s.hidden);
  p.weights.down = random_stack(random, s.weights, s.locals(), s.hidden, s.inter);
  add_extras(random, s, p.weights);

  double amax = 1e-3;
  std::vector<float> column(static_cast<size_t>(s.hidden));
  for (auto& v : column) v = random.one_in(100) ? 20.0f : 1.0f;
  for (int64_t t = 0; t < c.tokens; ++t) {
    const float scale = std::exp2(random.normal());
    for (float factor : column) {
      const float v = random.normal() * scale * factor;
      p.hidden.push_back(s.dtype == DType::bf16 ? round_to_bf16(v) : v);
      amax = std::max<double>(amax, std::fabs(v));
    }
  }
  p.hidden_tensor = in_type(s.dtype, {c.tokens, s.hidden}, p.hidden);
  if (format::is_static(s.inputs)) {
    const float largest = s.inputs == InputFormat::nvfp4 ? 448.0f * 6.0f : 448.0f;
    p.weights.input_scale1 = static_cast<float>(0.8 * amax / largest);
    p.weights.input_scale2 = calibrated(p, largest);
  }
  if (given(c.choice))
    add_given(random, c, p);
  else
    add_logits(random, c, p);
  return p;
}

moe::MoeArgs Problem::args() const {
  moe::MoeArgs a;
  a.tokens = tokens;
  a.hidden = hidden_tensor.data();
  if (!logits.empty()) a.logits = logits.data(), a.logits_dtype = logits.dtype();
  if (!bias.empty()) a.bias = bias.data(), a.bias_dtype = bias.dtype();
  if (!ids.empty()) a.topk_ids = ids.as<int32_t>();
  if (!given_weights.empty()) a.topk_weights = given_weights.data(), a.topk_weights_dtype = given_weights.dtype();
  return a;
}

}  // namespace sluice::test
