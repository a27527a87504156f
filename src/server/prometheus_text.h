// SPDX-License-Identifier: Apache-2.0
// Prometheus' text format 0.0.4. prometheus-cpp was rejected: its registry counts by itself, while the engine hands
// over finished numbers, and what would be left of it is this file.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <string_view>
#include <utility>

namespace sluice::server {

class PrometheusText {
 public:
  // labels: {model_name="x"} of every sample.
  explicit PrometheusText(std::string_view model_name);

  // "sluice:" for example; it goes before all names from here on.
  void set_prefix(std::string_view prefix) { prefix_ = prefix; }

  void gauge(std::string_view name, std::string_view help, double value);
  void counter(std::string_view name, std::string_view help, double value);
  // A sample of 1 that only carries labels, each {name, value}.
  void info(std::string_view name, std::string_view help,
            std::initializer_list<std::pair<std::string_view, std::string>> labels);
  // A gauge of the process, under Prometheus' own name and without labels.
  void process_gauge(std::string_view name, std::string_view help, double value);
  // One sample of a counter with a further label; the first call for a name writes its help.
  void counter(std::string_view name, std::string_view help, std::string_view label, std::string_view label_value,
               double value);
  // counts: one per bound and one above, not cumulative.
  void histogram(std::string_view name, std::string_view help, std::span<const double> bounds,
                 std::span<const int64_t> counts, double sum);
  const std::string& str() const { return text_; }

 private:
  void describe(std::string_view name, std::string_view help, std::string_view type);
  void sample(std::string_view name, std::string_view more_labels, double value);

  std::string text_, prefix_, labels_, described_;
};

}  // namespace sluice::server
