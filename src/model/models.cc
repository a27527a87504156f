// SPDX-License-Identifier: Apache-2.0
#include "model/models.h"

#include <algorithm>

#include "io/tokenizer_json.h"
#include "model/config.h"
#include "model/families.h"
#include "model/memory_fit.h"

namespace sluice::model {

namespace {
struct Family {
  std::string_view architecture, model_type;
  Decoder::Parts (*load)(const WeightReader&);
  CacheShape (*cache)(const WeightReader&);
};

constexpr Family kFamilies[] = {
    {"Qwen3MoeForCausalLM", "qwen3_moe", load_qwen3_moe, cache_of_qwen3_moe},
    {"NemotronHForCausalLM", "nemotron_h", load_nemotron_h, cache_of_nemotron_h},
    {"DeepseekV3ForCausalLM", "deepseek_v3", load_deepseek_v3, cache_of_deepseek_v3},
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

// generation_config.json names the tokens that end a text; published checkpoints without it name them in config.json.
// An id beyond the vocabulary would never be generated, and the text would not end.
std::vector<int32_t> stop_tokens(const io::Checkpoint& checkpoint) {
  const auto& generation = checkpoint.generation_config();
  const io::Config& c = generation && generation->has("eos_token_id") ? *generation : checkpoint.config();
  std::vector<int32_t> ids;
  if (!c.has("eos_token_id")) return ids;
  const int64_t vocab = checkpoint.config().integer("vocab_size", kSize);
  for (const int64_t id : c.integers("eos_token_id", {0, int64_t{1} << 30})) {
    if (id >= vocab)
      c.refuse("eos_token_id", fmt::format("names the token {}; config.json's vocab_size is {}", id, vocab));
    ids.push_back(static_cast<int32_t>(id));
  }
  return ids;
}

LiveModel make_model(Context& ctx, const LoadOptions& options, const WeightReader& reader) {
  const Family& family = family_of(reader.config());
  std::vector<int32_t> stops = stop_tokens(reader.checkpoint());  // before the weights, which take long
  Decoder::Parts parts = family.load(reader);
  reader.end_progress();
  parts.embedding = reader.to_device(parts.embedding);
  if (parts.draft) parts.draft->embedding = reader.to_device(parts.draft->embedding);
  parts.info.architecture = family.architecture;
  parts.info.dtype = options.dtype;
  parts.info.kv_dtype = options.kv_dtype.value_or(options.dtype);
  parts.info.stop_tokens = std::move(stops);
  parts.info.row_invariant = options.deterministic || ops::traits_of(ctx.device().id()).row_invariant;
  // A reader of dummy weights holds those of the last module.
  return {std::make_unique<Decoder>(std::move(parts)),
          options.dummy ? reader.checkpoint().with_tensors({}) : reader.checkpoint(), reader.parts()};
}
}  // namespace

std::string model_names() {
  std::string all;
  for (const Family& f : kFamilies) all.append(all.empty() ? "" : ", ").append(f.architecture);
  return all;
}

text::Tokenizer load_tokenizer(const std::filesystem::path& folder) {
  const io::Checkpoint configs = io::Checkpoint::open_configs(folder);
  family_of(configs.config());
  const int64_t vocab = read_common(configs.config()).vocab;
  text::Tokenizer tokenizer(io::read_tokenizer(folder));
  check_file(tokenizer.vocab_size() <= vocab, "{}: tokenizer.json has ids up to {}, but config.json's vocab_size is {}",
             folder.string(), tokenizer.vocab_size() - 1, vocab);
  return tokenizer;
}

LiveModel load_live_model(Context& ctx, const LoadOptions& options, const CachePlan& cache) {
  const WeightReader reader(ctx, options);
  const DeviceId device = ctx.device().id();
  const DeviceMemory memory = ctx.device().memory();
  if (!options.dummy) check_fits(reader.checkpoint(), options, device, memory);
  if (cache) {
    CacheShape shape = family_of(reader.config()).cache(reader);
    shape.dtype = options.kv_dtype.value_or(options.dtype);
    // Elsewhere both are touched little by little, and weights may stay in their files.
    const bool both = !options.dummy && device.reserves_memory();
    check_cache_fits(both ? weight_bytes(reader.checkpoint(), options) : 0, shape,
                     cache(shape, read_common(reader.config()).max_positions), device, memory);
  }
  return make_model(ctx, options, reader);
}

LiveModel load_live_model(Context& ctx, const LoadOptions& options, const io::Checkpoint& source,
                          const std::shared_ptr<io::AskedNames>& asked) {
  const WeightReader reader(ctx, options, source.noting(asked), nullptr, {});
  check_fits(source, options, ctx.device().id(), ctx.device().memory());  // asks for all names that are there
  LiveModel made = make_model(ctx, options, reader);
  made.source = source.with_updates_of(*asked);
  return made;
}

NeededTensors needed_tensors(Context& ctx, const LoadOptions& options, const io::Checkpoint& checkpoint) {
  NeededTensors list;
  family_of(checkpoint.config()).load(WeightReader(ctx, options, checkpoint, list));
  return list;
}

std::unique_ptr<Model> load_model(Context& ctx, const LoadOptions& options, const CachePlan& cache) {
  return std::move(load_live_model(ctx, options, cache).model);
}

LiveModel update_live_model(Context& ctx, const LoadOptions& options, const LiveModel& now,
                            const std::vector<std::pair<std::string, Tensor>>& tensors) {
  std::vector<std::string> changed;
  for (const auto& [name, tensor] : tensors) changed.push_back(name);
  return update_live_model(ctx, options, now, now.source.updated(tensors), std::move(changed));
}

LiveModel update_live_model(Context& ctx, const LoadOptions& options, const LiveModel& now, io::Checkpoint source,
                            std::vector<std::string> changed) {
  now.source.check_unchanged();
  std::sort(changed.begin(), changed.end());
  return make_model(ctx, options, WeightReader(ctx, options, std::move(source), now.parts, std::move(changed)));
}

}  // namespace sluice::model
