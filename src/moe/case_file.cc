// SPDX-License-Identifier: Apache-2.0
#include "moe/case_file.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <optional>
#include <set>

#include "base/math.h"
#include "moe/check.h"
#include "weights/gate_up.h"

namespace sluice::moe {

namespace {

using format::Format;
using format::FormatInfo;
using weights::GateUpOrder;
using weights::QuantTensor;
using weights::RowWalk;

// The tensors of the file, each taken once; what is left over at the end was not understood.
class Tensors {
 public:
  explicit Tensors(const io::SafetensorsFile& file) : file_(file) {}

  bool has(std::string_view name) const { return file_.contains(name); }

  // Nothing when the file has no such tensor.
  Tensor take(std::string_view name) {
    if (!has(name)) return {};
    taken_.insert(std::string(name));
    return file_.tensor(name);
  }
  Tensor need(std::string_view name, std::string_view why) {
    check_file(has(name), "{}: tensor {} is missing; {}", file_.name(), name, why);
    return take(name);
  }
  void refuse_the_rest() const {
    for (const std::string& name : file_.names())
      check_file(taken_.count(name) != 0 || name.starts_with("expected_"),
                 "{}: tensor {} is not part of this case; it would be ignored (names may begin with expected_)",
                 file_.name(), name);
  }

  // Accepts one of the shapes, printed in the error; types are checked by the caller.
  void check_shape(std::string_view name, const Tensor& t, const std::vector<Shape>& shapes) const {
    std::string accepted;
    for (const Shape& s : shapes) {
      if (t.shape() == s) return;
      accepted += (accepted.empty() ? "" : " or ") + to_string(s);
    }
    fail(ErrorCode::bad_file, "{}: tensor {} has shape {}; the spec needs {}", file_.name(), name, to_string(t.shape()),
         accepted);
  }
  void check_type(std::string_view name, const Tensor& t, const std::vector<DType>& types) const {
    std::string accepted;
    for (DType d : types) {
      if (t.dtype() == d) return;
      accepted += (accepted.empty() ? "" : ", ") + std::string(to_string(d));
    }
    fail(ErrorCode::bad_file, "{}: tensor {} is {}; accepted: {}", file_.name(), name, to_string(t.dtype()), accepted);
  }
  const std::string& file_name() const { return file_.name(); }

 private:
  const io::SafetensorsFile& file_;
  std::set<std::string> taken_;
};

constexpr std::initializer_list<DType> kFloats = {DType::f32, DType::bf16};

Tensor widen(const Tensor& t) {
  if (t.empty() || t.dtype() == DType::f32) return t;
  Tensor out(DType::f32, t.shape());
  for (int64_t i = 0; i < t.elements(); ++i) out.as<float>()[i] = bf16_to_float(t.as<bf16_t>()[i]);
  return out;
}

void check_numbers(const Tensors& file, std::string_view name, const Tensor& t, bool negative_too) {
  for (int64_t i = 0; i < t.elements(); ++i) {
    const float v = t.as<float>()[i];
    check_file(std::isfinite(v) && (negative_too || v >= 0), "{}: element {} of tensor {} is {}; a {} is needed",
               file.file_name(), i, name, v, negative_too ? "finite number" : "finite number of at least 0");
  }
}

// [E, parts * R, ...] -> [E, R, ...]: every walk.step-th row from walk.begin on.
Tensor take_rows(const Tensor& t, int64_t rows, RowWalk walk) {
  const int64_t experts = t.dim(0), all = t.dim(1);
  if (rows == all) return t;
  Shape shape = t.shape();
  shape[1] = rows;
  Tensor out(t.dtype(), shape);
  const int64_t row_bytes = t.bytes() / std::max<int64_t>(experts * all, 1);
  for (int64_t e = 0; e < experts; ++e)
    for (int64_t r = 0; r < rows; ++r)
      std::copy_n(static_cast<const std::byte*>(t.data()) + (e * all + walk.begin + r * walk.step) * row_bytes,
                  row_bytes, static_cast<std::byte*>(out.data()) + (e * rows + r) * row_bytes);
  return out;
}

// A float for each expert, from [E], from one value for all, or from [E, parts] (gate and up separately).
Tensor expert_values(const Tensors& file, std::string_view name, const Tensor& t, int64_t experts, int parts,
                     int part) {
  file.check_type(name, t, kFloats);
  std::vector<Shape> shapes = {{experts}, {experts, 1}, {1}, {}};
  if (parts > 1) shapes.push_back({experts, parts});
  file.check_shape(name, t, shapes);
  const Tensor values = widen(t);
  check_numbers(file, name, values, false);
  Tensor out(DType::f32, {experts});
  for (int64_t e = 0; e < experts; ++e) {
    const int64_t at = t.elements() == 1 ? 0 : t.elements() == experts ? e : e * parts + part;
    out.as<float>()[e] = values.as<float>()[at];
  }
  return out;
}

// The matrices of one GEMM: [E, parts * N, K] in one file tensor, parted by `walks`.
std::vector<QuantTensor> read_stack(Tensors& file, const MoeSpec& s, const std::string& gemm, int64_t n, int64_t k,
                                    GateUpOrder order, int parts) {
  const FormatInfo f = format::info(s.weights);
  const int64_t experts = s.locals();
  const std::string weights_name = gemm + "_weights", scale_name = weights_name + "_scale",
                    global_name = weights_name + "_scale_2";
  const Tensor codes = file.need(weights_name, "it holds the experts' matrices");
  file.check_type(weights_name, codes,
                  f.bits == 16  ? std::vector<DType>{DType::bf16}
                  : f.bits == 8 ? std::vector<DType>{DType::e4m3, DType::u8}
                                : std::vector<DType>{DType::u8, DType::i8});
  file.check_shape(weights_name, codes, {{experts, parts * n, f.bits == 4 ? k / 2 : k}});
  Tensor scales, global;
  if (f.scale != format::ScaleType::none) scales = file.need(scale_name, fmt::format("{} weights have scales", f.name));
  if (f.global_scale) global = file.need(global_name, fmt::format("{} weights have a scale for each expert", f.name));

  // Rows of scales of one part; none where a scale covers the whole matrix.
  const int64_t scale_rows = f.group_n ? ceil_div<int64_t>(n, f.group_n) : 0;
  if (f.scale == format::ScaleType::f32 && scale_rows) {
    file.check_type(scale_name, scales, kFloats);
    if (f.group_k)
      file.check_shape(scale_name, scales, {{experts, parts * scale_rows, ceil_div<int64_t>(k, f.group_k)}});
    else
      file.check_shape(scale_name, scales, {{experts, parts * scale_rows}, {experts, parts * scale_rows, 1}});
    scales = widen(scales);
    check_numbers(file, scale_name, scales, false);
    check_file(f.group_n == 1 || parts == 1 || order != GateUpOrder::interleaved,
               "{}: w13_order is interleaved, but a scale of {} covers 128 rows; accepted: gate_up, up_gate",
               file.file_name(), f.name);
  } else if (scale_rows) {
    file.check_type(scale_name, scales, {DType::e4m3, DType::e8m0, DType::u8});
    file.check_shape(scale_name, scales, {{experts, parts * scale_rows, k / f.group_k}});
    const bool e8m0 = f.scale == format::ScaleType::e8m0;
    const auto* bytes = static_cast<const uint8_t*>(scales.data());
    for (int64_t i = 0; i < scales.elements(); ++i)
      check_file(e8m0 ? bytes[i] != 255 : bytes[i] < 0x7f,
                 "{}: element {} of tensor {} is the byte {}, which is {}; scales are numbers of at least 0",
                 file.file_name(), i, scale_name, bytes[i], e8m0 || (bytes[i] & 0x7f) == 0x7f ? "NaN" : "negative");
  }

  std::vector<QuantTensor> out;
  for (int part = 0; part < parts; ++part) {  // gate first, up second
    const auto walk = [&](int64_t rows) {
      return parts == 1 ? RowWalk{} : part == 0 ? weights::gate_rows(order, rows) : weights::up_rows(order, rows);
    };
    const int in_file = static_cast<int>(walk(1).begin);  // which of the two comes first
    QuantTensor q = weights::make_quant_tensor(s.weights, experts, n, k);
    const auto as_canonical = [](const Tensor& t, const Tensor& like) {  // the same bytes under the canonical type
      return Tensor(like.dtype(), like.shape(), t.data(), std::make_shared<Tensor>(t));
    };
    q.codes = as_canonical(take_rows(codes, n, walk(n)), q.codes);
    if (scale_rows)
      q.scales = as_canonical(take_rows(scales, scale_rows, walk(scale_rows)), q.scales);
    else if (f.scale != format::ScaleType::none)
      q.scales = expert_values(file, scale_name, scales, experts, parts, in_file);
    if (f.global_scale) q.global = expert_values(file, global_name, global, experts, parts, in_file);
    out.push_back(std::move(q));
  }
  return out;
}

float read_input_scale(Tensors& file, const MoeSpec& s, const std::string& gemm) {
  const std::string name = gemm + "_input_scale";
  const auto inputs = name_of(format::kInputFormats, s.inputs);
  if (!format::is_static(s.inputs)) {
    // A scale from the row itself replaces a calibrated one; elsewhere there is nothing that it could mean.
    const bool replaced = s.inputs == format::InputFormat::nvfp4_token || s.inputs == format::InputFormat::fp8_token;
    check_file(replaced || !file.has(name), "{}: tensor {} is given, but inputs is {}, which has no calibrated scale",
               file.file_name(), name, inputs);
    file.take(name);
    return 1.0f;
  }
  const Tensor t = file.need(name, fmt::format("inputs is {}, which has a calibrated scale", inputs));
  file.check_type(name, t, kFloats);
  const Tensor values = widen(t);
  check_numbers(file, name, values, false);
  check_file(t.elements() >= 1, "{}: tensor {} is empty", file.file_name(), name);
  return *std::max_element(values.as<float>(), values.as<float>() + values.elements());
}

Tensor read_extra(Tensors& file, const std::string& name, const Shape& shape) {
  Tensor t = file.take(name);
  if (t.empty()) return {};
  file.check_type(name, t, kFloats);
  file.check_shape(name, t, {shape});
  t = widen(t);
  check_numbers(file, name, t, true);
  return t;
}

void read_weights(Tensors& file, CaseFile& c, GateUpOrder order) {
  const MoeSpec& s = c.spec;
  weights::ExpertWeights& w = c.weights;
  const int64_t experts = s.locals();
  const int parts = s.gated() ? 2 : 1;
  auto gemm1 = read_stack(file, s, "gemm1", s.inter, s.hidden, order, parts);
  w.up = std::move(gemm1.back());
  if (s.gated()) w.gate = std::move(gemm1.front());
  w.down = std::move(read_stack(file, s, "gemm2", s.hidden, s.inter, order, 1).front());
  w.input_scale1 = read_input_scale(file, s, "gemm1");
  w.input_scale2 = read_input_scale(file, s, "gemm2");

  const Tensor bias = read_extra(file, "gemm1_bias", {experts, parts * s.inter});
  if (!bias.empty()) {
    w.bias_up = take_rows(bias, s.inter, s.gated() ? weights::up_rows(order, s.inter) : RowWalk{});
    if (s.gated()) w.bias_gate = take_rows(bias, s.inter, weights::gate_rows(order, s.inter));
  }
  w.bias_down = read_extra(file, "gemm2_bias", {experts, s.hidden});
  w.alpha = read_extra(file, "gemm1_alpha", {experts});
  w.beta = read_extra(file, "gemm1_beta", {experts});
  w.limit = read_extra(file, "gemm1_clamp_limit", {experts});
}

void read_routing(Tensors& file, CaseFile& c) {
  const MoeSpec& s = c.spec;
  if (!s.routed) {
    c.logits = file.need("routing_logits", "give it, or topk_ids");
    file.check_type("routing_logits", c.logits, kFloats);
    file.check_shape("routing_logits", c.logits, {{c.tokens, s.experts}});
    c.bias = file.take("routing_bias");
    if (!c.bias.empty()) {
      file.check_type("routing_bias", c.bias, kFloats);
      file.check_shape("routing_bias", c.bias, {{s.experts}});
      check_file(routing::takes_bias(s.routing), "{}: tensor routing_bias is given, but routing {} ignores it",
                 file.file_name(), name_of(routing::kMethods, s.routing));
    }
    return;
  }
  check_file(!file.has("routing_logits"), "{}: both topk_ids and routing_logits are given; give one", file.file_name());
  c.ids = file.need("topk_ids", "the spec says routed");
  file.check_type("topk_ids", c.ids, {DType::i32});
  file.check_shape("topk_ids", c.ids, {{c.tokens, s.top_k}});
  c.given_weights = file.take("topk_weights");
  if (c.given_weights.empty()) return;
  file.check_type("topk_weights", c.given_weights, kFloats);
  file.check_shape("topk_weights", c.given_weights, {{c.tokens, s.top_k}});
}

CaseFile read(const io::SafetensorsFile& source) {
  Tensors file(source);
  const auto& metadata = source.metadata();
  const auto value = [&](const std::string& key) -> std::optional<std::string_view> {
    const auto at = metadata.find(key);
    return at == metadata.end() ? std::nullopt : std::optional<std::string_view>(at->second);
  };
  check_file(value("spec").has_value(),
             "{}: the metadata has no \"spec\"; it holds the spec line, e.g. experts=8 top_k=2 "
             "hidden=64 inter=96 weights=nvfp4",
             source.name());
  CaseFile c;
  c.spec = parse_moe_spec(*value("spec"));
  MoeSpec& s = c.spec;
  s.routed = s.routed || file.has("topk_ids");
  check_file(!s.bias || file.has("gemm1_bias") || file.has("gemm2_bias"),
             "{}: the spec says bias=1, but there is no tensor gemm1_bias or gemm2_bias", source.name());
  s.bias = s.bias || file.has("gemm1_bias") || file.has("gemm2_bias");
  s.act_params = s.act_params || file.has("gemm1_alpha") || file.has("gemm1_beta") || file.has("gemm1_clamp_limit");

  c.hidden = file.need("hidden_states", "it holds the layer's input [T, H]");
  file.check_type("hidden_states", c.hidden, {s.dtype});
  check_file(c.hidden.rank() == 2 && c.hidden.dim(1) == s.hidden,
             "{}: tensor hidden_states has shape {}; the spec needs [T, {}]", source.name(),
             to_string(c.hidden.shape()), s.hidden);
  c.tokens = s.tokens = c.hidden.dim(0);
  validate(s);

  GateUpOrder order = GateUpOrder::gate_up;
  if (s.gated()) {
    check_file(
        value("w13_order").has_value(),
        "{}: the metadata has no \"w13_order\"; act {} has a gate, so gate_up, up_gate or interleaved must say how "
        "the rows of gemm1_weights lie",
        source.name(), name_of(activation::kActivations, s.act));
    order = parse_name(weights::kGateUpOrders, "w13_order", *value("w13_order"));
  }
  read_routing(file, c);
  read_weights(file, c, order);
  file.refuse_the_rest();
  check_weights(s, c.weights);
  return c;
}

}  // namespace

CaseFile read_case(const io::SafetensorsFile& source) {
  try {
    return read(source);
  } catch (const Error& e) {  // of the spec line and of the operator's own checks, which know no file
    if (e.code() != ErrorCode::invalid_argument) throw;
    fail(ErrorCode::bad_file, "{}: {}", source.name(), e.what());
  }
}

MoeArgs CaseFile::args() const {
  MoeArgs a;
  a.tokens = tokens;
  a.hidden = hidden.data();
  if (!logits.empty()) a.logits = logits.data(), a.logits_dtype = logits.dtype();
  if (!bias.empty()) a.bias = bias.data(), a.bias_dtype = bias.dtype();
  if (!ids.empty()) a.topk_ids = ids.as<int32_t>();
  if (!given_weights.empty()) a.topk_weights = given_weights.data(), a.topk_weights_dtype = given_weights.dtype();
  return a;
}

}  // namespace sluice::moe
