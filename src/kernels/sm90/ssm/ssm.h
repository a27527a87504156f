// SPDX-License-Identifier: Apache-2.0
// Mamba-2: the causal convolution and the recurrence over states.
#pragma once

#include "kernels/sm90/device.h"
#include "kernels/sm90/rows.h"

namespace sluice::sm90 {

// The rows and states of a batch (ops/batch.h).
struct StateRows {
  int64_t rows, longest_rows;
  int sequences;
  const int32_t* row_begin;  // [sequences + 1]
  const int32_t* state_in;   // [sequences]: place; -1: zeros
  const int32_t* state_out;  // [rows]: place; -1: not stored
  float* states;             // [places, state_floats]
  int64_t state_floats;
};

struct CausalConvArgs {
  StateRows batch;      // a state: the last taps - 1 rows, [taps - 1, channels]
  ConstRowsView xbc;    // D [rows, channels]
  const float* weight;  // [taps, channels], the last tap the newest
  const float* bias;    // [channels] or null
  RowsView out;         // float32 or D [rows, channels]
  int channels, taps;   // taps <= kMaxConvTaps
};
inline constexpr int kMaxConvTaps = 16;
void launch_causal_conv(const CausalConvArgs& args, Stream stream, bool pdl);

struct StateScanArgs {
  StateRows batch;                     // a state: [heads, state, head_dim]
  ConstRowsView xbc;                   // float32 or D [rows, heads * head_dim + 2 groups * state]: x | B | C
  ConstRowsView dt;                    // D [rows, heads]
  const float *dt_bias, *a, *skip;     // [heads]
  RowsView y;                          // float32 [rows, heads * head_dim]
  int heads, head_dim, groups, state;  // scan_fits()
  // Sequences of at least this many new rows are left to, or taken by, launch_chunked_scan; 0: none.
  int64_t chunked_rows;
  // launch_chunked_scan: parts of a sequence that are computed at the same time (scan_segments), and, if there are more
  // than one, memory for what each leaves to the next: [sequences, segments, heads] states and factors.
  int segments = 1;
  float *carried, *decays;
};
// Each of 256 threads holds up to 64 values of a head's state.
constexpr bool scan_fits(int head_dim, int state) {
  return head_dim >= 1 && head_dim <= 256 && state <= 64 * (256 / head_dim) && state <= 512;
}
// Row by row: a row's bits depend on its own sequence alone, however that is cut into batches.
void launch_state_scan(const StateScanArgs& args, Stream stream, bool pdl);

// The heads that published models have; kernels for them alone.
inline constexpr int kScanDim = 64, kScanState = 128;
// 64 rows at once, on tensor cores. A chunk begins with the first new row of its sequence or of a segment and after
// every row that stores a state, so a row's bits depend on all of them.
inline constexpr int kScanChunk = 64;
// From here on rows are computed in chunks. A chunk takes the time of kScanChunk rows whatever it holds, so fewer rows
// go one after another. This number is a quarter of a chunk; no measurement of it is kept.
inline constexpr int64_t kChunkedMinRows = 16;
// As many as let two blocks per multiprocessor work, where a sequence has many rows and the batch few sequences. They
// cost a launch that computes the states between them, some 0.4 of the time of the rows (8192 rows in one segment 657
// us, in four 210 and 94; docs/kernels/sm90_ssm.md). A segment has at least four chunks, as the copies of a chunk are
// hidden by the products of the one before it; no measurement of other lengths is kept.
inline constexpr int64_t kMinSegmentRows = 4 * kScanChunk;
constexpr int scan_segments(int64_t heads, int64_t sequences, int64_t longest_rows, int multiprocessors) {
  const int64_t room = 2 * multiprocessors / (heads * sequences), most = longest_rows / kMinSegmentRows;
  const int64_t segments = room < most ? room : most;
  return segments > 1 ? static_cast<int>(segments) : 1;
}
constexpr int64_t carried_floats(int64_t heads, int64_t sequences, int segments) {
  return segments > 1 ? sequences * segments * heads * kScanState * kScanDim : 0;
}
bool chunked_scan_fits(const StateScanArgs& args);
void allow_chunked_scan();  // on the current device, once before the first launch
void launch_chunked_scan(const StateScanArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
