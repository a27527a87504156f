// SPDX-License-Identifier: Apache-2.0
#include "weights/save.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>
#include <optional>
#include <set>
#include <utility>

#include "format/quantize_rows.h"
#include "io/file.h"
#include "io/json_text.h"
#include "io/output_file.h"
#include "io/safetensors_writer.h"
#include "weights/calibration.h"
#include "weights/export_format.h"
#include "weights/requantize.h"
#include "weights/stored.h"
#include "weights/tied_head.h"

namespace sluice::weights {

using format::Format;
using format::InputFormat;
namespace fs = std::filesystem;

namespace {

constexpr std::array<std::string_view, 13> kCopiedFiles{
    {"tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
     "merges.txt", "tokenizer.model", "tiktoken.model", "chat_template.jinja", "chat_template.json",
     "generation_config.json", "preprocessor_config.json", "LICENSE"}};
constexpr int64_t kMaxCopiedBytes = int64_t{256} << 20;

// Tensors that belong to a quantised weight; k_scale and v_scale belong to the cache and are kept.
constexpr std::array<std::string_view, 8> kScaleNames{{"weight_scale", "weight_scale_inv", "weight_scale_2",
                                                       "weight_global_scale", "input_scale", "input_global_scale",
                                                       "activation_scale", "weight_packed"}};

constexpr std::string_view kHead = "lm_head";

std::string_view last_part(std::string_view name) { return name.substr(name.rfind('.') + 1); }
std::string module_of(std::string_view name) {
  return std::string(name.substr(0, std::min(name.rfind('.'), name.size())));
}

// "model.layers.1.mlp.experts" of a matrix below it; empty for the matrix of another module.
std::string experts_of(const std::string& module) {
  constexpr std::string_view kPart = ".experts";
  const size_t at = module.find(std::string(kPart) + ".");
  return at == std::string::npos ? "" : module.substr(0, at + kPart.size());
}

// The name under which an experts module or a linear was calibrated.
std::string observed_name(const std::string& module) {
  const std::string experts = experts_of(module);
  if (experts.empty()) return module;
  const ExpertInputs inputs = expert_inputs(experts);
  const std::string_view projection = last_part(module);
  return projection == "down_proj" || projection == "w2" ? inputs.gemm2 : inputs.gemm1;
}

// One tensor that is copied, or one matrix with its scales.
struct Item {
  std::string name;  // the tensor, or the module
  bool matrix = false;
  ModuleFormat stored, wanted;
  bool rounds = false;  // float16, or float32 of a linear: becomes BF16 if nothing else
  int64_t rows = 0, cols = 0;
  std::optional<float> input_scale;
  std::string source;  // the module that a matrix is read from, which is another where the head is the embedding
  // A matrix of a fused tensor [E, R, cols]: rows [first_row, first_row + rows) of one expert.
  std::string fused;
  int64_t expert = 0, first_row = 0;
};

class Saver {
 public:
  Saver(Context& ctx, const io::Checkpoint& in, const SaveOptions& options)
      : ctx_(ctx), in_(in), options_(options), scheme_(QuantScheme::detect(in)) {
    for (const std::string& pattern : options.exclude) {
      try {
        excluded_.push_back({NamePattern(pattern, "exclude")});
      } catch (const Error& e) {
        fail(ErrorCode::invalid_argument, "{}", e.what());  // here the pattern is an argument, not a file's
      }
    }
    check_exportable(options.formats, options.modelopt);
  }

  // Decides what happens to every tensor; throws what save_quantized throws before anything is written.
  void plan() {
    check_tied_head(in_, kHead);
    for (std::string_view name : kCopiedFiles) {
      const fs::path from = in_.folder() / name;
      std::error_code ignored;
      if (fs::is_regular_file(from, ignored) && fs::is_empty(from, ignored))
        copied_files_.emplace_back(name, "");
      else if (io::is_present(from))
        copied_files_.emplace_back(name, io::read_file(from, kMaxCopiedBytes));
    }
    if (options_.formats.head != ModuleFormat{}) untie_head();
    for (const std::string& name : in_.names()) add(name);
    excluded_by(std::string(kHead));  // a module of every model, also where the embedding is its matrix
    for (const Excluded& e : excluded_)
      check(e.found, "exclude \"{}\" matches no module of {}; accepted: names, globs and re:<regular expression>",
            e.pattern.text(), in_.folder().string());
  }

  void write(const fs::path& folder) {
    plan();
    write_shards(folder);
    write_configs(folder);
    for (const auto& [name, text] : copied_files_) io::write_file(folder / name, text);
  }

 private:
  void add(const std::string& name) {
    const std::string module = module_of(name);
    const std::string_view part = last_part(name);
    const bool weight = part == "weight" || part == "weight_packed";
    const Shape& shape = in_.find(name)->shape;
    excluded_by(module);
    if (module.ends_with(".experts")) {
      split_fused(name, module, part, shape);
    } else if (untied_ && module == kHead) {
      return;  // a copy of the embedding
    } else if (weight && shape.size() == 2) {
      items_.push_back(matrix(module, module));
    } else if (weight || std::find(kScaleNames.begin(), kScaleNames.end(), part) == kScaleNames.end()) {
      Item item;
      item.name = name;
      items_.push_back(std::move(item));
    }
  }

  // A quantised head cannot be the embedding any more.
  void untie_head() {
    const std::optional<std::string> embedding = tied_embedding(in_);
    if (!embedding) return;
    Item item = matrix(std::string(kHead), *embedding);
    if (item.wanted == ModuleFormat{}) return;
    items_.push_back(std::move(item));
    untied_ = true;
  }

  // experts.gate_up_proj [E, 2I, H], up_proj [E, I, H] and down_proj [E, H, I] become one matrix per expert, the form
  // that every tool reads quantised weights in.
  void split_fused(const std::string& name, const std::string& module, std::string_view part, const Shape& shape) {
    const bool merged = part == "gate_up_proj";
    if ((!merged && part != "up_proj" && part != "down_proj") || shape.size() != 3 ||
        in_.tensor(name).dtype() != DType::bf16 || (merged && shape[1] % 2 != 0))
      fail(ErrorCode::unsupported,
           "{} is {} {}; of tensors that hold all experts only gate_up_proj [E, 2I, H], up_proj and down_proj in BF16 "
           "are "
           "rewritten",
           in_.source_of(name), to_string(in_.tensor(name).dtype()), to_string(shape));
    const int64_t rows = merged ? shape[1] / 2 : shape[1];
    for (int64_t e = 0; e < shape[0]; ++e)
      for (int64_t first = 0; first < shape[1]; first += rows) {
        const std::string_view projection = !merged ? part : first == 0 ? "gate_proj" : "up_proj";
        Item item;
        item.name = fmt::format("{}.{}.{}", module, e, projection);
        item.matrix = true;
        item.rows = rows, item.cols = shape[2];
        item.fused = name, item.expert = e, item.first_row = first;
        choose(item);
        items_.push_back(std::move(item));
      }
  }

  Item matrix(const std::string& module, const std::string& source) {
    const StoredNames names = linear_names(in_, source);
    Item item;
    item.name = module, item.source = source, item.matrix = true;
    item.stored = stored_format(in_, scheme_, source, names);
    const Shape& shape = in_.find(names.weight)->shape;
    item.rows = shape[0];
    item.cols = shape[1] * (info(item.stored.weights).bits == 4 ? 2 : 1);
    choose(item);
    return item;
  }

  // The format that the matrix is written in, and its input scale.
  void choose(Item& item) {
    const NamePattern* exclude = excluded_by(item.name);
    check_experts(item.name, exclude);
    if (item.fused.empty() && item.stored == ModuleFormat{}) {  // fused experts are in BF16
      const ModuleKind kind = kind_of(item.name);
      const std::optional<DType> type = in_.find(item.source + ".weight")->dtype->dtype;
      // No embedding is read in float16.
      item.rounds = type == DType::f16 || (type == DType::f32 && exclude == nullptr &&
                                           (kind == ModuleKind::experts || kind == ModuleKind::linear));
    }
    if (exclude != nullptr) return;
    item.wanted = options_.formats.of(item.name);
    if (!format::is_static(item.wanted.inputs)) return;
    const std::string observed = observed_name(item.name);
    const auto amax = options_.amax.find(observed);
    if (amax == options_.amax.end()) {
      uncalibrated_.insert(item.name);
      item.wanted = {};
    } else {
      item.input_scale = static_scale(item.wanted.inputs, amax->second, observed);
    }
  }

  // The first pattern that the module matches, or null. Also notes which patterns are met: one that never is was
  // misspelt.
  const NamePattern* excluded_by(const std::string& module) {
    const NamePattern* first = nullptr;
    for (Excluded& e : excluded_) {
      if (!e.pattern.matches(module)) continue;
      e.found = true;
      if (first == nullptr) first = &e.pattern;
    }
    return first;
  }

  // The loader takes all of a layer's experts in one format. `exclude` is the pattern that the matrix matches, or null.
  void check_experts(const std::string& matrix, const NamePattern* exclude) {
    const std::string module = experts_of(matrix);
    if (module.empty() || options_.formats.experts == ModuleFormat{}) return;
    ExpertsChoice& choice = experts_[module];
    if (exclude != nullptr && choice.pattern == nullptr) {
      choice.pattern = exclude;
      choice.excluded = matrix;
    } else if (exclude == nullptr && choice.kept.empty()) {
      choice.kept = matrix;
    }
    check(choice.pattern == nullptr || choice.kept.empty(),
          "exclude \"{}\" matches {} but not {}; accepted: all of a layer's experts, as with \"{}\", or none of them",
          choice.pattern == nullptr ? "" : choice.pattern->text(), choice.excluded, choice.kept, module);
  }

  // The shapes are those of a tensor that is never filled: memory that is not touched costs nothing.
  std::vector<std::pair<std::string, Tensor>> shapes(const Item& item) const {
    if (!item.matrix) return {{item.name, Tensor(in_.tensor(item.name).dtype(), in_.find(item.name)->shape)}};
    if (is_copy(item)) return copied(item);
    return export_tensors(options_.formats, options_.modelopt, item.name, item.wanted,
                          make_quant_tensor(item.wanted.weights, 1, item.rows, item.cols), item.input_scale);
  }

  std::vector<std::pair<std::string, Tensor>> contents(const Item& item) const {
    if (!item.matrix) return {{item.name, in_.tensor(item.name)}};
    if (is_copy(item)) return copied(item);
    QuantTensor w;
    std::string name = item.fused;
    if (item.fused.empty()) {
      const StoredNames names = linear_names(in_, item.source);
      w = open_stored(in_, names, item.stored.weights, {1, item.rows, item.cols, false});
      name = names.weight;
      check_codes(in_, name, w, 0);
    } else {
      w.experts = 1, w.rows = item.rows, w.cols = item.cols;
      w.codes = stored_floats(item).reshape({1, item.rows, item.cols});
    }
    if (item.wanted.weights != Format::bf16) check_finite(in_, name, w, 0);
    return export_tensors(options_.formats, options_.modelopt, item.name, item.wanted,
                          quantize(ctx_, item.wanted.weights, w), item.input_scale);
  }

  // What is no linear that could be quantised stays in float32 (a router).
  static bool is_copy(const Item& item) {
    return item.stored == ModuleFormat{} && item.wanted == ModuleFormat{} && !item.rounds;
  }
  std::vector<std::pair<std::string, Tensor>> copied(const Item& item) const {
    return {{item.name + ".weight", stored_floats(item)}};
  }
  Tensor stored_floats(const Item& item) const {
    if (item.fused.empty()) return in_.tensor(item.source + ".weight");
    return in_.tensor(item.fused).slice(item.expert).rows(item.first_row, item.first_row + item.rows);
  }

  static int64_t bytes_of_all(const std::vector<std::pair<std::string, Tensor>>& tensors) {
    int64_t bytes = 0;
    for (const auto& [name, tensor] : tensors) bytes += tensor.bytes();
    return bytes;
  }

  void write_shards(const fs::path& folder) {
    std::vector<std::vector<const Item*>> shards(1);
    int64_t in_shard = 0, total = 0, done = 0;
    for (const Item& item : items_) {
      if (in_shard >= options_.shard_bytes) {
        shards.emplace_back();
        in_shard = 0;
      }
      const int64_t bytes = bytes_of_all(shapes(item));
      in_shard += bytes;
      total += bytes;
      shards.back().push_back(&item);
    }
    io::JsonValue::Object weight_map;
    for (size_t s = 0; s < shards.size(); ++s) {
      const std::string file = shards.size() == 1
                                   ? "model.safetensors"
                                   : fmt::format("model-{:05}-of-{:05}.safetensors", s + 1, shards.size());
      io::SafetensorsWriter writer(folder / file, {{"format", "pt"}});
      for (const Item* item : shards[s])
        for (const auto& [name, tensor] : shapes(*item)) {
          writer.add(name, tensor.dtype(), tensor.shape());
          weight_map.push_back({name, {file}});
        }
      writer.start();
      for (const Item* item : shards[s]) {
        const auto tensors = contents(*item);
        for (const auto& [name, tensor] : tensors) writer.write(name, tensor);
        done += bytes_of_all(tensors);
        ctx_.progress({"quantizing", done, total, "B"});
      }
      writer.finish();
    }
    if (shards.size() == 1) return;
    std::sort(weight_map.begin(), weight_map.end(), [](const auto& a, const auto& b) { return a.key < b.key; });
    io::JsonValue::Object metadata{{"total_size", {total}}};
    io::write_file(folder / "model.safetensors.index.json",
                   io::to_json_text({io::JsonValue::Object{{"metadata", {metadata}}, {"weight_map", {weight_map}}}}));
  }

  void write_configs(const fs::path& folder) const {
    ModuleFormat head;  // also when it is tied to the embedding and has no tensor
    for (const Item& item : items_)
      if (item.name == kHead) head = item.wanted;
    std::vector<ExportedModule> modules{{std::string(kHead), head}};
    for (const Item& item : items_)
      if (item.matrix && item.name != kHead) modules.push_back({item.name, item.wanted});
    const ExportedConfig exported = export_config(options_.formats, options_.modelopt, modules);
    const fs::path path = in_.folder() / "config.json";
    io::JsonValue config =
        io::parse_json_value(io::read_file(path, int64_t{64} << 20), path.string(), io::JsonDialect::python);
    if (untied_) set_member(config, "tie_word_embeddings", {false});
    set_member(config, "compression_config", {});
    set_member(config, "quantization_config",
               exported.quantization_config.empty()
                   ? io::JsonValue{}
                   : io::parse_json_value(exported.quantization_config, "quantization_config"));
    io::write_file(folder / "config.json", to_json_text(config));
    if (!exported.hf_quant_config.empty()) io::write_file(folder / "hf_quant_config.json", exported.hf_quant_config);
    if (!uncalibrated_.empty())
      ctx_.log(LogLevel::warning, fmt::format("{} matrices did not run during calibration and stay in BF16, the first "
                                              "of them {}",
                                              uncalibrated_.size(), *uncalibrated_.begin()));
  }

  Context& ctx_;
  const io::Checkpoint& in_;
  const SaveOptions& options_;
  QuantScheme scheme_;
  struct Excluded {
    NamePattern pattern;
    bool found = false;
  };
  std::vector<Excluded> excluded_;
  // Of one experts module: the first matrix that stays in BF16 with its pattern, and the first that does not.
  struct ExpertsChoice {
    const NamePattern* pattern = nullptr;
    std::string excluded, kept;
  };
  std::map<std::string, ExpertsChoice> experts_;
  std::vector<Item> items_;
  std::vector<std::pair<std::string, std::string>> copied_files_;  // names and contents
  bool untied_ = false;  // the head was the embedding and is written as a matrix of its own
  std::set<std::string> uncalibrated_;
};

// The folder that is written for `folder`: an absolute path without links, without "/" and dots at the end. Not
// lexically normal: the parent of a link's target is not the parent of the link.
fs::path destination(const fs::path& folder) {
  std::error_code error;
  if (fs::path existing = fs::canonical(folder, error); !error) return existing;
  fs::path name = folder;
  while (name.has_parent_path() && (!name.has_filename() || name.filename() == ".")) name = name.parent_path();
  name = io::follow_links(name);  // one that leads to a folder that is still to be made
  const fs::path parent = name.has_parent_path() ? name.parent_path() : ".";
  const fs::path real = fs::weakly_canonical(parent, error);
  return (error ? parent : real) / name.filename();
}

// destination(), or an error when it cannot be renamed to there.
fs::path checked_destination(const fs::path& folder) {
  check(!folder.empty(), "the output folder \"\" has an empty name; accepted: a new or an empty folder");
  const fs::path to = destination(folder), parent = to.parent_path();
  std::error_code ignored;
  if (!fs::is_directory(parent, ignored))
    fail(ErrorCode::not_found, "{} cannot be created: {} is no folder", folder.string(), parent.string());
  if (access(parent.c_str(), W_OK | X_OK) != 0)
    fail(ErrorCode::io, "{} cannot be created: {}", folder.string(), std::strerror(errno));
  check(!io::is_present(to) || (fs::is_directory(to, ignored) && fs::is_empty(to, ignored)),
        "{} exists already; give a new folder", folder.string());
  check(!io::is_mount_point(to),
        "{} is a mount point, which cannot be replaced; accepted: a new folder, such as one in it, or an empty folder",
        folder.string());
  // Whoever is in it, such as the shell, would be left in a folder that is deleted.
  check(
      !fs::equivalent(to, ".", ignored),
      "{} is the current folder, which is not replaced; accepted: a new folder, such as one in it, or an empty folder",
      folder.string());
  return to;
}

// A new folder beside `to`. Removes what it holds unless it was renamed.
struct UnfinishedFolder {
  fs::path path;
  explicit UnfinishedFolder(const fs::path& to) {
    // Containers give the same process id every time: folders of killed runs may have the first names.
    constexpr int kAttempts = 1000;
    std::error_code error;
    bool made = false;
    for (int i = 0; !made && !error && i < kAttempts; ++i) {
      path = to.native() + fmt::format(".partial-{}-{}", getpid(), i);
      made = fs::create_directory(path, error);
    }
    if (!made)
      fail(ErrorCode::io, "{} cannot be created: {}", std::exchange(path, {}).string(),
           error ? error.message() : "it exists already");
  }
  ~UnfinishedFolder() {
    std::error_code ignored;
    if (!path.empty()) fs::remove_all(path, ignored);
  }
  void rename_to(const fs::path& to) {
    std::error_code error;
    fs::rename(path, to, error);
    if (error) fail(ErrorCode::io, "{} cannot be renamed to {}: {}", path.string(), to.string(), error.message());
    path.clear();
  }
};

}  // namespace

SaveOptions save_options(std::string_view name, std::string_view rest, std::string_view head, bool calibrated,
                         bool weight_only) {
  SaveOptions options;
  options.formats = parse_online_policy(name, rest, head);
  bool nvfp4 = false, takes_calibration = false, needs_calibration = false;
  for (ModuleFormat* f : {&options.formats.experts, &options.formats.rest, &options.formats.head}) {
    if (f->weights == Format::nvfp4) {
      f->inputs = weight_only ? InputFormat::plain : InputFormat::nvfp4;
      nvfp4 = true;
    }
    if (calibrated && f->weights == Format::fp8_tensor) f->inputs = InputFormat::fp8_static;
    takes_calibration |= format::is_static(f->inputs);
    needs_calibration |= f->inputs == InputFormat::nvfp4;
  }
  const std::string& asked = options.formats.name;
  const std::string_view inputs = name_of(format::kInputFormats, options.formats.experts.inputs);
  check(!weight_only || nvfp4, "weight-only is for nvfp4; {} has inputs of format {}", asked, inputs);
  check(calibrated || !needs_calibration,
        "nvfp4 checkpoints hold calibrated input scales; accepted: with a calibration text, or weight-only for BF16 "
        "inputs; to run without calibration, quantise to nvfp4 while loading, with nvfp4_per_token_activation");
  check(!calibrated || takes_calibration,
        "calibration is for formats with static input scales, fp8 and nvfp4; {} has {} inputs", asked, inputs);
  return options;
}

void check_output_folder(const fs::path& folder) { checked_destination(folder); }

void check_plan(Context& ctx, const io::Checkpoint& in, const SaveOptions& options) { Saver(ctx, in, options).plan(); }

void save_quantized(Context& ctx, const io::Checkpoint& in, const fs::path& folder, const SaveOptions& options) {
  const fs::path to = checked_destination(folder);
  UnfinishedFolder unfinished(to);
  Saver(ctx, in, options).write(unfinished.path);
  unfinished.rename_to(to);
}

}  // namespace sluice::weights
