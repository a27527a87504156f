// SPDX-License-Identifier: Apache-2.0
#include "model_cells.h"

#include <algorithm>
#include <charconv>
#include <chrono>
#include <cmath>
#include <limits>
#include <numeric>

#include "base/math.h"
#include "interrupt.h"
#include "sampling/choose.h"
#include "spec/moe_spec.h"

namespace sluice::apps {

namespace {
constexpr int64_t kBlockSize = 64, kMost = int64_t{1} << 24;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

model::RunnerConfig runner_config(const CellOptions& o) {
  model::RunnerConfig c;
  c.recording = o.recording;
  c.cache.block_size = kBlockSize;
  int64_t sequences = 1, rows = 1;
  for (const Cell& cell : o.cells) {
    const int64_t tokens = cell.input_len + cell.new_tokens;
    c.cache.blocks = std::max(c.cache.blocks, cell.batch_size * ceil_div(tokens, kBlockSize));
    c.sequence_tokens = std::max(c.sequence_tokens, tokens);
    sequences = std::max(sequences, cell.batch_size);
    rows = std::max(rows, std::min(cell.batch_size * cell.input_len, o.chunk));
  }
  c.cache.slots = static_cast<int>(sequences);
  c.sequences = sequences;
  c.rows = std::max(rows, sequences);
  return c;
}

class Bench {
 public:
  Bench(Context& ctx, const model::Model& model, const CellOptions& options)
      : model_(model), options_(options), config_(runner_config(options)), runner_(ctx, model, config_) {}

  CellResult measure(const Cell& cell) {
    begin(cell);
    prefill();  // warms up, as the steps that follow do
    decode(std::min<int64_t>(2, cell.new_tokens - 1));
    CellResult best{cell, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity(), 0};
    for (int r = 0; r < options_.repeat; ++r) {
      throw_if_interrupted();
      begin(cell);
      auto start = std::chrono::steady_clock::now();
      prefill();
      best.prefill_seconds = std::min(best.prefill_seconds, seconds_since(start));
      start = std::chrono::steady_clock::now();
      decode(cell.new_tokens - 1);
      best.step_seconds =
          cell.new_tokens == 1
              ? 0
              : std::min(best.step_seconds, seconds_since(start) / static_cast<double>(cell.new_tokens - 1));
    }
    best.step_bytes = step_bytes(cell);
    return best;
  }

 private:
  struct Sequence {
    std::vector<int32_t> prompt, blocks;
    int64_t context = 0;  // tokens in the cache
    int32_t next = 0;     // chosen, not yet there
  };

  // Prompts of ids that are spread over the vocabulary and differ between sequences.
  void begin(const Cell& cell) {
    cell_ = cell;
    sequences_.assign(static_cast<size_t>(cell.batch_size), {});
    const int64_t blocks = ceil_div(cell.input_len + cell.new_tokens, kBlockSize);
    const auto vocab = static_cast<uint64_t>(model_.info().vocab);
    for (size_t b = 0; b < sequences_.size(); ++b) {
      Sequence& s = sequences_[b];
      s.blocks.resize(static_cast<size_t>(blocks));
      std::iota(s.blocks.begin(), s.blocks.end(), static_cast<int32_t>(static_cast<int64_t>(b) * blocks));
      for (int64_t i = 0; i < cell.input_len; ++i)
        s.prompt.push_back(static_cast<int32_t>(
            (static_cast<uint64_t>(i) * 2654435761u + static_cast<uint64_t>(b) * 40503u + 12345) % vocab));
    }
  }

  void prefill() {
    for (size_t first = 0; first < sequences_.size();) {
      runner_.clear();
      chosen_.clear();
      for (int64_t room = config_.rows; room > 0 && first < sequences_.size();) {
        Sequence& s = sequences_[first];
        const int64_t n = std::min(cell_.input_len - s.context, room);
        const bool last = s.context + n == cell_.input_len;
        runner_.add({static_cast<int>(first),
                     std::span(s.prompt).subspan(static_cast<size_t>(s.context), static_cast<size_t>(n)), s.context,
                     s.blocks, last ? 1 : 0});
        s.context += n;
        room -= n;
        if (last) chosen_.push_back(first++);
      }
      runner_.run();
      sample();
    }
  }

  // Each step is enqueued while the device is at the one before, as the engine does: tokens go from step to step on the
  // device, and the host learns them one step late.
  void decode(int64_t steps) {
    const int64_t ahead = options_.overlap ? 2 : 1;
    for (int64_t begun = 0, ended = 0; ended < steps; ++ended) {
      for (; begun < std::min(ended + ahead, steps); ++begun) begin_step(begun > ended);
      end_sample();
    }
  }

  // `chained`: the tokens are those that the step begun last will choose.
  void begin_step(bool chained) {
    runner_.clear();
    chosen_.clear();
    for (size_t b = 0; b < sequences_.size(); ++b) {
      Sequence& s = sequences_[b];
      runner_.add({.slot = static_cast<int>(b),
                   .tokens = {&s.next, 1},
                   .context = s.context,
                   .blocks = s.blocks,
                   .logit_rows = 1,
                   .sampled = chained ? static_cast<int32_t>(b) : -1});
      ++s.context;
      chosen_.push_back(b);
    }
    runner_.run();
    begin_sample();
  }

  // One token for each sequence in chosen_, whose logits are the step's in that order.
  void sample() {
    if (chosen_.empty()) return;
    begin_sample();
    end_sample();
  }

  void begin_sample() {
    rows_.assign(chosen_.size(), {});
    for (size_t i = 0; i < chosen_.size(); ++i) {
      sampling::SampleRow& row = rows_[i];
      row.logits = static_cast<int32_t>(i);
      row.temperature = options_.temperature;
      row.seed = chosen_[i] + 1;
      row.position = sequences_[chosen_[i]].context;
    }
    runner_.begin_sample({rows_, {}});
  }

  void end_sample() {
    sampled_.resize(chosen_.size());
    runner_.end_sample(sampled_);
    for (size_t i = 0; i < chosen_.size(); ++i) {
      Sequence& s = sequences_[chosen_[i]];
      s.next = sampling::checked_token(sampled_[i], s.context);
    }
  }

  double step_bytes(const Cell& cell) const {
    const model::ModelInfo& info = model_.info();
    const auto batch = static_cast<double>(cell.batch_size);
    double touched = 0;  // of the experts
    if (!info.experts.empty()) {
      const MoeSpec spec = parse_moe_spec(info.experts);
      touched = 1 - std::pow(1 - static_cast<double>(spec.top_k) / spec.experts, batch);
    }
    const auto experts = static_cast<double>(info.expert_bytes);
    const double weights = static_cast<double>(info.weight_bytes - info.embedding_bytes) - experts * (1 - touched);
    const double context = static_cast<double>(cell.input_len) + static_cast<double>(cell.new_tokens) / 2;
    const model::CacheShape& cache = model_.cache_shape();
    // States are read and written.
    return weights + batch * (context * static_cast<double>(cache.bytes_per_token()) +
                              2 * static_cast<double>(cache.bytes_per_slot(1)));
  }

  const model::Model& model_;
  const CellOptions& options_;
  model::RunnerConfig config_;
  model::Runner runner_;
  Cell cell_;
  std::vector<Sequence> sequences_;
  std::vector<size_t> chosen_;
  std::vector<sampling::SampleRow> rows_;
  std::vector<sampling::Sampled> sampled_;
};
}  // namespace

void run_cells(Context& ctx, const model::Model& model, const CellOptions& options,
               const std::function<void(const CellResult&)>& report) {
  Bench bench(ctx, model, options);
  for (const Cell& cell : options.cells) report(bench.measure(cell));
}

double copy_bytes_per_second(Context& ctx) {
  Device& device = ctx.device();
  if (device.id().is_host()) return 0;
  const int64_t bytes = std::min<int64_t>(int64_t{2} << 30, device.memory().free / 4);
  const std::shared_ptr<void> from = device.allocate(bytes), to = device.allocate(bytes);
  constexpr int kCopies = 10;
  double best = 0;
  for (int r = 0; r < 4; ++r) {
    ctx.queue.wait();
    const auto start = std::chrono::steady_clock::now();
    for (int i = 0; i < kCopies; ++i) ctx.queue.copy(to.get(), from.get(), bytes);
    ctx.queue.wait();
    best = std::max(best, 2.0 * kCopies * static_cast<double>(bytes) / seconds_since(start));
  }
  return best;
}

Cell parse_cell(const std::string& option, const std::string& text) {
  Cell cell;
  const size_t x = text.find('x');
  const auto number = [&](size_t begin, size_t end, int64_t& out) {
    const char* last = text.data() + end;
    const auto [at, error] = std::from_chars(text.data() + begin, last, out);
    return error == std::errc{} && at == last && out >= 1 && out <= kMost;
  };
  if (x == std::string::npos || !number(0, x, cell.batch_size) || !number(x + 1, text.size(), cell.input_len))
    fail(ErrorCode::invalid_argument, "{} has \"{}\"; accepted: batch size x prompt length, as in 16x1024", option,
         text);
  return cell;
}

}  // namespace sluice::apps
