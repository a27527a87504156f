// SPDX-License-Identifier: Apache-2.0
// What attention has summed up for some queries over some positions, before it is divided.
#pragma once

#include <cstdint>

namespace sluice::ops::cpu {

struct AttentionSums {
  float* values;   // [queries][width]: of the values, each times exp(its score - maximum)
  float* maximum;  // [queries]: of the scores
  float* sum;      // [queries]: of exp(score - maximum)
  int64_t width;   // a multiple of 16

  static int64_t floats(int64_t queries, int64_t columns) { return queries * (columns + 2); }
  // In `memory`, of floats(queries, columns).
  AttentionSums(float* memory, int64_t queries, int64_t columns)
      : values(memory), maximum(memory + queries * columns), sum(maximum + queries), width(columns) {}

  // Those of the queries from `first` on.
  AttentionSums from(int64_t first) const {
    AttentionSums s = *this;
    s.values += first * width, s.maximum += first, s.sum += first;
    return s;
  }

  // Makes them those of `count` queries over no position. The values are not written: what is added first overwrites
  // them.
  void clear(int64_t count) const;
  // Adds the sums of the same queries over later positions; both are over at least one. The only place where chunks of
  // positions meet: a query's bits depend on its chunks and their order alone.
  void merge(const AttentionSums& later, int64_t count) const;
};

}  // namespace sluice::ops::cpu
