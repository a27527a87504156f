// SPDX-License-Identifier: Apache-2.0
#include "model/models.h"

#include "model/families.h"

namespace sluice::model {

namespace {
struct Family {
  std::string_view architecture, model_type;
  Decoder::Parts (*load)(const Source&);
};

constexpr Family kFamilies[] = {
    {"Qwen3MoeForCausalLM", "qwen3_moe", load_qwen3_moe},
    {"NemotronHForCausalLM", "nemotron_h", load_nemotron_h},
    {"DeepseekV3ForCausalLM", "deepseek_v3", load_deepseek_v3},
};

const Family& family_of(const io::Config& config) {
  // architectures[0] decides; some published configurations have only model_type.
  std::string name = config.string("model_type", "");
  if (config.has("architectures")) {
    const std::vector<std::string> names = config.strings("architectures");
    if (names.empty()) config.refuse("architectures", "is empty; accepted: " + model_names());
    name = names.front();
  }
  for (const Family& f : kFamilies)
    if (name == f.architecture || name == f.model_type) return f;
  fail(ErrorCode::unsupported, "{}: architecture \"{}\" is not known; accepted: {}", config.source(), name,
       model_names());
}
// generation_config.json says what ends a text; published checkpoints without it say it in config.json.
std::vector<int32_t> stop_tokens(const io::Checkpoint& checkpoint) {
  const auto& generation = checkpoint.generation_config();
  const io::Config& c = generation && generation->has("eos_token_id") ? *generation : checkpoint.config();
  std::vector<int32_t> ids;
  if (c.has("eos_token_id"))
    for (const int64_t id : c.integers("eos_token_id", {0, int64_t{1} << 30})) ids.push_back(static_cast<int32_t>(id));
  return ids;
}
}  // namespace

std::string model_names() {
  std::string all;
  for (const Family& f : kFamilies) all.append(all.empty() ? "" : ", ").append(f.architecture);
  return all;
}

std::unique_ptr<Model> load_model(Context& ctx, const LoadOptions& options) {
  const Source source(ctx, options);
  const Family& family = family_of(source.config());
  Decoder::Parts parts = family.load(source);
  source.finish();
  parts.info.architecture = family.architecture;
  parts.info.dtype = options.dtype;
  parts.info.stop_tokens = stop_tokens(source.checkpoint());
  return std::make_unique<Decoder>(std::move(parts));
}

}  // namespace sluice::model
