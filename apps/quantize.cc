// SPDX-License-Identifier: Apache-2.0
// `sluice quantize`: a checkpoint written in another number format.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <filesystem>

#include "interrupt.h"
#include "io/tokenizer_json.h"
#include "model/calibrate.h"
#include "model_options.h"
#include "weights/save.h"

namespace sluice::apps {

namespace {
struct Options {
  std::string input, output, format, rest, head, calibration;
  std::vector<std::string> exclude;
  bool weight_only = false, modelopt = false;
  int64_t window = 0;
  double shard_gib = 4;
};

// The largest inputs of the BF16 model on the text.
std::map<std::string, float> calibrate(Context& ctx, const Options& o) {
  ModelOptions options;
  options.path = o.input;
  options.moe_backend = "cpu";  // keeps the traces that calibration reads
  const std::vector<int32_t> ids = model::load_tokenizer(o.input).encode(read_text_file(o.calibration));
  const auto model = load_model(ctx, options);
  return model::calibrate(ctx, *model, ids, !o.head.empty(), o.window);
}

// Not by opening it: that maps it, and after the work is done nothing shall fail.
double megabytes_of_shards(const std::string& folder) {
  uintmax_t bytes = 0;
  std::error_code ignored;
  for (const auto& file : std::filesystem::directory_iterator(folder, ignored))
    if (file.path().extension() == ".safetensors") bytes += file.file_size(ignored);
  return static_cast<double>(bytes) / 1e6;
}

void run(const Options& o, Shared& shared) {
  Context ctx = shared.context();
  weights::SaveOptions save = weights::save_options(o.format, o.rest, o.head, !o.calibration.empty(), o.weight_only);
  save.modelopt = o.modelopt;
  save.exclude = o.exclude;
  save.shard_bytes = static_cast<int64_t>(o.shard_gib * static_cast<double>(int64_t{1} << 30));
  const io::Checkpoint in = io::Checkpoint::open(o.input);
  weights::check_output_folder(o.output);  // before the work, not after it
  weights::check_plan(ctx, in, save);
  if (!o.calibration.empty()) save.amax = calibrate(ctx, o);
  set_interrupt_patience(60);  // flushing a shard of 4 GiB takes a slow disk that long; then the folder is removed
  weights::save_quantized(ctx, in, o.output, save);
  std::printf("%s: %.1f MB in %s, from %.1f MB\n", o.output.c_str(), megabytes_of_shards(o.output),
              save.formats.name.c_str(), static_cast<double>(in.bytes()) / 1e6);
}
}  // namespace

void add_quantize(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(
      parent, shared,
      {"quantize", "write a checkpoint in another number format",
       "  sluice quantize models/m m-mxfp8 --format mxfp8 --modelopt\n"
       "  sluice quantize models/m m-nvfp4 --format nvfp4 --calibration text.txt\n"
       "  sluice quantize models/m m-mx --format mxfp4 --format-rest mxfp8 --format-head mxfp8\n"
       "  sluice quantize models/m m-fp8 --format fp8 --calibration text.txt --exclude \"model.layers.0.*\"\n"},
      [o, &shared] { run(*o, shared); });
  command->add_option("input", o->input, "folder of the checkpoint to read")->required();
  command->add_option("output", o->output, "folder to write; it must not exist, or be empty")->required();
  command
      ->add_option("--format", o->format,
                   "bf16, fp8 (one scale per matrix), fp8_channel, fp8_block (128x128), mxfp8, nvfp4, mxfp4; nvfp4 and "
                   "mxfp4 are for experts, the others for all linears but router and head")
      ->required();
  command->add_option("--format-rest,--quantization-rest", o->rest,
                      "another format for the linears that are no routed experts, as mxfp8 beside --format mxfp4");
  command->add_option("--format-head,--quantization-head", o->head,
                      "a format for the output head; default: BF16. A head that is the embedding is written as a "
                      "matrix of its own");
  CLI::Option* calibration = command->add_option(
      "--calibration", o->calibration, "text file whose largest activations become the input scales of fp8 and nvfp4");
  command->add_flag("--weight-only", o->weight_only, "nvfp4 without rounding of activations; needs no calibration");
  command->add_flag("--modelopt", o->modelopt,
                    "ModelOpt's names and configuration where another convention is the default; vLLM reads mxfp8 only "
                    "with it, transformers only without");
  command
      ->add_option("--exclude", o->exclude,
                   "modules that stay in BF16: a name, a glob, or re:<regular expression>; may be given again")
      ->allow_extra_args(false);
  command
      ->add_option("--window", o->window,
                   "tokens of a calibration window; default: 512, or as many as the model allows")
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 30))
      ->needs(calibration);
  command->add_option("--shard-size", o->shard_gib, "GiB after which a new file begins")
      ->check(CLI::Range(0.001, 1000.0))
      ->capture_default_str();
}

}  // namespace sluice::apps
