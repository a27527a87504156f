// SPDX-License-Identifier: Apache-2.0
#include "model/moe_config.h"

#include <cmath>

#include "model/config.h"

namespace sluice::model {

namespace {
// `key`: the name of the number of experts in published checkpoints; transformers 5 writes num_local_experts.
MoeConfig read_sizes(const io::Config& c, std::string_view key) {
  MoeConfig out;
  out.experts = {c.integer({key, "num_local_experts"}, {1, 32767}), key};
  out.top_k = c.integer("num_experts_per_tok", {1, 4096});
  out.inter = c.integer("moe_intermediate_size", kSize);
  return out;
}

void check_top_k(const io::Config& c, const MoeConfig& m) {
  const int64_t allowed = m.experts.n / m.groups * m.top_groups;
  if (m.top_k <= allowed) return;
  c.refuse("num_experts_per_tok", m.groups > 1
                                      ? fmt::format("is {}, more than the {} experts of topk_group = {} groups",
                                                    m.top_k, allowed, m.top_groups)
                                      : fmt::format("is {}, more than {} = {}", m.top_k, m.experts.keys, m.experts.n));
}
}  // namespace

MoeConfig read_softmax_moe(const io::Config& c) {
  MoeConfig out = read_sizes(c, "num_experts");
  check_top_k(c, out);
  out.routing = c.boolean("norm_topk_prob", false) ? routing::Method::renormalize_naive : routing::Method::softmax;
  return out;
}

MoeConfig read_sigmoid_moe(const io::Config& c, const SigmoidDefaults& defaults) {
  MoeConfig out = read_sizes(c, "n_routed_experts");
  out.routing = routing::Method::deepseek_v3;
  out.groups = c.integer("n_group", {1, 4096}, defaults.groups);
  out.top_groups = c.integer("topk_group", {1, 4096}, defaults.top_groups);
  if (out.experts.n % out.groups != 0 || (out.groups > 1 && out.experts.n / out.groups < 2))
    c.refuse("n_group", fmt::format("is {}; it must divide {} = {} into equal groups of 2 or more", out.groups,
                                    out.experts.keys, out.experts.n));
  if (out.top_groups > out.groups)
    c.refuse("topk_group", fmt::format("is {}, more than n_group = {}", out.top_groups, out.groups));
  check_top_k(c, out);
  out.routed_scale = static_cast<float>(c.number("routed_scaling_factor", kScale, defaults.routed_scale));
  require_bool(c, "norm_topk_prob", true, "sigmoid routing with a correction bias renormalises");
  return out;
}

MoeBlock load_moe_block(const WeightReader& s, const MoeConfig& c, activation::Activation act,
                        const std::string& module, int64_t layer, Dim hidden, Dim width) {
  MoeBlock m;
  m.index = static_cast<int>(layer);
  m.experts_name = module + "experts";
  m.router = s.dense(module + "gate", c.experts, hidden);
  if (routing::takes_bias(c.routing)) {
    const std::string name = module + "gate.e_score_correction_bias";
    const Tensor bias = s.floats(name, {c.experts});
    // Its experts would be chosen always or never, which no output shows.
    for (int64_t i = 0; i < bias.elements(); ++i)
      check_file(std::isfinite(bias.as<float>()[i]), "{}: {} holds {}; accepted: finite values",
                 s.options().path.string(), name, bias.as<float>()[i]);
    m.router_bias = s.to_device(bias);
  }
  MoeSpec spec;
  spec.top_k = static_cast<int>(c.top_k);
  spec.act = act;
  spec.routing = c.routing;
  spec.groups = static_cast<int>(c.groups);
  spec.top_groups = static_cast<int>(c.top_groups);
  spec.routed_scale = c.routed_scale;
  const LoadOptions& o = s.options();
  m.random_routing = o.random_routing;
  const std::string& backend = c.draft && !o.draft_moe_backend.empty() ? o.draft_moe_backend : o.moe_backend;
  m.experts = s.experts(m.experts_name, {c.experts, {c.inter, "moe_intermediate_size"}, width}, spec, backend);
  return m;
}

void check_no_shared_experts(const WeightReader& s, const std::string& module) {
  const std::string up = module + "shared_experts.up_proj";
  check_file(!s.contains_module(up), "{} has shared experts ({}), but {} says that there are none (n_shared_experts)",
             s.options().path.string(), up, s.config().source());
}

}  // namespace sluice::model
