// SPDX-License-Identifier: Apache-2.0
// THE LIST of sub-commands: a declaration and a line each, in the order of --help.
#include "command.h"

namespace sluice::apps {

void add_generate(CLI::App& parent, Shared& shared);
void add_serve(CLI::App& parent, Shared& shared);
void add_eval(CLI::App& parent, Shared& shared);
void add_quantize(CLI::App& parent, Shared& shared);
void add_bench_model(CLI::App& parent, Shared& shared);
void add_bench_moe(CLI::App& parent, Shared& shared);
void add_bench_serving(CLI::App& parent, Shared& shared);
void add_moe(CLI::App& parent, Shared& shared);
void add_explain(CLI::App& parent, Shared& shared);
void add_info(CLI::App& parent, Shared& shared);

void add_commands(CLI::App& app, Shared& shared) {
  add_generate(app, shared);
  add_serve(app, shared);
  add_eval(app, shared);
  add_quantize(app, shared);
  CLI::App& bench = add_group(app, "bench", "measure speed");
  add_bench_model(bench, shared);
  add_bench_moe(bench, shared);
  add_bench_serving(bench, shared);
  add_moe(app, shared);
  add_explain(app, shared);
  add_info(app, shared);
}

}  // namespace sluice::apps
