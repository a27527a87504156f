// SPDX-License-Identifier: Apache-2.0
// The fused layer on one GPU, cell by cell. No CUDA header, so that `sluice bench moe --device cuda` is a client of it.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "format/formats.h"
#include "moe_shapes.h"

namespace sluice::bench {

struct Kind {
  const char* name;
  format::Format weights;
  format::InputFormat inputs;
  double bits;  // per weight, scales included
  bool fp8;     // floor of flops at the FP8 rate
  bool f32_sums = false;
};
struct Options {
  std::vector<std::string> shapes, kinds, instances;  // empty: all shapes, all kinds, only the tile that is chosen
  std::vector<int> splits;                            // pairs to force
  std::vector<int64_t> tokens{1, 8, 32, 128, 512, 2048, 8192};
  double copy_tbs = 0, bf16_tflops = 790, fp8_tflops = 1497;
  bool pdl = true, logits = false;
  bool separate_rounding = false;  // also with GemmForce::separate_rounding
  int64_t cold_mb = 2400;          // weights in rotation, at least
  int replays = 20;
  // A kernel before each call, as in another program's steps; its time is taken off. None by default.
  std::function<void(const void* hidden, int64_t bytes, void* stream)> before;
};
struct Cell {
  std::string shape, kind;
  int64_t tokens = 0;
  double us = 0, floor_us = 0;  // per call: the median of replays; the larger of bytes and operations at the ceilings
  std::string bound_by;         // "mem" or "flops"
  std::string tile;
  int splits[2] = {1, 1};
  bool forced = false;
};

extern const std::vector<Kind> kKinds;

// "" where this machine can run the benchmark, or why not.
std::string gpu_problem();

// Device-to-device copy, bytes read plus bytes written: TB/s.
double measure_copy();

// Each cell of the options' shapes, kinds and tokens, as soon as it is measured. `o.copy_tbs` is measure_copy()'s.
void measure_moe(const Options& o, const std::function<void(const Cell&)>& sink);

}  // namespace sluice::bench
