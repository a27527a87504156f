// SPDX-License-Identifier: Apache-2.0
// Logits to tokens and log probabilities: sampling/choose.h is the definition.
//
// Where that draws from exact sums of doubles in sorted order, these kernels add integers: a token weighs
// round(2^44 exp((logit - largest) / temperature)). Integer sums are the same in every order, so thousands of threads
// give one result on every run, without sorting the vocabulary. A token under 2^-45 of the likeliest one is never
// drawn.
#pragma once

#include "kernels/sm90/device.h"

namespace sluice::sm90 {

// One row's request: the fields of sampling::SampleRow as the kernels read them, with what the host computes once.
struct SampleRequest {
  int32_t row;                    // of the logits
  int32_t first_edit, num_edits;  // ordered by token, those of one token in the order of the list
  int32_t forced;                 // 0 or more: this token, and no edits
  int32_t top_logprobs;           // -1: no log probabilities
  int32_t top_k;                  // 0: all
  int32_t mask;                   // row of masks; -1: none
  double temperature, top_p, min_p;
  double uniform;  // in [0, 1): the random number that decides the choice
};
struct SampleEdit {
  int32_t token;  // in [0, vocab)
  float bias;
  double repetition, subtract;
  int32_t banned;
};
struct SampleLikelihood {
  int32_t token;
  float logprob;
};
struct SampleOutcome {
  int32_t token;    // -1 where problem is not 0
  int32_t problem;  // 1: a NaN among the logits, 2: the largest is infinite
  float largest;    // after the edits
  float logprob;    // of the token, where it was asked for
};
// One token for each of `rows` requests. Pointers are device memory, where nothing else is said.
struct SampleArgs {
  float* logits;   // [any number of rows, stride]; edits and masks change the rows that requests name
  int64_t stride;  // elements from row to row, at least vocab
  int vocab;

  const SampleRequest* requests;  // [rows]
  const SampleEdit* edits;        // those of all requests; read only if edited
  const uint32_t* masks;          // [.., ceil(vocab / 32)]: bit 1 where a token may be chosen; read only if masked
  int rows;                       // requests
  // Whether any request has edits, has a mask, wants log probabilities, has a temperature above 0.
  bool edited, masked, scored, drawn;

  // Workspace.
  float* originals;    // [edits]: an edited token's logit as it came, at its first edit; used only if edited
  double* log_totals;  // [rows]: ln of the sum of exp of the logits as they came; used only if scored

  // Results. `top` may be page-locked host memory.
  SampleLikelihood* top;    // [rows, max_top]: the likeliest tokens before edits, best first; written only if scored
  int max_top;              // at least the largest top_logprobs
  SampleOutcome* outcomes;  // [rows]
  SampleOutcome* told;      // the same, in page-locked host memory; null: nobody wants them there
};
// On the current device, once before the first launch there: allows the kernels' shared memory.
void allow_sample();
void launch_sample(const SampleArgs& args, Stream stream, bool pdl);

// ids[i] = the token of outcome ~ids[i], for negative ones; 0 where there is none.
struct TakeSampledArgs {
  int32_t* ids;  // [count]
  int64_t count;
  const SampleOutcome* outcomes;  // [rows]
  int64_t rows;
};
void launch_take_sampled(const TakeSampledArgs& args, Stream stream, bool pdl);

// to[i] = from[i] for the ints of some pieces, and in the first piece, if it holds ids, tokens in the place of negative
// ones, as above. Up to three ints after a piece's end are copied as well.
struct MoveIntsArgs {
  struct Piece {
    int64_t first, count;  // first: a multiple of 4
  };
  static constexpr int kMaxPieces = 10;
  const int32_t* from;  // page-locked host memory, aligned to 16 bytes; nothing on the GPU writes it
  int32_t* to;          // aligned to 16 bytes
  Piece pieces[kMaxPieces];
  int num_pieces;
  bool ids;                       // whether the first piece holds ids
  const SampleOutcome* outcomes;  // [rows]
  int64_t rows;
};
inline constexpr int64_t kMovedAtOnce = 16;  // bytes
void launch_move_ints(const MoveIntsArgs& args, Stream stream, bool pdl);

struct LikelihoodArgs {
  const float* logits;  // [rows, stride]
  int64_t stride;
  int vocab;
  const int32_t* ids;  // [rows]
  int64_t rows;
  double* out;  // [rows]: ln softmax(logits)[id]; NaN where the row holds one
};
void launch_log_likelihoods(const LikelihoodArgs& args, Stream stream, bool pdl);

}  // namespace sluice::sm90
