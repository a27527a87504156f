// SPDX-License-Identifier: Apache-2.0
// `sluice moe run`: one fused-MoE call from a file to a file.
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "argument_checks.h"
#include "command.h"
#include "io/file.h"
#include "moe/case_file.h"
#include "moe/select.h"

namespace sluice::apps {

namespace {

struct Options {
  std::string in, out, backend = "auto";
  bool trace = false;
};

void run(const Options& o, Shared& shared) {
  Context ctx = shared.context();
  check_not_the_input(o.out, o.in);
  const moe::CaseFile c = moe::read_case(io::SafetensorsFile::open(o.in));
  const std::string_view backend = moe::run_case(ctx, c, o.backend, o.trace, o.out);
  // What reads the tensors from standard output expects nothing after them.
  std::FILE* const to = io::descriptor_of(io::follow_links(o.out)) == STDOUT_FILENO ? stderr : stdout;
  std::fprintf(to, "%s: %lld tokens on %s: %s\n", o.out.c_str(), static_cast<long long>(c.tokens),
               std::string(backend).c_str(), to_string(c.spec).c_str());
}

}  // namespace

void add_moe(CLI::App& parent, Shared& shared) {
  CLI::App& group = add_group(parent, "moe", "the fused mixture-of-experts operator on its own");
  auto o = std::make_shared<Options>();
  CLI::App* command = add_command(group, shared,
                                  {"run", "one fused-MoE call from a safetensors file",
                                   "  sluice moe run case.safetensors -o out.safetensors --trace\n"},
                                  [o, &shared] { run(*o, shared); });
  command->add_option("CASE", o->in, "safetensors file with the inputs (docs/reference.md)")->required();
  command->add_option("-o,--output", o->out, "safetensors file to write")->required();
  command->add_option("--moe-runner-backend", o->backend, "the backend: " + moe::backend_names());
  command->add_flag("--trace", o->trace, "also write the chosen experts and every rounding point");
}

}  // namespace sluice::apps
