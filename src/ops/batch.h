// SPDX-License-Identifier: Apache-2.0
// The rows of one step as plain integers: the only thing that a model receives. Prompts in chunks, single new tokens
// and drafts to verify mix freely; a row's result does not depend on the rest of the batch.
//
// All arrays lie in the memory of the device that runs the step, at addresses that stay from step to step
// (model::BatchBuilder), so that a step is one upload and recorded work can read the next one. They are written by
// copies, or by Ops::move_batch() ahead of recorded work, and never by another operation, but for token ids, which
// Ops::take_sampled() completes and only the embedding reads: a GPU's operations read the others, and pages of
// positions before a sequence's new rows, while the operation ahead still runs. Paged memory is described
// as FlashInfer describes it (begin offsets into one list of blocks): what travels is what is used, not a table of
// sequences x the longest context.
#pragma once

#include <cstdint>
#include <span>

namespace sluice::ops {

// Sequences of at least as many new rows are prompts: operations that compute them in another way must know the memory
// that it takes.
inline constexpr int64_t kPromptRows = 256;

struct Batch {
  int64_t rows = 0, sequences = 0, logit_rows = 0;

  // [rows]
  const int32_t* tokens = nullptr;
  const int32_t* positions = nullptr;  // of the rotary embedding: context + row within the sequence
  // block * block_size + offset: where the row's keys and values are stored; -1: not stored.
  const int32_t* kv_slots = nullptr;
  // Where the recurrent state after this row is stored; -1: not stored. The last row of a sequence stores its state,
  // which may be where state_in lies; no place of one sequence is another's in the same step. Rows of drafts store one
  // each, in places of their own, so that accepting some of them moves no memory.
  const int32_t* state_out = nullptr;

  // [sequences + 1]: the rows of sequence s are [row_begin[s], row_begin[s + 1]); its blocks, in order of position, are
  // blocks[block_begin[s]] to blocks[block_begin[s + 1] - 1]. A step that is padded to the size of a recorded one ends
  // in sequences without rows and in rows of no sequence, from row_begin[sequences] on: what operations compute for
  // these is not specified, they store neither keys, values nor states, and no other row depends on them.
  const int32_t* row_begin = nullptr;
  const int32_t* block_begin = nullptr;
  const int32_t* blocks = nullptr;

  // [sequences]
  const int32_t* contexts = nullptr;  // tokens in the cache before the first row: the position of that row
  const int32_t* state_in = nullptr;  // place of the recurrent state before the first row; -1: zeros, a new sequence

  const int32_t* logits_of = nullptr;  // [logit_rows]: rows whose logits are wanted, ascending
  // [1]: rows that belong to sequences, where that is not `rows` at every use of these addresses; null: all.
  const int32_t* num_rows = nullptr;

  // Bounds that the host knows, for the geometry of launches.
  int64_t longest_rows = 0;     // rows of one sequence
  int64_t longest_context = 0;  // context + rows of one sequence
  // What the prompts have together, exactly: their number, rows, and contexts + rows.
  int64_t prompts = 0, prompt_rows = 0, prompt_positions = 0;

  void count_prompt(int64_t context, int64_t new_rows) {
    if (new_rows < kPromptRows) return;
    ++prompts;
    prompt_rows += new_rows;
    prompt_positions += context + new_rows;
  }
};

// Integers of a step on their way to the device.
struct BatchMove {
  // In ints. Pieces begin at multiples of 16 bytes. Up to three ints after the end of one may be read and written.
  struct Piece {
    int64_t first = 0, count = 0;
  };
  static constexpr int kMaxPieces = 10;

  const int32_t* from = nullptr;  // memory of Device::allocate_staging()
  int32_t* to = nullptr;          // memory of the device
  std::span<const Piece> pieces;  // of both; the first one is the ids of tokens
};

}  // namespace sluice::ops
