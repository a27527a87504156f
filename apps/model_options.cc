// SPDX-License-Identifier: Apache-2.0
#include "model_options.h"

#include <CLI/CLI.hpp>

#include "base/env.h"
#include "io/file.h"
#include "model/calibrate.h"
#include "moe/select.h"
#include "weights/online.h"

namespace sluice::apps {

void add_model_options(CLI::App& command, ModelOptions& o) {
  const char* group = "Model";
  command.add_option("--model-path,--model", o.path, "folder of a Hugging Face checkpoint")->required()->group(group);
  command
      .add_option("--load-format", o.load_format,
                  "auto reads the checkpoint's safetensors; dummy needs only its configurations (and, for text, its "
                  "tokenizer) and fills the weights with random numbers, always the same")
      ->check(CLI::IsMember({"auto", "dummy"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option(
          "--device", o.device,
          "where the whole model runs: cpu, cuda or cuda:N (a Hopper GPU), or auto: the first Hopper GPU, else the "
          "cpu. On the cpu the experts alone may run on a GPU: --moe-runner-backend")
      ->capture_default_str()
      ->group(group);
  command.add_option("--dtype", o.dtype, "type of activations and caches: bfloat16 (auto) or float32")
      ->check(CLI::IsMember({"bfloat16", "float32", "auto"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--kv-cache-dtype", o.kv_cache_dtype,
                  "type of cached keys and values: auto (that of --dtype), bf16 (bfloat16), or fp8_e4m3 (fp8), of half "
                  "the size, with the checkpoint's scales or 1")
      ->check(CLI::IsMember({"auto", "bf16", "bfloat16", "fp8_e4m3", "fp8"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--quantization", o.quantization,
                  "quantise a BF16 checkpoint while loading: fp8, fp8_channel, fp8_block, mxfp8, nvfp4, nvfp4_online, "
                  "mxfp4")
      ->group(group);
  command
      .add_option("--quantization-rest", o.quantization_rest,
                  "with --quantization: another of its formats for the linears that are no routed experts; default: "
                  "the same for 8 bits, BF16 for nvfp4 and mxfp4")
      ->group(group);
  command
      .add_option("--quantization-head", o.quantization_head,
                  "with --quantization: one of its formats for the output head; default: BF16. Where the embedding "
                  "serves as head, a copy of it is quantised")
      ->group(group);
  command
      .add_option("--calibration-text", o.calibration_text,
                  "text file from which --quantization nvfp4 takes its activation scales")
      ->group(group);
  command
      .add_flag("--nvfp4-per-token-activation", o.nvfp4_per_token,
                "NVFP4: activation scales from each token [" + std::string(kEnvNvfp4PerToken.name) + "]")
      ->group(group);
  command
      .add_option("--fp8-block-numerics", o.fp8_block_numerics,
                  "FP8 block: exact carries GEMM1's result in float32, trtllm rounds it to FP8 before the activation")
      ->check(CLI::IsMember({"exact", "trtllm"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_option("--fp8-sums", o.fp8_sums,
                  "FP8 experts on Hopper: float32 decodes weights to bfloat16 and adds as Blackwell and the CPU do, "
                  "tensor-core adds 128 products in 14 bits and is up to 2.6 times as fast")
      ->check(CLI::IsMember({"float32", "tensor-core"}))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag("--deterministic", o.deterministic,
                "a token's result does not depend on what else is in its batch (the CPU always works so)")
      ->group(group);
  command.add_option("--tp-size,--tp", o.tp_size, "processes that share the model's tensors; only 1 so far")
      ->check(CLI::Validator(
          [](const std::string& size) {
            return size == "1" ? "" : size + " is not available; accepted: 1 (the whole model in this process)";
          },
          "1"))
      ->capture_default_str()
      ->group(group);
  command.add_option("--moe-runner-backend", o.moe_backend, "what runs the experts: " + moe::backend_names())
      ->capture_default_str()
      ->group(group);
}

namespace {
// A calibration that nothing would read takes minutes.
void check_takes_calibration(const ModelOptions& o, bool nvfp4_per_token) {
  const weights::OnlinePolicy formats =
      weights::parse_online_policy(o.quantization, o.quantization_rest, o.quantization_head);
  for (const weights::ModuleFormat* f : {&formats.experts, &formats.rest, &formats.head})
    if (format::is_static(f->inputs) && !nvfp4_per_token) return;
  fail(ErrorCode::invalid_argument,
       "--calibration-text is given with --quantization {}, which takes no calibrated scales; accepted: --quantization "
       "nvfp4 without --nvfp4-per-token-activation",
       o.quantization);
}
}  // namespace

model::LoadOptions load_options(Context& ctx, const ModelOptions& o) {
  model::LoadOptions load;
  load.path = o.path;
  load.dummy = o.load_format == "dummy";
  load.dtype = o.dtype == "float32" ? DType::f32 : DType::bf16;
  if (o.kv_cache_dtype.starts_with("fp8")) load.kv_dtype = DType::e4m3;
  if (o.kv_cache_dtype.starts_with("bf")) {
    check(load.dtype == DType::bf16, "--kv-cache-dtype is {} with --dtype float32; accepted: auto, fp8_e4m3",
          o.kv_cache_dtype);
    load.kv_dtype = DType::bf16;
  }
  load.moe_backend = o.moe_backend;
  load.draft_moe_backend = o.draft_moe_backend;
  load.deterministic = o.deterministic;
  load.nvfp4_per_token = o.nvfp4_per_token || env_flag(kEnvNvfp4PerToken);
  load.fp8_block_trtllm = o.fp8_block_numerics == "trtllm";
  load.fp8_f32_sums = o.fp8_sums == "float32";
  if (!o.calibration_text.empty()) {
    check(ctx.device().id().is_host(),
          "--calibration-text is given with --device {}; calibration runs on the cpu: quantise the "
          "checkpoint first (sluice quantize)",
          to_string(ctx.device().id()));
    check(!o.quantization.empty(), "--calibration-text is given without --quantization, which would use it");
    check_takes_calibration(o, load.nvfp4_per_token);
    const std::vector<int32_t> ids = model::load_tokenizer(o.path).encode(read_text_file(o.calibration_text));
    // The loader says so, too, but after the calibration.
    weights::QuantScheme::detect(io::Checkpoint::open(o.path)).check_not_quantized(o.quantization);
    model::LoadOptions traced = load;
    if (traced.moe_backend == "auto") traced.moe_backend = "cpu";  // keeps the traces that calibration reads
    const auto exact = model::load_model(ctx, traced);
    load.amax = model::calibrate(ctx, *exact, ids, !o.quantization_head.empty());
  }
  load.quantization = o.quantization;
  load.quantization_rest = o.quantization_rest;
  load.quantization_head = o.quantization_head;
  return load;
}

std::unique_ptr<model::Model> load_model(Context& ctx, const ModelOptions& o) {
  return model::load_model(ctx, load_options(ctx, o));
}

std::string read_text_file(const std::string& path) {
  constexpr int64_t kMost = int64_t{1} << 32;  // a text is not parsed into a tree: memory alone bounds it
  return io::read_file(path, kMost);
}

void add_speculative_options(CLI::App& command, SpeculativeOptions& o, ModelOptions& model) {
  CLI::Option* algorithm =
      command
          .add_option("--speculative-algorithm", o.algorithm,
                      "NEXTN: draft with the checkpoint's multi-token-prediction layer; the text stays the same, for "
                      "which --deterministic is set")
          ->check(CLI::IsMember({"NEXTN"}))
          ->each([&model](const std::string&) { model.deterministic = true; })
          ->group("Speculation");
  command.add_option("--speculative-num-steps", o.num_steps, "the most drafts per step")
      ->check(CLI::Range(1, 64))
      ->capture_default_str()
      ->needs(algorithm)
      ->group("Speculation");
  command
      .add_flag("--speculative-fixed-steps", o.fixed_steps,
                "always as many drafts as --speculative-num-steps says; else at most as many, as measured times and "
                "right drafts make them pay")
      ->needs(algorithm)
      ->group("Speculation");
  command
      .add_option("--speculative-moe-runner-backend", model.draft_moe_backend,
                  "what runs the drafts' experts; default: --moe-runner-backend")
      ->needs(algorithm)
      ->group("Speculation");
}

void add_launch_options(CLI::App& command, model::RecordingConfig& config, std::optional<bool>& overlap) {
  const char* group = "Model";
  command
      .add_flag_callback(
          "--disable-cuda-graph,--enforce-eager", [&config] { config.enabled = false; },
          "on a GPU: launch the kernels of each step one by one instead of replaying steps that only decode")
      ->group(group);
  command
      .add_option("--cuda-graph-max-bs", config.max_sequences,
                  "on a GPU: the most sequences of a step that is replayed from a CUDA graph")
      ->check(CLI::Range(int64_t{1}, int64_t{4096}))
      ->capture_default_str()
      ->group(group);
  command
      .add_flag_callback(
          "--disable-overlap-schedule", [&overlap] { overlap = false; },
          "on a GPU: wait for the tokens of each step before the next one is launched")
      ->group(group);
}

}  // namespace sluice::apps
