// SPDX-License-Identifier: Apache-2.0
#include "model/weight_reader.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/bf16.h"
#include "moe/select.h"
#include "moe/staged_layer.h"
#include "ops/device_stage.h"
#include "weights/dummy.h"
#include "weights/load.h"
#include "weights/stored.h"
#include "weights/tied_head.h"

namespace sluice::model {

namespace {
weights::LoaderOptions loader_options(const LoadOptions& o, weights::DeviceStage* stage) {
  check(o.dtype == DType::bf16 || o.dtype == DType::f32, "dtype is {}; accepted: bfloat16, float32",
        to_string(o.dtype));
  check(!o.kv_dtype || *o.kv_dtype == o.dtype || *o.kv_dtype == DType::e4m3,
        "the cache's dtype is {} with dtype {}; accepted: {}, float8_e4m3fn", to_string(*o.kv_dtype),
        to_string(o.dtype), to_string(o.dtype));
  weights::LoaderOptions out;
  check(o.quantization_rest.empty() || !o.quantization.empty(),
        "quantization_rest is \"{}\", but quantization is not given; it names the format of the experts",
        o.quantization_rest);
  check(o.quantization_head.empty() || !o.quantization.empty(),
        "quantization_head is \"{}\", but quantization is not given; it names the format of the experts",
        o.quantization_head);
  if (!o.quantization.empty())
    out.online = weights::parse_online_policy(o.quantization, o.quantization_rest, o.quantization_head);
  out.nvfp4_per_token = o.nvfp4_per_token;
  out.amax = o.amax;
  out.dummy = o.dummy;
  out.stage = stage;
  return out;
}

// Float32 runs multiply values that are dequantised on the host.
std::unique_ptr<weights::DeviceStage> make_stage(Context& ctx, const LoadOptions& o) {
  return o.dtype == DType::bf16 ? ops::make_device_stage(ctx) : nullptr;
}

ops::LinearOptions linear_options(const LoadOptions& o, const weights::LoadedLinear& loaded) {
  ops::LinearOptions out;
  out.inputs = loaded.inputs;
  out.dtype = o.dtype;
  out.input_scale = loaded.input_scale;
  out.deterministic = o.deterministic;
  out.fp8_f32_sums = o.fp8_f32_sums;
  return out;
}

Shape sizes(Dims dims) {
  Shape shape;
  for (const Dim& d : dims) shape.push_back(d.n);
  return shape;
}
}  // namespace

struct WeightReader::Impl {
  std::unique_ptr<weights::DeviceStage> stage{};  // of a model on a GPU, where it makes its weights there
  Context silent;  // without progress, for the loaders of dummy weights, each of which reads one module
  std::optional<weights::Loader> loader{};
  std::shared_ptr<moe::Staging> staging{};  // of all experts that run on another device than the model
  std::shared_ptr<const WeightParts> old{};
  std::vector<std::string> changed{};  // tensors, sorted
  std::shared_ptr<WeightParts> made = std::make_shared<WeightParts>();
  NeededTensors* list = nullptr;
};

WeightReader::WeightReader(Context& ctx, const LoadOptions& options)
    : ctx_(ctx),
      options_(options),
      impl_(std::make_unique<Impl>(
          Impl{make_stage(ctx, options), {ctx.pool, ctx.log, [](const Progress&) {}, ctx.queue}, {}, {}, {}, {}})) {
  impl_->loader.emplace(ctx,
                        options.dummy ? io::Checkpoint::open_configs(options.path) : io::Checkpoint::open(options.path),
                        loader_options(options, impl_->stage.get()));
}

WeightReader::WeightReader(Context& ctx, const LoadOptions& options, io::Checkpoint checkpoint,
                           std::shared_ptr<const WeightParts> parts, std::vector<std::string> changed)
    : ctx_(ctx),
      options_(options),
      impl_(std::make_unique<Impl>(Impl{make_stage(ctx, options),
                                        {ctx.pool, ctx.log, [](const Progress&) {}, ctx.queue},
                                        {},
                                        {},
                                        std::move(parts),
                                        std::move(changed)})) {
  impl_->loader.emplace(ctx, std::move(checkpoint), loader_options(options, impl_->stage.get()));
}
WeightReader::WeightReader(Context& ctx, const LoadOptions& options, io::Checkpoint checkpoint, NeededTensors& list)
    : ctx_(ctx), options_(options), impl_(std::make_unique<Impl>(Impl{.silent = {ctx.pool}, .list = &list})) {
  impl_->loader.emplace(ctx, std::move(checkpoint), loader_options(options, nullptr));
}
WeightReader::~WeightReader() = default;

std::shared_ptr<const WeightParts> WeightReader::parts() const { return impl_->made; }

// Whether no tensor of the module is among those that changed.
bool WeightReader::unchanged(const std::string& module) const {
  if (!impl_->old) return false;
  const std::string prefix = module + ".";
  const auto first = std::lower_bound(impl_->changed.begin(), impl_->changed.end(), prefix);
  return first == impl_->changed.end() || !first->starts_with(prefix);
}

void WeightReader::end_progress() const { impl_->loader->end_progress(); }
const io::Checkpoint& WeightReader::checkpoint() const { return impl_->loader->checkpoint(); }

// Dummy tensors are made when they are asked for, so that only one module at a time is in memory twice. The checkpoint
// is replaced by one that holds just these tensors, which are then read like all others.
void WeightReader::add_dummies(std::initializer_list<std::pair<std::string, Shape>> tensors, DType dtype) const {
  if (!options_.dummy) return;
  std::vector<std::pair<std::string, Tensor>> made;
  for (const auto& [name, shape] : tensors)
    made.emplace_back(name, weights::dummy_tensor(ctx_.pool, name, dtype, shape));
  impl_->loader.emplace(impl_->silent, checkpoint().with_tensors(made), loader_options(options_, impl_->stage.get()));
}

bool WeightReader::lists() const { return impl_->list != nullptr; }

bool WeightReader::list(const std::string& name, const Shape& shape) const {
  if (!lists()) return false;
  impl_->list->all.push_back({name, shape});
  impl_->list->largest = std::max(impl_->list->largest, elements_of(shape));
  return true;
}

bool WeightReader::list_module(const std::string& module, const Shape& shape) const {
  if (!lists()) return false;
  if (!contains_module(module)) return list(module + ".weight", shape);
  list_stored(module, weights::linear_names(checkpoint(), module), shape);
  return true;
}

// Packed codes have fewer bytes than columns: those are the loader's to check.
void WeightReader::list_stored(const std::string& module, const weights::StoredNames& names, const Shape& shape) const {
  const std::optional<DType> type = checkpoint().find(names.weight)->dtype->dtype;
  list(names.weight, shape);
  if (type == DType::u8 || type == DType::i8) impl_->list->all.back().shape = std::nullopt;
  for (const std::string& scale :
       weights::needed_scales(checkpoint(), impl_->loader->scheme(), module, names, options_.nvfp4_per_token))
    impl_->list->all.push_back({scale, std::nullopt});
}

bool WeightReader::list_experts(const std::string& module, const ExpertDims& dims, bool gated) const {
  if (!lists()) return false;
  const auto [experts, inter, hidden] = std::tuple(dims.experts.n, dims.inter.n, dims.hidden.n);
  const std::vector<std::pair<std::string, Shape>> fused{
      {gated ? "gate_up_proj" : "up_proj", {experts, gated ? 2 * inter : inter, hidden}},
      {"down_proj", {experts, hidden, inter}}};
  bool any_fused = false;
  for (const auto& [projection, shape] : fused) {
    impl_->list->largest = std::max(impl_->list->largest, elements_of(shape));
    any_fused = any_fused || !weights::fused_names(checkpoint(), module, projection).weight.empty();
  }
  if (any_fused && !contains_module(module + ".0.up_proj")) {
    for (const auto& [projection, shape] : fused) {
      const weights::StoredNames names = weights::fused_names(checkpoint(), module, projection);
      if (names.weight.empty())
        list(module + "." + projection, shape);
      else
        list_stored(module, names, shape);
    }
    return true;
  }
  for (int64_t e = 0; e < experts; ++e) {
    const std::string one = fmt::format("{}.{}.", module, e);
    if (gated) list_module(one + "gate_proj", {inter, hidden});
    list_module(one + "up_proj", {inter, hidden});
    list_module(one + "down_proj", {hidden, inter});
  }
  return true;
}

const io::Config& WeightReader::config() const { return checkpoint().config(); }
bool WeightReader::contains(std::string_view name) const { return checkpoint().contains(name); }
bool WeightReader::contains_module(const std::string& module) const {
  return contains(module + ".weight") || contains(module + ".weight_packed");
}

std::string WeightReader::first_of(std::initializer_list<std::string> names) const {
  std::string all;
  for (const std::string& name : names) {
    if (options_.dummy || contains(name)) return name;
    all += (all.empty() ? "\"" : ", \"") + name + "\"";
  }
  if (lists()) return *names.begin();
  fail(ErrorCode::bad_file, "{} has none of the tensors {}", options_.path.string(), all);
}

void WeightReader::warn_of_more_layers(std::string_view prefix, Dim layers) const {
  if (lists() || options_.dummy || impl_->old) return;
  std::string first;
  int64_t others = -1;
  for (const std::string& name : checkpoint().names()) {
    if (!name.starts_with(prefix)) continue;
    const char* const end = name.data() + name.size();
    int64_t layer = 0;
    const auto [rest, error] = std::from_chars(name.data() + prefix.size(), end, layer);
    if (error != std::errc() || rest == end || *rest != '.' || layer < layers.n) continue;
    if (++others == 0) first = name;
  }
  if (others < 0) return;
  ctx_.log(LogLevel::warning,
           fmt::format("{} and {} other tensors are not used: {} says that there are {} layers ({})",
                       checkpoint().source_of(first), others, config().source(), layers.n, layers.keys));
}

void WeightReader::verify_shape(const std::string& name, Dims shape) const {
  const io::SafetensorsEntry* entry = checkpoint().find(name);
  std::string keys;
  for (const Dim& d : shape) keys.append(keys.empty() ? "" : ", ").append(d.keys);
  check_file(entry != nullptr, "{}: tensor \"{}\" is missing; {} asks for it with shape {} ({})",
             options_.path.string(), name, config().source(), to_string(sizes(shape)), keys);
  check_file(entry->shape == sizes(shape), "{} has shape {}, but {} asks for {} ({})", checkpoint().source_of(name),
             to_string(entry->shape), config().source(), to_string(sizes(shape)), keys);
}

// Packed codes have fewer bytes than columns, or names of their own: those are the loader's to check.
void WeightReader::verify_module(const std::string& module, Dim rows, Dim cols) const {
  const io::SafetensorsEntry* entry = checkpoint().find(module + ".weight");
  const bool packed = entry != nullptr ? entry->dtype->dtype == DType::u8 : contains(module + ".weight_packed");
  if (!packed) verify_shape(module + ".weight", {rows, cols});
}

void WeightReader::verify_experts(const std::string& module, const ExpertDims& dims, bool gated) const {
  const auto expert = [&](int64_t e) { return fmt::format("{}.{}.up_proj", module, e); };
  const std::string fused = module + (gated ? ".gate_up_proj" : ".up_proj");
  if (const io::SafetensorsEntry* entry = checkpoint().find(fused); entry && entry->dtype->dtype != DType::u8) {
    Dim rows = dims.inter;
    if (gated) rows.n *= 2;
    verify_shape(fused, {dims.experts, rows, dims.hidden});
  } else if (contains(expert(0) + ".weight") || contains(expert(0) + ".weight_packed")) {
    verify_module(expert(0), dims.inter, dims.hidden);
    verify_module(expert(dims.experts.n - 1), dims.inter, dims.hidden);
    const std::string next = expert(dims.experts.n) + ".weight";
    check_file(!contains(next), "{} exists, but {} says {} experts ({})", checkpoint().source_of(next),
               config().source(), dims.experts.n, dims.experts.keys);
  }
}

Tensor WeightReader::floats(const std::string& name, Dims shape) const {
  if (list(name, sizes(shape))) return Tensor(DType::f32, sizes(shape)).zero();
  add_dummies({{name, sizes(shape)}}, DType::f32);
  verify_shape(name, shape);
  return impl_->loader->floats(name, sizes(shape));
}

float WeightReader::cache_scale(const std::string& attention, std::string_view which) const {
  // ModelOpt's name, and compressed-tensors'.
  for (const std::string& name :
       {fmt::format("{}{}_proj.{}_scale", attention, which, which), fmt::format("{}{}_scale", attention, which)}) {
    const io::SafetensorsEntry* entry = checkpoint().find(name);
    if (entry == nullptr || options_.kv_dtype != DType::e4m3 || lists()) continue;
    const Tensor values = impl_->loader->floats(name, entry->shape);
    const float scale = values.elements() == 1 ? *values.as<float>() : 0;
    check_file(scale > 0 && std::isfinite(scale), "{} is {}; accepted: one positive number",
               checkpoint().source_of(name),
               values.elements() == 1 ? fmt::format("{}", scale) : fmt::format("{} numbers", values.elements()));
    return scale;
  }
  return 1;
}

bool WeightReader::makes_dummies() const { return options_.dummy && impl_->stage != nullptr; }

Tensor WeightReader::embedding(const std::string& name, Dims shape) const {
  if (list(name, sizes(shape))) return {};
  if (makes_dummies()) {
    Tensor made(ctx_.device(), DType::bf16, sizes(shape));
    impl_->stage->fill_dummy(made, weights::dummy_range(name, made.shape()), 0, made.elements() / made.dim(0));
    return made;
  }
  add_dummies({{name, sizes(shape)}}, DType::bf16);
  verify_shape(name, shape);
  const Tensor t = checkpoint().tensor(name);
  if (t.dtype() == DType::f16)  // the file is right: matrices and norms of this type are read
    fail(ErrorCode::unsupported, "{} is {}; an embedding is accepted in bfloat16 and float32",
         checkpoint().source_of(name), to_string(t.dtype()));
  check_file(t.dtype() == DType::bf16 || t.dtype() == DType::f32, "{} is {}; accepted here: bfloat16, float32",
             checkpoint().source_of(name), to_string(t.dtype()));
  if (impl_->stage && t.dtype() == DType::bf16) {
    Tensor placed(ctx_.device(), DType::bf16, sizes(shape));
    const weights::DeviceStage::Copy copy{placed.address(), t.data(), t.bytes()};
    impl_->stage->upload({&copy, 1});
    return placed;
  }
  return impl_->loader->copy(name);  // not a view: the file may be cut or written to after the loading
}

Tensor WeightReader::to_device(const Tensor& host) const {
  const DeviceId id = ctx_.device().id();
  if (host.device() == id || lists()) return host;
  Tensor placed = host.to(id, ctx_.queue);
  ctx_.queue.wait();
  return placed;
}

ops::RmsNorm WeightReader::norm(const std::string& name, Dim size, float eps) const {
  return {to_device(floats(name, {size})), eps};
}

// A module as it was read: its weight in a number format or in float32, and its bias.
struct WeightReader::Module {
  std::string name;
  weights::QuantTensor w;
  Tensor floats;  // float32 [N, K]; empty: the weight is w
  Tensor bias;    // f32 [N] or empty
  ops::LinearOptions options;

  // Whether one matrix product may hold both, because both round their input rows in the same way.
  bool reads_as(const Module& other) const {
    return floats.empty() && other.floats.empty() && w.format == other.w.format &&
           options.inputs == other.options.inputs && options.input_scale == other.options.input_scale;
  }
};

WeightReader::Module WeightReader::read_module(const std::string& module, Dim rows, Dim cols, Bias bias) const {
  Module m;
  m.name = module;
  if (bias == Bias::present) m.bias = floats(module + ".bias", {rows});
  check_file(bias == Bias::present || !contains(module + ".bias"),
             "{} exists, but {} says that this projection has no bias", checkpoint().source_of(module + ".bias"),
             config().source());
  const auto keep = [&](weights::LoadedLinear loaded) {
    m.options = linear_options(options_, loaded);
    m.w = std::move(loaded.w);
    return m;
  };
  if (makes_dummies()) return keep(impl_->loader->dummy_linear(module, rows.n, cols.n));
  const std::string weight = module + ".weight";
  add_dummies({{weight, {rows.n, cols.n}}}, DType::bf16);
  verify_module(module, rows, cols);
  if (const io::SafetensorsEntry* entry = checkpoint().find(weight); entry && entry->dtype->dtype == DType::f32) {
    m.floats = floats(weight, {rows, cols});
    return m;
  }
  return keep(impl_->stage ? impl_->loader->staged_linear(module, rows.n, cols.n)
                           : impl_->loader->linear(module, rows.n, cols.n, weights::Codes::in_place));
}

Dense WeightReader::dense(const std::string& module, Dim rows, Dim cols, Bias bias) const {
  return dense({{module, rows}}, cols, bias);
}

Dense WeightReader::dense(const std::vector<DenseModule>& modules, Dim cols, Bias bias) const {
  if (lists()) {
    for (const DenseModule& m : modules) {
      list_module(m.name, {m.rows.n, cols.n});
      if (bias == Bias::present) list(m.name + ".bias", {m.rows.n});
    }
    return {};
  }
  std::string key;
  bool same = true;
  for (const DenseModule& m : modules) {
    key += m.name + " ";
    same = same && unchanged(m.name);
  }
  Dense& made = impl_->made->dense[key];
  return made = same ? impl_->old->dense.at(key) : read_dense(modules, cols, bias);
}

Dense WeightReader::read_dense(const std::vector<DenseModule>& modules, Dim cols, Bias bias) const {
  std::vector<Module> read;
  for (const DenseModule& m : modules) read.push_back(read_module(m.name, m.rows, cols, bias));
  Dense out;
  for (size_t begin = 0, end = 0; begin < read.size(); begin = end) {
    std::vector<std::string> names;
    std::vector<weights::QuantTensor> parts;
    std::vector<float> biases;
    for (end = begin; end < read.size() && (end == begin || read[end].reads_as(read[begin])); ++end) {
      const Module& m = read[end];
      names.push_back(m.name);
      parts.push_back(m.w);
      if (!m.bias.empty()) biases.insert(biases.end(), m.bias.as<float>(), m.bias.as<float>() + m.bias.elements());
    }
    Tensor all;
    if (!biases.empty()) {
      all = Tensor(DType::f32, {static_cast<int64_t>(biases.size())});
      std::copy(biases.begin(), biases.end(), all.as<float>());
    }
    const Module& first = read[begin];
    std::shared_ptr<const ops::Linear> linear = first.floats.empty() ? ops::make_linear(ctx_, parts, all, first.options)
                                                                     : ops::make_float_linear(ctx_, first.floats, all);
    out.append({std::move(names), std::move(linear)});
  }
  return out;
}

Dense WeightReader::tied_head(const std::string& module, const Tensor& weight) const {
  if (lists()) return {};
  checkpoint().note(module + ".weight");  // many trainers send it beside the embedding
  weights::check_tied_head(checkpoint(), module);
  if (weight.dtype() == DType::f32) return {{module}, ops::make_float_linear(ctx_, weight)};
  const weights::LoadedLinear loaded = impl_->loader->tied_head(module, weight);
  return {{module}, ops::make_linear(ctx_, {&loaded.w, 1}, {}, linear_options(options_, loaded))};
}

Tensor WeightReader::dequantized(const std::string& module, Dim rows, Dim cols) const {
  if (list_module(module, {rows.n, cols.n})) return {};
  add_dummies({{module + ".weight", {rows.n, cols.n}}}, DType::bf16);
  verify_module(module, rows, cols);
  const weights::QuantTensor w = impl_->loader->linear(module, rows.n, cols.n).w;
  if (w.format == format::Format::bf16) return w.codes.reshape({rows.n, cols.n});
  const Tensor values = weights::dequantize(w).reshape({rows.n, cols.n});
  if (options_.dtype == DType::f32) return values;
  Tensor rounded(DType::bf16, {rows.n, cols.n});
  for (int64_t i = 0; i < values.elements(); ++i) rounded.as<bf16_t>()[i] = float_to_bf16(values.as<float>()[i]);
  return rounded;
}

std::shared_ptr<const moe::MoeLayer> WeightReader::experts(const std::string& module, const ExpertDims& dims,
                                                           MoeSpec spec, std::string_view backend) const {
  if (list_experts(module, dims, spec.gated())) return nullptr;
  std::shared_ptr<const moe::MoeLayer>& made = impl_->made->experts[module];
  return made = unchanged(module) ? impl_->old->experts.at(module) : read_experts(module, dims, spec, backend);
}

std::shared_ptr<const moe::MoeLayer> WeightReader::read_experts(const std::string& module, const ExpertDims& dims,
                                                                MoeSpec spec, std::string_view backend) const {
  spec.experts = static_cast<int>(dims.experts.n);
  spec.inter = dims.inter.n;
  spec.hidden = dims.hidden.n;
  spec.dtype = options_.dtype;
  weights::ExpertNames names;
  names.module = module;
  if (!spec.gated()) names.gate.clear();
  const weights::ExpertShape shape{spec.experts, spec.inter, spec.hidden};
  const bool on_device = impl_->stage != nullptr && moe::takes_weights_on(ctx_.device().id(), backend);
  std::optional<weights::LoadedExperts> made;
  if (on_device && options_.dummy) made = impl_->loader->dummy_experts(names, shape);
  if (!made) {
    const int64_t rows = spec.gated() ? 2 * dims.inter.n : dims.inter.n;
    add_dummies({{module + (spec.gated() ? ".gate_up_proj" : ".up_proj"), {dims.experts.n, rows, dims.hidden.n}},
                 {module + ".down_proj", {dims.experts.n, dims.hidden.n, dims.inter.n}}},
                DType::bf16);
    verify_experts(module, dims, spec.gated());
    if (on_device && !options_.dummy) made = impl_->loader->staged_experts(names, shape);
    if (!made) made = impl_->loader->experts(names, shape, weights::Codes::in_place);
  }
  weights::LoadedExperts& loaded = *made;
  spec.inter = loaded.weights.up.rows;  // padded to whole scale groups
  spec.weights = loaded.format.weights;
  spec.inputs = loaded.format.inputs;
  spec.fp8_block_trtllm = options_.fp8_block_trtllm && spec.weights == format::Format::fp8_block;
  spec.fp8_f32_sums = options_.fp8_f32_sums && format::is_fp8(spec.weights);
  spec.deterministic = options_.deterministic;
  spec.bias = !loaded.weights.bias_up.empty();
  const moe::Backend& chosen = moe::select(spec, backend);
  if (!chosen.reads_apart()) loaded.weights = impl_->loader->stacked(std::move(loaded.weights));
  return chosen.prepare(ctx_, spec, loaded.weights);
}

}  // namespace sluice::model
