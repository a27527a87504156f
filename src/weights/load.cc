// SPDX-License-Identifier: Apache-2.0
#include "weights/load.h"

#include <algorithm>
#include <cstring>

#include "base/math.h"
#include "format/quantize_rows.h"
#include "io/read_ahead.h"
#include "weights/calibration.h"
#include "weights/dummy.h"
#include "weights/requantize.h"
#include "weights/scale_grid.h"
#include "weights/stored.h"

namespace sluice::weights {

using format::InputFormat;

namespace {

// Pieces of a copy are whole huge pages of it: two threads that touch a fresh page first would both clear one.
constexpr int64_t kPiece = int64_t{2} << 20;

void copy_in_parallel(Context& ctx, const void* from, int64_t bytes, void* to, const io::Checkpoint& file) {
  ctx.pool.parallel_for(ceil_div(bytes, kPiece), [&](int64_t piece, int) {
    const int64_t begin = piece * kPiece, size = std::min(kPiece, bytes - begin);
    const std::byte* source = static_cast<const std::byte*>(from) + begin;
    io::read_ahead(source, size);
    std::memcpy(static_cast<std::byte*>(to) + begin, source, static_cast<size_t>(size));
    file.forget(source, size);
  });
}

}  // namespace

Loader::Loader(Context& context, io::Checkpoint checkpoint, LoaderOptions options)
    : context_(context),
      checkpoint_(std::move(checkpoint)),
      file_(std::make_shared<const io::Checkpoint>(checkpoint_)),
      options_(std::move(options)),
      scheme_(QuantScheme::detect(checkpoint_)) {
  validate(options_.shard);
  if (options_.online) scheme_.check_not_quantized(options_.online->name);
}

// What a module that is stored as `stored` becomes. `observed`: its name in options_.amax.
ModuleFormat Loader::target(std::string_view module, const ModuleFormat& stored, const std::string& observed) const {
  const auto per_token = [&](ModuleFormat format) {
    if (format.inputs == InputFormat::nvfp4 && options_.nvfp4_per_token) format.inputs = InputFormat::nvfp4_token;
    return format;
  };
  // Heads stay in BF16 then: published configurations do not always exclude a head that is stored so.
  const ModuleKind kind = kind_of(module);
  if (options_.dummy && scheme_.quantized() && (kind == ModuleKind::experts || kind == ModuleKind::linear))
    return per_token(scheme_.of(module));
  if (!options_.online || stored != ModuleFormat{}) return per_token(stored);
  const ModuleFormat online = per_token(options_.online->of(module));
  const bool did_not_run =
      format::is_static(online.inputs) && !options_.amax.empty() && !options_.amax.contains(observed);
  return did_not_run ? stored : online;
}

float Loader::online_input_scale(InputFormat inputs, const std::string& observed) const {
  const auto found = options_.amax.find(observed);
  if (found == options_.amax.end() && options_.dummy) return static_scale(inputs, kDummyAmax, observed);
  check(found != options_.amax.end(),
        "{} inputs of {} need a calibrated scale; accepted: a calibration text (--calibration-text), "
        "nvfp4_per_token_activation, or a checkpoint that sluice quantize wrote with --calibration",
        name_of(format::kInputFormats, inputs), observed);
  return static_scale(inputs, found->second, observed);
}

void Loader::warn_if_not_excluded(std::string_view module, const ModuleFormat& stored) {
  if (warned_ || options_.dummy || stored == scheme_.of(module)) return;
  warned_ = true;
  context_.log(
      LogLevel::warning,
      fmt::format("{} is stored unquantised, although {} ({}) does not exclude it; it runs in BF16, and so does "
                  "every other such module",
                  module, scheme_.source(), scheme_.method()));
}

void Loader::report(int64_t bytes) {
  done_ += bytes;
  context_.progress({"loading", done_, std::max(done_, checkpoint_.bytes()), "B"});
}

void Loader::end_progress() {
  if (done_ < checkpoint_.bytes()) report(checkpoint_.bytes() - done_);
}

MakeTensor Loader::make_scratch() {
  return [this](DType dtype, Shape shape) { return scratch_.make(dtype, std::move(shape)); };
}

Tensor Loader::copy(std::string_view name) const {
  const Tensor t = checkpoint_.tensor(name);
  Tensor out(t.dtype(), t.shape());
  copy_in_parallel(context_, t.data(), t.bytes(), out.data(), checkpoint_);
  return out;
}

QuantTensor Loader::stacked(QuantTensor w) {
  if (!w.file && w.apart.empty()) return w;
  Tensor codes =
      scratch_.make(code_type(info(w.format)), {w.experts, w.rows, info(w.format).bits == 4 ? w.cols / 2 : w.cols});
  const int64_t bytes = w.rows * w.row_bytes();
  auto* to = static_cast<std::byte*>(codes.data());
  if (w.experts == 1)
    copy_in_parallel(context_, w.code_row(0, 0), bytes, to, checkpoint_);
  else
    context_.pool.parallel_for(w.experts, [&](int64_t e, int) {
      w.begin_rows(e, 0, w.rows);
      std::memcpy(to + e * bytes, w.code_row(e, 0), static_cast<size_t>(bytes));
      w.end_rows(e, 0, w.rows);
    });
  w.codes = std::move(codes);
  w.apart.clear();
  w.file = nullptr;
  return w;
}

ExpertWeights Loader::stacked(ExpertWeights w) {
  for (QuantTensor* q : {&w.up, &w.gate, &w.down}) *q = stacked(std::move(*q));
  return w;
}

Tensor Loader::floats(std::string_view name, const Shape& shape) const { return read_floats(checkpoint_, name, shape); }

float Loader::static_input_scale(const ModuleFormat& stored, const ModuleFormat& wanted,
                                 const std::vector<StoredNames>& names, const std::string& observed) const {
  const bool online = stored != wanted && stored == ModuleFormat{};
  return online ? online_input_scale(wanted.inputs, observed)
                : read_static_input_scale(checkpoint_, names, wanted.inputs);
}

LoadedLinear Loader::linear(std::string_view module, int64_t rows, int64_t cols, Codes codes) {
  const StoredNames names = linear_names(checkpoint_, module);
  const ModuleFormat stored = stored_format(checkpoint_, scheme_, module, names);
  warn_if_not_excluded(module, stored);
  const ModuleFormat wanted = target(module, stored, std::string(module));

  LoadedLinear out;
  out.inputs = wanted.inputs;
  out.w = open_stored(checkpoint_, names, stored.weights, {1, rows, cols, false});
  out.w.file = file_;
  out.w.scales = out.w.scales.clone();
  check_codes(checkpoint_, names.weight, out.w, 0);
  if (wanted.weights != out.w.format) check_finite(checkpoint_, names.weight, out.w, 0);
  report(out.w.codes.bytes());
  if (format::is_static(wanted.inputs))
    out.input_scale = static_input_scale(stored, wanted, {names}, std::string(module));
  out.w = quantize(context_, wanted.weights, out.w, make_scratch());
  if (codes == Codes::copied) out.w = stacked(std::move(out.w));
  return out;
}

LoadedLinear Loader::tied_head(std::string_view module, const Tensor& embedding) const {
  const ModuleFormat wanted = target(module, {}, std::string(module));
  LoadedLinear out;
  out.inputs = wanted.inputs;
  if (format::is_static(wanted.inputs)) out.input_scale = online_input_scale(wanted.inputs, std::string(module));
  out.w.experts = 1, out.w.rows = embedding.dim(0), out.w.cols = embedding.dim(1);
  out.w.codes = embedding.reshape({1, out.w.rows, out.w.cols});
  out.w = embedding.device().is_host() ? quantize(context_, wanted.weights, out.w)
                                       : options_.stage->quantize(wanted.weights, out.w);
  return out;
}

}  // namespace sluice::weights
