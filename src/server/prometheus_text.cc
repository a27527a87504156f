// SPDX-License-Identifier: Apache-2.0
#include "server/prometheus_text.h"

#include <fmt/format.h>

#include <cmath>

namespace sluice::server {

namespace {
std::string escaped(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n')
      out += "\\n";
    else
      out += c;
  }
  return out;
}

std::string number(double value) {
  if (std::isnan(value)) return "NaN";
  if (std::isinf(value)) return value > 0 ? "+Inf" : "-Inf";
  return fmt::format("{}", value);
}
}  // namespace

PrometheusText::PrometheusText(std::string_view model_name)
    : labels_(fmt::format("model_name=\"{}\"", escaped(model_name))) {}

void PrometheusText::describe(std::string_view name, std::string_view help, std::string_view type) {
  const std::string full = prefix_ + std::string(name);
  if (described_ == full) return;
  described_ = full;
  text_ += fmt::format("# HELP {} {}\n# TYPE {} {}\n", full, help, full, type);
}

void PrometheusText::sample(std::string_view name, std::string_view more_labels, double value) {
  text_ += fmt::format("{}{}{{{}{}}} {}\n", prefix_, name, labels_, more_labels, number(value));
}

void PrometheusText::gauge(std::string_view name, std::string_view help, double value) {
  describe(name, help, "gauge");
  sample(name, "", value);
}

void PrometheusText::counter(std::string_view name, std::string_view help, double value) {
  describe(name, help, "counter");
  sample(name, "", value);
}

void PrometheusText::info(std::string_view name, std::string_view help,
                          std::initializer_list<std::pair<std::string_view, std::string>> labels) {
  describe(name, help, "gauge");
  std::string text;
  for (const auto& [label, value] : labels) text += fmt::format(",{}=\"{}\"", label, escaped(value));
  sample(name, text, 1);
}

void PrometheusText::process_gauge(std::string_view name, std::string_view help, double value) {
  text_ += fmt::format("# HELP {} {}\n# TYPE {} gauge\n{} {}\n", name, help, name, name, number(value));
}

void PrometheusText::counter(std::string_view name, std::string_view help, std::string_view label,
                             std::string_view label_value, double value) {
  describe(name, help, "counter");
  sample(name, fmt::format(",{}=\"{}\"", label, escaped(label_value)), value);
}

void PrometheusText::histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                               std::span<const int64_t> counts, double sum) {
  describe(name, help, "histogram");
  int64_t total = 0;
  for (size_t i = 0; i < counts.size(); ++i) {
    total += counts[i];
    const std::string bound = i < bounds.size() ? number(bounds[i]) : "+Inf";
    sample(fmt::format("{}_bucket", name), fmt::format(",le=\"{}\"", bound), static_cast<double>(total));
  }
  sample(fmt::format("{}_sum", name), "", sum);
  sample(fmt::format("{}_count", name), "", static_cast<double>(total));
}

}  // namespace sluice::server
