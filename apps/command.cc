// SPDX-License-Identifier: Apache-2.0
#include "command.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>

#include "base/env.h"
#include "device/choose_device.h"
#include "device/cuda.h"
#include "interrupt.h"
#include "progress.h"

namespace sluice::apps {

struct Shared::Live {
  explicit Live(int threads) : pool(threads), progress(stderr) {}
  ThreadPool pool;
  ProgressView progress;
  std::unique_ptr<Device> device;  // nothing: the CPU
  std::unique_ptr<Queue> queue;
};

Shared::Shared() = default;
Shared::~Shared() = default;

Context Shared::context(const std::string& device) {
  if (!live_) live_ = std::make_unique<Live>(threads);
  const DeviceChoice choice = choose_device(device);
  if (!choice.id.is_host() && !live_->device) {
    live_->device = make_cuda_device(choice.id.index);
    live_->queue = live_->device->make_queue();
  }
  if (!choice.reason.empty())
    live_->progress.line(fmt::format("device: {} ({}: {})", to_string(choice.id), device, choice.reason));
  const LogLevel least = log_level == "debug"  ? LogLevel::debug
                         : log_level == "info" ? LogLevel::info
                                               : LogLevel::warning;
  ProgressView& view = live_->progress;
  return {live_->pool,
          [&view, least](LogLevel level, std::string_view line) {
            if (level >= least) view.line(line);
          },
          [&view](const Progress& p) {
            throw_if_interrupted();
            view.show(p);
          },
          live_->queue ? *live_->queue : host_queue()};
}

void Shared::clear_progress() {
  if (live_) live_->progress.clear();
}

CLI::App* add_command(CLI::App& parent, Shared& shared, const CommandText& text, std::function<void()> body) {
  CLI::App* command = parent.add_subcommand(text.name, text.summary);
  command->footer("Examples:\n" + text.examples);
  command
      ->add_option("--threads", shared.threads,
                   "worker threads; 0: every usable core [" + std::string(kEnvThreads.name) + "]")
      ->check(CLI::Range(0, ThreadPool::kMaxThreads))
      ->group("Common options");
  command->add_option("--log-level", shared.log_level, "debug, info or warning [" + std::string(kEnvLog.name) + "]")
      ->check(CLI::IsMember({"debug", "info", "warning"}))
      ->group("Common options");
  command->callback([&shared, body = std::move(body)] { shared.action = body; });
  return command;
}

CLI::App& add_group(CLI::App& parent, const std::string& name, const std::string& summary) {
  CLI::App* group = parent.add_subcommand(name, summary);
  group->require_subcommand(0, 1);  // main() asks for the missing one
  return *group;
}

}  // namespace sluice::apps
