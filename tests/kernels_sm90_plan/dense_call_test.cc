// SPDX-License-Identifier: Apache-2.0
// What a call of the dense GEMM refuses before a device is touched, and in which words.
#include "kernels/sm90/dense/dense_call.h"

#include <gtest/gtest.h>

#include "base/error.h"

namespace sluice::sm90 {
namespace {

std::string refusal(const DenseSpec& spec, const DenseCall& args) {
  try {
    check_dense_call(spec, args);
  } catch (const Error& e) {
    EXPECT_EQ(e.code(), ErrorCode::invalid_argument);
    return e.what();
  }
  return "";
}

struct Memory {
  uint8_t bytes[64] = {};
  float floats[16] = {};
};

DenseCall plain_call(Memory& m) {
  DenseCall a;
  a.tokens = 3;
  a.x = m.bytes;
  a.y = m.bytes;
  return a;
}

TEST(CheckDenseCall, Tokens) {
  Memory m;
  const DenseSpec spec{64, 64, format::Format::bf16, format::InputFormat::plain, DType::bf16};
  DenseCall a = plain_call(m);
  EXPECT_EQ(refusal(spec, a), "");
  for (const int64_t tokens : {int64_t{-1}, int64_t{-5}, INT64_MIN}) {
    a.tokens = tokens;
    EXPECT_EQ(refusal(spec, a), "tokens is " + std::to_string(tokens) + "; it must not be negative");
  }
  EXPECT_EQ(refusal(spec, DenseCall{}), "");  // no tokens: nothing is touched
}

TEST(CheckDenseCall, WhatIsGivenAndWhatIsMissing) {
  Memory m;
  DenseSpec spec{64, 64, format::Format::bf16, format::InputFormat::plain, DType::bf16};
  DenseCall a = plain_call(m);
  a.codes = m.bytes;
  EXPECT_EQ(refusal(spec, a), "both of x and codes are given; one is needed");
  a.x = nullptr;
  EXPECT_EQ(refusal(spec, a), "codes are given, but inputs are plain and have none");
  a.codes = nullptr;
  EXPECT_EQ(refusal(spec, a), "none of x and codes are given; one is needed");
  a = plain_call(m);
  a.y = nullptr;
  EXPECT_EQ(refusal(spec, a), "y is null for 3 tokens");
  a = plain_call(m);
  a.row_scales = m.floats;
  EXPECT_EQ(refusal(spec, a), "row_scales are given with x; the call makes its own");

  a = plain_call(m);
  a.x = nullptr;
  a.codes = m.bytes;
  spec.weights = format::Format::fp8_channel;
  spec.inputs = format::InputFormat::fp8_token;
  EXPECT_EQ(refusal(spec, a), "row_scales is null; codes of fp8_token have a scale per row");
  spec.inputs = format::InputFormat::fp8_static;
  EXPECT_EQ(refusal(spec, a), "");
  spec.weights = format::Format::mxfp8;
  spec.inputs = format::InputFormat::mxfp8;
  EXPECT_EQ(refusal(spec, a), "scales is null; codes of mxfp8 have a scale per 32 columns");
  a.scales = m.bytes;
  EXPECT_EQ(refusal(spec, a), "");
  a.layout = format::ScaleLayout::swizzled_128x4;
  EXPECT_EQ(refusal(spec, a), "");
  a.layout = format::ScaleLayout::transposed;
  EXPECT_EQ(refusal(spec, a), "scales of mxfp8 do not come in layout transposed");
  spec.weights = format::Format::fp8_block;
  spec.inputs = format::InputFormat::fp8_group;
  EXPECT_EQ(refusal(spec, a), "");
  a.layout = format::ScaleLayout::swizzled_8x4;
  EXPECT_EQ(refusal(spec, a), "scales of fp8_group do not come in layout 8x4");
}

}  // namespace
}  // namespace sluice::sm90
