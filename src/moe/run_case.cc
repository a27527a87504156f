// SPDX-License-Identifier: Apache-2.0
#include "io/safetensors_writer.h"
#include "moe/case_file.h"
#include "moe/select.h"

namespace sluice::moe {

std::string_view run_case(Context& ctx, const CaseFile& c, std::string_view choice, bool trace,
                          const std::filesystem::path& out) {
  const MoeSpec& s = c.spec;
  const Backend& backend = select(s, choice);
  // Before the work: an output that cannot be written is said at once.
  io::SafetensorsWriter writer(out, {{"spec", to_string(s)}, {"backend", std::string(backend.name())}});
  const auto layer = backend.prepare(ctx, s, c.weights);

  Tensor output(s.dtype, s.finalize ? Shape{c.tokens, s.hidden} : Shape{c.tokens, s.top_k, s.hidden});
  Tensor ids(DType::i32, {c.tokens, s.top_k}), weights(DType::f32, {c.tokens, s.top_k});
  Tensor workspace(DType::u8, {layer->workspace_bytes(c.tokens)});
  Trace points;
  MoeArgs args = c.args();
  args.output = output.data();
  args.workspace = workspace.data();
  args.workspace_size = workspace.bytes();
  args.chosen_ids = ids.as<int32_t>();
  args.chosen_weights = weights.as<float>();
  if (trace) args.trace = &points;
  layer->run(ctx, args);

  std::vector<std::pair<std::string, Tensor>> tensors{{"output", output}};
  if (trace) {
    if (points.input.empty() && c.tokens > 0)
      fail(ErrorCode::unsupported, "backend {} keeps no trace; cpu and reference do", backend.name());
    tensors.insert(tensors.end(), {{"expert_ids", ids}, {"expert_weights", weights}});
    const std::pair<std::string, const Tensor*> all[] = {{"trace.input", &points.input},
                                                         {"trace.up", &points.up},
                                                         {"trace.gate", &points.gate},
                                                         {"trace.activated", &points.activated},
                                                         {"trace.down", &points.down}};
    for (const auto& [name, point] : all)
      if (!point->empty()) tensors.emplace_back(name, *point);
  }
  writer.write_all(tensors, ctx.progress);
  return backend.name();
}

}  // namespace sluice::moe
