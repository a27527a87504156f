// SPDX-License-Identifier: Apache-2.0
// What a spec line says, its routing, and one rank's part of its layer.
#include <algorithm>
#include <vector>

#include "capi/status.h"
#include "capi/view.h"
#include "routing/route.h"
#include "spec/moe_spec.h"
#include "weights/scale_grid.h"
#include "weights/shard.h"

using namespace sluice;
using capi::guard;
using capi::read_struct;
using capi::required;
using capi::write_struct;

struct sluice_moe_shard {
  MoeSpec spec;
  weights::ExpertWeights weights;
};

namespace {

MoeSpec read_spec(const char* line) {
  MoeSpec spec = parse_moe_spec(&required(line, "spec"));
  validate(spec);
  return spec;
}

// The tables' names are literals, so they end in a zero.
const char* text_of(std::string_view literal) { return literal.data(); }

sluice_moe_spec_info info_of(const MoeSpec& s) {
  sluice_moe_spec_info i{};
  i.experts = s.experts;
  i.top_k = s.top_k;
  i.hidden = s.hidden;
  i.inter = s.inter;
  i.local_offset = s.local_offset;
  i.local_experts = s.locals();
  i.weights = text_of(name_of(format::kFormats, s.weights));
  i.inputs = text_of(name_of(format::kInputFormats, s.inputs));
  i.dtype = s.dtype == DType::f32 ? SLUICE_F32 : SLUICE_BF16;
  i.gated = s.gated() ? 1 : 0;
  i.bias = s.bias ? 1 : 0;
  i.act_params = s.act_params ? 1 : 0;
  i.routed = s.routed ? 1 : 0;
  i.finalize = s.finalize ? 1 : 0;
  return i;
}

const char* type_name(DType type) {
  return type == DType::bf16   ? "bfloat16"
         : type == DType::e4m3 ? "float8_e4m3fn"
         : type == DType::e8m0 ? "float8_e8m0fnu"
         : type == DType::u8   ? "uint8"
                               : "float32";
}

sluice_format_info info_of(const format::FormatInfo& f) {
  sluice_format_info i{};
  i.bits = f.bits;
  i.code_type = type_name(weights::code_type(f));
  i.scale_type = f.scale == format::ScaleType::none ? "" : type_name(weights::scale_type(f));
  i.group_rows = f.group_n;
  i.group_cols = f.group_k;
  i.global_scale = f.global_scale ? 1 : 0;
  i.inputs = text_of(name_of(format::kInputFormats, f.input));
  return i;
}

void route(const MoeSpec& spec, const sluice_route_args& a) {
  check(!spec.routed, "the spec says routed=1: its ids and weights are given, and there is nothing to route");
  const routing::Values logits{a.logits, capi::dtype_of(a.logits_dtype, "args.logits_dtype") == DType::bf16};
  const routing::Values bias{a.bias, capi::dtype_of(a.bias_dtype, "args.bias_dtype") == DType::bf16};
  check(a.tokens >= 0, "tokens is {}; it must be 0 or more", a.tokens);
  if (a.tokens == 0) return;
  check(a.logits != nullptr, "args.logits is NULL; it must be given");
  check(a.bias == nullptr || routing::takes_bias(spec.routing), "a routing bias is given, but routing {} ignores it",
        name_of(routing::kMethods, spec.routing));
  const routing::Params params = spec.routing_params();
  std::vector<uint64_t> scratch(static_cast<size_t>(routing::route_scratch_bytes(params) + 7) / 8);
  routing::route(spec.routing, params, logits, bias, a.tokens, &required(a.ids, "args.ids"),
                 &required(a.weights, "args.weights"), scratch.data());
}

std::unique_ptr<sluice_moe_shard> make_shard(const MoeSpec& whole, const weights::ExpertWeights& w,
                                             const sluice_shard& s) {
  const weights::Shard shard{s.tp_rank, std::max(s.tp_size, 1), s.ep_rank, std::max(s.ep_size, 1)};
  check(s.tp_size >= 0 && s.ep_size >= 0, "tp_size is {} and ep_size {}; accepted: 1 or more", s.tp_size, s.ep_size);
  weights::validate(shard);
  const weights::Range experts = weights::part_of(whole.locals(), 1, shard.ep_rank, shard.ep_size);
  const weights::Range inter =
      weights::part_of(whole.inter, weights::cut_of(whole.weights, whole.inputs), shard.tp_rank, shard.tp_size);
  check(experts.size() > 0, "expert-parallel rank {} of {} would get none of {} experts", shard.ep_rank, shard.ep_size,
        whole.locals());
  check(inter.size() > 0, "tensor-parallel rank {} of {} would get none of inter={}, cut at multiples of {}",
        shard.tp_rank, shard.tp_size, whole.inter, weights::cut_of(whole.weights, whole.inputs));
  auto made = std::make_unique<sluice_moe_shard>(sluice_moe_shard{whole, weights::shard(w, shard, whole.inputs)});
  made->spec.inter = inter.size();
  made->spec.local_offset = whole.local_offset + static_cast<int>(experts.begin);
  made->spec.local_experts = experts.size() == whole.experts ? 0 : static_cast<int>(experts.size());
  return made;
}

sluice_matrices matrices_of(const weights::QuantTensor& w) {
  return {w.codes.data(), w.scales.data(), static_cast<const float*>(w.global.data())};
}

sluice_moe_weights weights_of(const weights::ExpertWeights& w) {
  const auto floats = [](const Tensor& t) { return static_cast<const float*>(t.data()); };
  sluice_moe_weights out{};
  out.up = matrices_of(w.up);
  out.gate = matrices_of(w.gate);
  out.down = matrices_of(w.down);
  out.input_scale1 = w.input_scale1;
  out.input_scale2 = w.input_scale2;
  out.bias_up = floats(w.bias_up);
  out.bias_gate = floats(w.bias_gate);
  out.bias_down = floats(w.bias_down);
  out.alpha = floats(w.alpha);
  out.beta = floats(w.beta);
  out.limit = floats(w.limit);
  return out;
}

}  // namespace

extern "C" {

sluice_status sluice_moe_read_spec(const char* spec, sluice_moe_spec_info* out) {
  return guard([&] { write_struct(info_of(read_spec(spec)), out, "out"); });
}

sluice_status sluice_format_get_info(const char* format, sluice_format_info* out) {
  return guard([&] {
    const format::Format f = parse_name(format::kFormats, "format", &required(format, "format"));
    write_struct(info_of(format::info(f)), out, "out");
  });
}

sluice_status sluice_route(const char* spec, const sluice_route_args* args) {
  return guard([&] { route(read_spec(spec), read_struct(args, "args", sizeof(sluice_route_args))); });
}

sluice_status sluice_moe_shard_create(const char* spec_line, const sluice_moe_weights* weights,
                                      const sluice_shard* shard, sluice_moe_shard** out) {
  return guard([&] {
    required(out, "out") = nullptr;
    const MoeSpec spec = read_spec(spec_line);
    *out = make_shard(spec, capi::view_weights(spec, weights), read_struct(shard, "shard", sizeof(sluice_shard)))
               .release();
  });
}

void sluice_moe_shard_destroy(sluice_moe_shard* shard) { delete shard; }

sluice_status sluice_moe_shard_spec(const sluice_moe_shard* shard, char* buffer, size_t size, size_t* needed) {
  return guard([&] { return capi::copy_text(to_string(required(shard, "shard").spec), buffer, size, needed); });
}

sluice_status sluice_moe_shard_weights(const sluice_moe_shard* shard, sluice_moe_weights* out) {
  return guard([&] { write_struct(weights_of(required(shard, "shard").weights), out, "out"); });
}
}
