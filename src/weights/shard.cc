// SPDX-License-Identifier: Apache-2.0
#include "weights/shard.h"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/math.h"
#include "format/quantize_rows.h"

namespace sluice::weights {

namespace {

// Rows [experts) and columns [cols) of a float tensor [E, C]; empty stays empty.
Tensor cut_rows(const Tensor& t, Range experts, Range cols) {
  if (t.empty()) return {};
  Tensor part(DType::f32, {experts.size(), cols.size()});
  for (int64_t e = 0; e < experts.size(); ++e)
    std::memcpy(part.as<float>() + e * cols.size(), t.as<float>() + (experts.begin + e) * t.dim(1) + cols.begin,
                static_cast<size_t>(cols.size()) * sizeof(float));
  return part;
}

Tensor cut_experts(const Tensor& t, Range experts) {
  return t.empty() ? Tensor{} : t.rows(experts.begin, experts.end).clone();
}

}  // namespace

void validate(const Shard& s) {
  check(s.tp_size >= 1 && s.tp_rank >= 0 && s.tp_rank < s.tp_size,
        "tensor-parallel rank {} of {}; it must be at least 0 and below the size", s.tp_rank, s.tp_size);
  check(s.ep_size >= 1 && s.ep_rank >= 0 && s.ep_rank < s.ep_size,
        "expert-parallel rank {} of {}; it must be at least 0 and below the size", s.ep_rank, s.ep_size);
}

int64_t cut_of(format::Format weights, format::InputFormat inputs) {
  const int64_t codes = info(weights).bits == 4 ? 2 : 1;
  return std::lcm(std::lcm<int64_t>(info(weights).cut(), codes), std::max(format::group_of(inputs), 1));
}

Range part_of(int64_t size, int64_t cut, int rank, int ranks) {
  const int64_t units = ceil_div(size, cut);
  const auto begin = [&](int64_t r) { return std::min(size, ceil_div<int64_t>(units * r, ranks) * cut); };
  return {begin(rank), begin(rank + 1)};
}

ExpertWeights shard(const ExpertWeights& w, const Shard& s, format::InputFormat inputs) {
  validate(s);
  const Range experts = part_of(w.up.experts, 1, s.ep_rank, s.ep_size);
  const Range inter = part_of(w.up.rows, cut_of(w.up.format, inputs), s.tp_rank, s.tp_size);
  const Range hidden{0, w.up.cols};
  ExpertWeights part;
  part.up = cut(w.up, experts, inter, hidden);
  if (!w.gate.empty()) part.gate = cut(w.gate, experts, inter, hidden);
  part.down = cut(w.down, experts, hidden, inter);
  part.input_scale1 = w.input_scale1;
  part.input_scale2 = w.input_scale2;
  part.bias_up = cut_rows(w.bias_up, experts, inter);
  part.bias_gate = cut_rows(w.bias_gate, experts, inter);
  part.bias_down = cut_rows(w.bias_down, experts, hidden);
  if (s.tp_rank != 0 && !part.bias_down.empty()) part.bias_down.zero();
  part.alpha = cut_experts(w.alpha, experts);
  part.beta = cut_experts(w.beta, experts);
  part.limit = cut_experts(w.limit, experts);
  return part;
}

}  // namespace sluice::weights
