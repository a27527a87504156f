// SPDX-License-Identifier: Apache-2.0
// ops_sm90: the operations of a Mamba-2 layer.
#include <algorithm>

#include "ops_sm90.h"

namespace sluice::bench {

// --- Mamba-2 of Nemotron-3-Nano: 64 heads of 64, state 128, 8 groups, 4 taps ---
void bench_mamba(Bench& b) {
  const MambaShape shape{64, 64, 8, 128, 4};
  const Tensor weight = b.tensor(DType::f32, {4, shape.channels()});
  const Tensor bias = b.floats(shape.channels()), dt_bias = b.floats(64), skip = b.floats(64),
               norm = b.floats(shape.inner());
  Tensor a(DType::f32, {64});
  std::fill_n(a.as<float>(), 64, -0.5f);
  const Tensor device_a = a.to(b.ctx().device().id(), b.queue());
  for (const auto& [sequences, rows] :
       {std::pair<int64_t, int64_t>{1, 1}, {64, 1}, {256, 1}, {1, 2048}, {1, 8192}, {16, 1024}}) {
    const std::string at = fmt::format("B={} rows {}", sequences, rows);
    const int64_t total = sequences * rows, floats = shape.heads * shape.state * shape.head_dim;
    if (!b.wants(label("causal_conv", at)) && !b.wants(label("state_scan", at)) && !b.wants(label("gated_norm", at)))
      continue;
    std::vector<int32_t> row_begin{0}, in, out(static_cast<size_t>(total), -1);
    for (int64_t s = 0; s < sequences; ++s) {
      row_begin.push_back(static_cast<int32_t>((s + 1) * rows));
      in.push_back(static_cast<int32_t>(s));
      out[static_cast<size_t>((s + 1) * rows - 1)] = static_cast<int32_t>(s);
    }
    const auto d_begin = b.ints(row_begin), d_in = b.ints(in), d_out = b.ints(out);
    Batch batch;
    batch.rows = total;
    batch.sequences = sequences;
    batch.row_begin = d_begin.get();
    batch.state_in = d_in.get();
    batch.state_out = d_out.get();
    batch.longest_rows = rows;
    const auto xbc = b.random(total * shape.channels() * 2), mixed = b.random(total * shape.channels() * 2);
    const auto dt = b.random(total * 64 * 2), y = b.random(total * shape.inner() * 4, DType::f32);
    const auto gate = b.random(total * shape.inner() * 2), normed = b.random(total * shape.inner() * 2);
    const auto conv_states = b.random(sequences * 3 * shape.channels() * 4, DType::f32);
    const int sets = static_cast<int>(std::clamp<int64_t>(200'000'000 / (sequences * floats * 4), 1, 16));
    const auto states = b.random(sets * sequences * floats * 4, DType::f32);
    const auto channels = static_cast<double>(total * shape.channels());
    const int calls = rows > 1 ? 4 : 16;
    b.row(label("causal_conv", at), 4 * channels + static_cast<double>(sequences * 6 * shape.channels() * 4), 0, calls,
          [&](int) {
            b.ops().causal_conv(batch, shape, bf16(xbc, total, shape.channels()), weight, bias,
                                {static_cast<float*>(conv_states.get()), 3 * shape.channels()},
                                bf16(mixed, total, shape.channels()));
          });
    const double moved =
        static_cast<double>(sequences * floats * 8) + 2 * channels + static_cast<double>(total * shape.inner() * 4);
    for (const bool row_invariant : {false, true}) {
      if (row_invariant && rows == 1) continue;
      b.row(label(row_invariant ? "state_scan row_invariant" : "state_scan", at), moved, 0, calls, [&](int i) {
        b.ops().state_scan(batch, shape, bf16(mixed, total, shape.channels()), bf16(dt, total, 64),
                           {dt_bias, device_a, skip, row_invariant},
                           {static_cast<float*>(states.get()) + (i % sets) * sequences * floats, floats},
                           f32(y, total, shape.inner()));
      });
    }
    b.row(label("gated_norm", at), static_cast<double>(total * shape.inner() * 8), 0, calls, [&](int) {
      b.ops().gated_group_rms_norm(f32(y, total, shape.inner()), bf16(gate, total, shape.inner()), 8, {norm},
                                   bf16(normed, total, shape.inner()));
    });
  }
}

}  // namespace sluice::bench
