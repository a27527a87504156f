// SPDX-License-Identifier: Apache-2.0
// `sluice bench moe`: the fused layer, routing to weighted sum, on real shapes with cold weights; on the GPU
// (bench_moe_gpu.h) or here.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/cpuid.h"
#include "bench_moe_gpu.h"
#include "command.h"
#include "moe_bench.h"
#include "moe_shapes.h"

namespace sluice::apps {

namespace {
using kernels::cpu::Isa;

const std::vector<int64_t> kTokens{1, 8, 32, 128, 512}, kGpuTokens{1, 8, 32, 128, 512, 2048, 8192};

struct Options {
  std::string shape = "qwen3-30b-a3b", isa, inputs;
  std::vector<int64_t> tokens;  // empty: kTokens, on a GPU kGpuTokens
  std::vector<std::string> formats{"all"};
  double seconds = 1.0;
  bool json = false;
  std::string device = "cpu";
  double bf16_tflops = 790, fp8_tflops = 1497;
  bool logits = false;
  std::vector<CLI::Option*> cpu_only, gpu_only;
};

std::vector<format::Format> find_formats(const std::vector<std::string>& names) {
  std::vector<format::Format> formats;
  for (const std::string& name : names) {
    if (name == "all")
      for (const auto& row : format::kFormats) formats.push_back(row.value);
    else
      formats.push_back(parse_name(format::kFormats, "--format", name));
  }
  return formats;
}

void print_json(const BenchCell& c, Isa isa, int threads) {
  const nlohmann::ordered_json line{{"spec", to_string(c.spec)},
                                    {"tokens", c.tokens},
                                    {"threads", threads},
                                    {"isa", name_of(kernels::cpu::kIsas, isa)},
                                    {"cpu", cpu_features().brand},
                                    {"experts_touched", c.experts_touched},
                                    {"ms_min", c.min_s * 1e3},
                                    {"ms_median", c.median_s * 1e3},
                                    {"gflops", c.flops / c.median_s / 1e9},
                                    {"gb_per_s", c.bytes / c.median_s / 1e9},
                                    {"probe_read_gb_per_s", c.read_bandwidth / 1e9},
                                    {"probe_dot_gflops", c.dot_rate / 1e9},
                                    {"of_read", c.bytes / c.median_s / c.read_bandwidth},
                                    {"of_dot", c.flops / c.median_s / c.dot_rate},
                                    {"floor_ms", c.floor_s() * 1e3},
                                    {"time_over_floor", c.median_s / c.floor_s()}};
  std::printf("%s\n", line.dump().c_str());
}

void print_row(const BenchCell& c) {
  std::printf("%-11s %5ld %7.1f %9.3f %9.3f %8.1f %7.2f %8.2f %8.1f %6.1f%% %6.1f%% %9.3f %6.2f\n",
              format::info(c.spec.weights).name.data(), static_cast<long>(c.tokens), c.experts_touched, c.min_s * 1e3,
              c.median_s * 1e3, c.flops / c.median_s / 1e9, c.bytes / c.median_s / 1e9, c.read_bandwidth / 1e9,
              c.dot_rate / 1e9, 100 * c.bytes / c.median_s / c.read_bandwidth, 100 * c.flops / c.median_s / c.dot_rate,
              c.floor_s() * 1e3, c.median_s / c.floor_s());
}

void run_on_cpu(const Options& o, Shared& shared) {
  const bench::BenchShape& shape = bench::find_shape(o.shape);
  const std::vector<format::Format> formats = find_formats(o.formats);
  BenchOptions options;
  options.seconds = o.seconds;
  if (!o.isa.empty()) options.isa = parse_name(kernels::cpu::kIsas, "--isa", o.isa);
  if (const Support s = kernels::cpu::supported(options.isa); !s) fail(ErrorCode::unsupported, "{}", s.reason);
  Context ctx = shared.context();
  const kernels::cpu::Ceilings ceilings(ctx, options.isa);
  if (!o.json) {
    std::printf("%s, %s, %d threads, %s: %d of %d experts, top %d, hidden %ld, inter %ld\n",
                cpu_features().brand.c_str(), name_of(kernels::cpu::kIsas, options.isa).data(), ctx.pool.size(),
                shape.name.data(), shape.locals, shape.experts, shape.top_k, static_cast<long>(shape.hidden),
                static_cast<long>(shape.inter));
    std::printf(
        "format          T experts   min ms    med ms  GFLOP/s    GB/s  readGB/s dotGF/s of read  of dot  floor ms  "
        "ratio\n");
  }
  for (const format::Format f : formats) {
    MoeSpec spec = bench::spec_of(shape, f);
    if (!o.inputs.empty()) spec.inputs = parse_name(format::kInputFormats, "--inputs", o.inputs);
    MoeBench bench(ctx, ceilings, spec, options);
    for (const int64_t tokens : o.tokens.empty() ? kTokens : o.tokens) {
      const BenchCell cell = bench.measure(ctx, tokens);
      if (o.json)
        print_json(cell, options.isa, ctx.pool.size());
      else
        print_row(cell);
      std::fflush(stdout);
    }
  }
}

void run(const Options& o, Shared& shared) {
  const bool cpu = o.device == "cpu";
  for (const CLI::Option* option : cpu ? o.gpu_only : o.cpu_only)
    if (option->count() > 0)
      fail(ErrorCode::invalid_argument, "{} goes with --device {}, not with --device {}", option->get_name(),
           cpu ? "cuda" : "cpu", o.device);
  if (cpu) return run_on_cpu(o, shared);
  bench_moe_gpu({o.shape, o.inputs, o.formats, o.tokens.empty() ? kGpuTokens : o.tokens, o.bf16_tflops, o.fp8_tflops,
                 o.logits, o.json});
}
}  // namespace

void add_bench_moe(CLI::App& parent, Shared& shared) {
  auto o = std::make_shared<Options>();
  CLI::App* command =
      add_command(parent, shared,
                  {"moe", "time one fused MoE layer on the CPU or a GPU against this machine's ceilings",
                   "  sluice bench moe --shape qwen3-30b-a3b --tokens 1,8,512 --format bf16,nvfp4\n"
                   "  sluice bench moe --device cuda --shape deepseek-v3-ep8 --tokens 1,8192\n"},
                  [o, &shared] { run(*o, shared); });
  command->add_option("--shape", o->shape, bench::shape_names());
  command->add_option("--tokens", o->tokens, "numbers of tokens; default: 1,8,32,128,512, on a GPU also 2048,8192")
      ->delimiter(',')
      ->check(CLI::Range(1, 1 << 20));
  command->add_option("--format", o->formats, "weight formats, or all")->delimiter(',');
  command->add_option("--inputs", o->inputs,
                      "what rows are rounded to, as nvfp4_token; default: the weight format's own");
  CLI::Option* isa = command->add_option("--isa", o->isa,
                                         "scalar, avx2, avx_vnni, avx512, avx512_bf16 or amx; default: the best here");
  CLI::Option* seconds =
      command->add_option("--seconds", o->seconds, "of measuring, for each line")->check(CLI::PositiveNumber);
  command->add_flag("--json", o->json, "one JSON object per line");
  command->add_option("--device", o->device, "cpu, or cuda: one Hopper GPU, microseconds of a call")
      ->check(CLI::IsMember({"cpu", "cuda"}));
  o->cpu_only = {isa, seconds};
  o->gpu_only = {command
                     ->add_option("--bf16-tflops", o->bf16_tflops,
                                  "dense rate for the lower bounds (\"floor us\") of --device cuda")
                     ->check(CLI::PositiveNumber),
                 command->add_option("--fp8-tflops", o->fp8_tflops, "the same for FP8")->check(CLI::PositiveNumber),
                 command->add_flag("--logits", o->logits, "--device cuda: route from logits, not from given top-k")};
}

}  // namespace sluice::apps
