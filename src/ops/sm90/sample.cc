// SPDX-License-Identifier: Apache-2.0
// From logits to tokens and log probabilities. What rows ask for goes up in one piece. What was chosen the kernels
// write to the host's memory: a copy would keep the next step waiting.
#include <algorithm>

#include "base/math.h"
#include "kernels/sm90/sample/sample.h"
#include "ops/sm90/sm90_ops.h"
#include "ops/sm90/views.h"

namespace sluice::ops::sm90 {

using namespace sluice::sm90;

namespace {
// Arrays one after another in one block, whose address may differ between host and device.
class Layout {
 public:
  template <class T>
  int64_t take(int64_t count) {
    const int64_t at = round_up<int64_t>(bytes_, 16);
    bytes_ = at + count * static_cast<int64_t>(sizeof(T));
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};
template <class T>
T* at(void* block, int64_t offset) {
  return reinterpret_cast<T*>(static_cast<std::byte*>(block) + offset);
}

// One row's edits in the order of tokens, those of one token as they came, without tokens that do not exist.
int32_t write_edits(std::span<const sampling::LogitEdit> edits, int64_t vocab, SampleEdit* out) {
  SampleEdit* end = out;
  for (const sampling::LogitEdit& e : edits)
    if (e.token >= 0 && e.token < vocab) *end++ = {e.token, e.bias, e.repetition, e.subtract, e.banned ? 1 : 0};
  const auto lower = [](const SampleEdit& a, const SampleEdit& b) { return a.token < b.token; };
  if (!std::is_sorted(out, end, lower)) std::stable_sort(out, end, lower);
  return static_cast<int32_t>(end - out);
}
}  // namespace

void* Sm90Ops::Staging::at_least(Device& device, int64_t bytes) {
  if (bytes > size) {
    size = std::max(bytes, 2 * size);
    memory = device.allocate_staging(size);
  }
  return memory.get();
}

void Sm90Ops::sample(Matrix logits, const sampling::SampleBatch& batch, std::span<sampling::Sampled> out) {
  check(batches_begun_ == batches_ended_, "a batch is begun; its results must be taken first");
  if (batch.rows.empty()) return;  // a step of prompts alone: there is nothing to wait for
  begin_sample(logits, batch);
  end_sample(out);
}

void Sm90Ops::begin_sample(Matrix logits, const sampling::SampleBatch& batch) {
  check(logits.dtype == DType::f32, "the logits are {}; float32 is expected", to_string(logits.dtype));
  check(batches_begun_ - batches_ended_ < 2, "{} batches are begun; their results must be taken first",
        batches_begun_ - batches_ended_);
  record_last_batch();
  Sampling& begun = samplings_[batches_begun_ % 2];
  Device& device = ctx().device();
  const auto rows = static_cast<int64_t>(batch.rows.size());
  SampleArgs args{};
  int64_t edits = 0;
  begun.top_rows.clear();
  for (const sampling::SampleRow& r : batch.rows) {
    const int top = static_cast<int>(std::min<int64_t>(r.top_logprobs, logits.cols));
    begun.top_rows.push_back(top);
    edits += r.num_edits;
    args.max_top = std::max(args.max_top, top);
    args.edited |= r.num_edits > 0;
    args.masked |= r.mask >= 0;
    args.scored |= r.top_logprobs >= 0;
    args.drawn |= r.temperature != 0;
  }
  Layout layout;
  const int64_t requests_at = layout.take<SampleRequest>(rows), edits_at = layout.take<SampleEdit>(edits);
  const auto mask_words = static_cast<int64_t>(batch.masks.size());
  const int64_t masks_at = layout.take<uint32_t>(mask_words);
  const int64_t up_bytes = layout.bytes();
  begun.max_top = args.max_top;
  begun.outcomes_at = layout.take<SampleOutcome>(rows);
  begun.top_at = layout.take<SampleLikelihood>(rows * args.max_top);
  void* host = begun.staging.at_least(device, layout.bytes());
  const int64_t outcome_bytes = rows * static_cast<int64_t>(sizeof(SampleOutcome));
  if (results_.empty() || results_.bytes() < outcome_bytes)
    results_ = Tensor(device, DType::u8, {std::max(outcome_bytes, 2 * results_.bytes())});

  auto* requests = at<SampleRequest>(host, requests_at);
  auto* host_edits = at<SampleEdit>(host, edits_at);
  int32_t written = 0;
  for (const sampling::SampleRow& r : batch.rows) {
    const int32_t count =
        write_edits(batch.edits.subspan(static_cast<size_t>(r.first_edit), static_cast<size_t>(r.num_edits)),
                    logits.cols, host_edits + written);
    *requests++ = {r.logits,
                   written,
                   count,
                   r.forced,
                   r.top_logprobs,
                   static_cast<int32_t>(std::min<int64_t>(r.top_k, logits.cols)),
                   r.mask,
                   r.temperature,
                   r.top_p,
                   r.min_p,
                   sampling::uniform_at(r.seed, r.position)};
    written += count;
  }
  std::copy(batch.masks.begin(), batch.masks.end(), at<uint32_t>(host, masks_at));

  const Workspace::Scope scope(workspace());
  auto* sent = workspace().take<std::byte>(round_up(up_bytes, kMovedAtOnce));
  args.logits = static_cast<float*>(logits.data);
  args.stride = logits.stride;
  args.vocab = static_cast<int>(logits.cols);
  args.requests = at<SampleRequest>(sent, requests_at);
  args.edits = at<SampleEdit>(sent, edits_at);
  args.masks = at<uint32_t>(sent, masks_at);
  args.rows = static_cast<int>(rows);
  args.originals = workspace().take<float>(edits);
  args.log_totals = workspace().take<double>(rows);
  args.outcomes = at<SampleOutcome>(results_.address(), 0);
  args.told = at<SampleOutcome>(host, begun.outcomes_at);
  args.top = at<SampleLikelihood>(host, begun.top_at);
  if (rows > 0) {
    const DeviceGuard guard(index_);
    send(sent, host, up_bytes);
    launch_sample(args, stream(), true);
  }
  begun.done.reset();
  result_rows_ = rows;
  ++batches_begun_;
}

// A copy and the kernels beside it are 4 to 9 us apart; a kernel reads so many bytes across the bus in 3.
void Sm90Ops::send(void* to, const void* from, int64_t bytes) {
  constexpr int64_t kMostMoved = int64_t{64} << 10;
  if (bytes > kMostMoved) return ctx().queue.copy(to, from, bytes);
  MoveIntsArgs move{};
  move.from = static_cast<const int32_t*>(from);
  move.to = static_cast<int32_t*>(to);
  move.pieces[0] = {0, ceil_div<int64_t>(bytes, 4)};
  move.num_pieces = 1;
  launch_move_ints(move, stream(), true);
}

// The event that end_sample() waits for comes after the kernel that takes the tokens: between two kernels it would keep
// the second from starting early. Where none takes them, it comes before the next batch, or in end_sample().
void Sm90Ops::record_last_batch() {
  if (batches_begun_ == batches_ended_) return;
  Sampling& last = samplings_[(batches_begun_ - 1) % 2];
  if (!last.done) last.done = ctx().queue.record();
}

void Sm90Ops::end_sample(std::span<sampling::Sampled> out) {
  check(batches_ended_ < batches_begun_, "no batch was begun");
  Sampling& begun = samplings_[batches_ended_++ % 2];
  if (!begun.done) begun.done = ctx().queue.record();
  begun.done->wait();
  void* host = begun.staging.memory.get();
  const auto* outcomes = at<SampleOutcome>(host, begun.outcomes_at);
  const auto* top = at<SampleLikelihood>(host, begun.top_at);
  const size_t rows = std::min(out.size(), begun.top_rows.size());
  for (size_t i = 0; i < rows; ++i) {
    sampling::Sampled& s = out[i];
    s.token = outcomes[i].token;
    s.problem = static_cast<sampling::Sampled::Problem>(outcomes[i].problem);
    s.largest = outcomes[i].largest;
    if (begun.top_rows[i] < 0 || s.token < 0) continue;
    s.logprob.chosen = {s.token, outcomes[i].logprob};
    s.logprob.top.clear();
    for (int n = 0; n < begun.top_rows[i]; ++n) {
      const SampleLikelihood& l = top[i * static_cast<size_t>(begun.max_top) + static_cast<size_t>(n)];
      s.logprob.top.push_back({l.token, l.logprob});
    }
  }
}

void Sm90Ops::take_sampled(int32_t* ids, int64_t count) {
  {
    const DeviceGuard guard(index_);
    launch_take_sampled({ids, count, at<SampleOutcome>(results_.address(), 0), result_rows_}, stream(), true);
  }
  record_last_batch();
}

// Where the last batch of samples waits for its event, it shares this one: recorded work follows, and each event ahead
// of it keeps the GPU idle.
std::shared_ptr<Event> Sm90Ops::move_batch(const BatchMove& move) {
  check(move.pieces.size() <= BatchMove::kMaxPieces, "a batch of {} pieces is to be moved; at most {} are supported",
        move.pieces.size(), BatchMove::kMaxPieces);
  MoveIntsArgs args{};
  args.from = move.from;
  args.to = move.to;
  args.num_pieces = static_cast<int>(move.pieces.size());
  args.ids = true;
  std::transform(move.pieces.begin(), move.pieces.end(), args.pieces, [](const BatchMove::Piece& p) {
    return MoveIntsArgs::Piece{p.first, p.count};
  });
  args.outcomes = at<SampleOutcome>(results_.address(), 0);
  args.rows = result_rows_;
  {
    const DeviceGuard guard(index_);
    launch_move_ints(args, stream(), true);
  }
  std::shared_ptr<Event> moved = ctx().queue.record();
  if (batches_begun_ > batches_ended_) {
    Sampling& last = samplings_[(batches_begun_ - 1) % 2];
    if (!last.done) last.done = moved;
  }
  return moved;
}

void Sm90Ops::log_likelihoods(ConstMatrix logits, std::span<const int32_t> ids, std::span<double> out) {
  check(logits.dtype == DType::f32, "the logits are {}; float32 is expected", to_string(logits.dtype));
  const auto rows = static_cast<int64_t>(ids.size());
  if (rows == 0) return;
  void* host = waited_.at_least(ctx().device(), rows * 8);
  std::copy(ids.begin(), ids.end(), static_cast<int32_t*>(host));
  const Workspace::Scope scope(workspace());
  auto* device_ids = workspace().take<int32_t>(rows);
  auto* results = workspace().take<double>(rows);
  Queue& queue = ctx().queue;
  queue.copy(device_ids, host, rows * 4);
  {
    const DeviceGuard guard(index_);
    launch_log_likelihoods({static_cast<const float*>(logits.data), logits.stride, static_cast<int>(logits.cols),
                            device_ids, rows, results},
                           stream(), true);
  }
  queue.copy(host, results, rows * 8);
  queue.wait();
  std::copy_n(static_cast<const double*>(host), rows, out.begin());
}

}  // namespace sluice::ops::sm90
