// SPDX-License-Identifier: Apache-2.0
#include "model/source.h"

#include <cstring>
#include <optional>

#include "moe/select.h"
#include "ops/row.h"
#include "weights/dummy.h"
#include "weights/load.h"

namespace sluice::model {

namespace {
weights::LoadOptions loader_options(const LoadOptions& o) {
  check(o.dtype == DType::bf16 || o.dtype == DType::f32, "dtype is {}; accepted: bfloat16, float32",
        to_string(o.dtype));
  weights::LoadOptions out;
  if (!o.quantization.empty()) out.online = weights::parse_online_format(o.quantization);
  out.nvfp4_per_token = o.nvfp4_per_token;
  out.amax = o.amax;
  out.dummy = o.dummy;
  return out;
}

Shape sizes(Dims dims) {
  Shape shape;
  for (const Dim& d : dims) shape.push_back(d.n);
  return shape;
}
}  // namespace

struct Source::Impl {
  Context silent;  // of dummies, whose loaders each see one module
  std::optional<weights::Loader> loader;
};

Source::Source(Context& ctx, const LoadOptions& options)
    : ctx_(ctx), options_(options), impl_(std::make_unique<Impl>(Impl{{ctx.pool, ctx.log}, {}})) {
  impl_->loader.emplace(ctx,
                        options.dummy ? io::Checkpoint::open_configs(options.path) : io::Checkpoint::open(options.path),
                        loader_options(options));
}
Source::~Source() = default;

void Source::finish() const { impl_->loader->finish(); }
const io::Checkpoint& Source::checkpoint() const { return impl_->loader->checkpoint(); }

// Dummies are made when they are asked for, so what is in memory twice is one module: the checkpoint becomes one that
// holds just these tensors, which then go the way of every other.
void Source::offer(std::initializer_list<std::pair<std::string, Shape>> tensors, DType dtype) const {
  if (!options_.dummy) return;
  std::vector<std::pair<std::string, Tensor>> made;
  for (const auto& [name, shape] : tensors)
    made.emplace_back(name, weights::dummy_tensor(ctx_.pool, name, dtype, shape));
  impl_->loader.emplace(impl_->silent, checkpoint().with_tensors(made), loader_options(options_));
}

const io::Config& Source::config() const { return checkpoint().config(); }
bool Source::contains(std::string_view name) const { return checkpoint().contains(name); }

std::string Source::first_of(std::initializer_list<std::string> names) const {
  std::string all;
  for (const std::string& name : names) {
    if (keeps(name)) return name;
    all += (all.empty() ? "\"" : ", \"") + name + "\"";
  }
  fail(ErrorCode::bad_file, "{} has none of the tensors {}", options_.path.string(), all);
}

void Source::verify_shape(const std::string& name, Dims shape) const {
  const io::SafetensorsEntry* entry = checkpoint().find(name);
  std::string keys;
  for (const Dim& d : shape) keys.append(keys.empty() ? "" : ", ").append(d.keys);
  check_file(entry != nullptr, "{}: tensor \"{}\" is missing; {} asks for it with shape {} ({})",
             options_.path.string(), name, config().source(), to_string(sizes(shape)), keys);
  check_file(entry->shape == sizes(shape), "{} has shape {}, but {} asks for {} ({})", checkpoint().source_of(name),
             to_string(entry->shape), config().source(), to_string(sizes(shape)), keys);
}

// Packed codes have fewer bytes than columns, or names of their own: those are the loader's to check.
void Source::verify_module(const std::string& module, Dim rows, Dim cols) const {
  const io::SafetensorsEntry* entry = checkpoint().find(module + ".weight");
  const bool packed = entry != nullptr ? entry->dtype->dtype == DType::u8 : contains(module + ".weight_packed");
  if (!packed) verify_shape(module + ".weight", {rows, cols});
}

void Source::verify_experts(const std::string& module, const ExpertDims& dims, bool gated) const {
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

Tensor Source::floats(const std::string& name, Dims shape) const {
  offer({{name, sizes(shape)}}, DType::f32);
  verify_shape(name, shape);
  return impl_->loader->floats(name, sizes(shape));
}

Tensor Source::table(const std::string& name, Dims shape) const {
  offer({{name, sizes(shape)}}, DType::bf16);
  verify_shape(name, shape);
  const Tensor t = checkpoint().tensor(name);
  check_file(t.dtype() == DType::bf16 || t.dtype() == DType::f32, "{} is {}; accepted here: bfloat16, float32",
             checkpoint().source_of(name), to_string(t.dtype()));
  return t.clone();
}

Norm Source::norm(const std::string& name, Dim size, float eps) const { return {floats(name, {size}), eps}; }

Dense Source::dense(const std::string& module, Dim rows, Dim cols, Bias bias) const {
  Tensor b;
  if (bias == Bias::present) b = floats(module + ".bias", {rows});
  check_file(bias == Bias::present || !contains(module + ".bias"),
             "{} exists, but {} says that this projection has no bias", checkpoint().source_of(module + ".bias"),
             config().source());
  const std::string weight = module + ".weight";
  offer({{weight, {rows.n, cols.n}}}, DType::bf16);
  verify_module(module, rows, cols);
  if (const io::SafetensorsEntry* entry = checkpoint().find(weight); entry && entry->dtype->dtype == DType::f32)
    return {module, floats(weight, {rows, cols}), b};
  const weights::LoadedLinear loaded = impl_->loader->linear(module, rows.n, cols.n);
  ops::LinearOptions o;
  o.inputs = loaded.inputs;
  o.dtype = options_.dtype;
  o.input_scale = loaded.input_scale;
  return {module, std::make_shared<ops::Linear>(ctx_, loaded.w, b, o)};
}

Dense Source::tied(const std::string& module, const Tensor& weight) const {
  if (weight.dtype() == DType::f32) return {module, weight, {}};
  weights::QuantTensor w;
  w.experts = 1, w.rows = weight.dim(0), w.cols = weight.dim(1);
  w.codes = weight.reshape({1, w.rows, w.cols});
  ops::LinearOptions o;
  o.dtype = options_.dtype;
  return {module, std::make_shared<ops::Linear>(ctx_, w, Tensor(), o)};
}

Tensor Source::dequantized(const std::string& module, Dim rows, Dim cols) const {
  offer({{module + ".weight", {rows.n, cols.n}}}, DType::bf16);
  verify_module(module, rows, cols);
  const weights::QuantTensor w = impl_->loader->linear(module, rows.n, cols.n).w;
  if (w.format == format::Format::bf16) return w.codes.reshape({rows.n, cols.n});
  const Tensor values = weights::dequantize(w).reshape({rows.n, cols.n});
  if (options_.dtype == DType::f32) return values;
  Tensor rounded(DType::bf16, {rows.n, cols.n});
  ops::store(values.as<float>(), rounded.data(), DType::bf16, values.elements());
  return rounded;
}

std::shared_ptr<const moe::MoeLayer> Source::experts(const std::string& module, const ExpertDims& dims, MoeSpec spec,
                                                     std::string_view backend) const {
  spec.experts = static_cast<int>(dims.experts.n);
  spec.inter = dims.inter.n;
  spec.hidden = dims.hidden.n;
  spec.dtype = options_.dtype;
  const int64_t rows = spec.gated() ? 2 * dims.inter.n : dims.inter.n;
  offer({{module + (spec.gated() ? ".gate_up_proj" : ".up_proj"), {dims.experts.n, rows, dims.hidden.n}},
         {module + ".down_proj", {dims.experts.n, dims.hidden.n, dims.inter.n}}},
        DType::bf16);
  verify_experts(module, dims, spec.gated());
  weights::ExpertNames names;
  names.module = module;
  if (!spec.gated()) names.gate.clear();
  const weights::LoadedExperts loaded = impl_->loader->experts(names, {spec.experts, spec.inter, spec.hidden});
  spec.inter = loaded.weights.up.rows;  // padded to whole scale groups
  spec.weights = loaded.format.weights;
  spec.inputs = loaded.format.inputs;
  spec.fp8_block_trtllm = options_.fp8_block_trtllm && spec.weights == format::Format::fp8_block;
  spec.fp8_f32_sums = options_.fp8_f32_sums && format::is_fp8(spec.weights);
  spec.deterministic = options_.deterministic;
  spec.bias = !loaded.weights.bias_up.empty();
  return moe::select(spec, backend).prepare(ctx_, spec, loaded.weights);
}

}  // namespace sluice::model
