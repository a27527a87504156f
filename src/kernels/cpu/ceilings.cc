// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/ceilings.h"

#include <chrono>
#include <cstring>

#include "kernels/cpu/cpu_kernel.h"

namespace sluice::kernels::cpu {

namespace {
constexpr int64_t kPiece = 1 << 20;

double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

DotProbeFn dot_probe_of(Isa isa) {
  switch (isa) {
    case Isa::scalar:
      return kScalarKernels.dot_probe;
    case Isa::avx2:
    case Isa::avx_vnni:
      return kAvx2Kernels.dot_probe;
    case Isa::avx512:
      return kAvx512Kernels.dot_probe;
    case Isa::avx512_bf16:
      return kAvx512Bf16Kernels.dot_probe;
    case Isa::amx:
      break;
  }
  return kAmxKernels.dot_probe;
}

}  // namespace

Ceilings::Ceilings(Context& ctx, Isa isa, int64_t bytes) : isa_(isa), buffer_(DType::u8, {bytes / kPiece * kPiece}) {
  ctx.pool.parallel_for(buffer_.bytes() / kPiece, [&](int64_t t, int) {
    std::memset(buffer_.as<uint8_t>() + t * kPiece, 0, static_cast<size_t>(kPiece));
  });
}

double Ceilings::read_bandwidth(Context& ctx) const {
  const auto start = std::chrono::steady_clock::now();
  ctx.pool.parallel_for(buffer_.bytes() / kPiece, [&](int64_t t, int) {
    row_operations(isa_).read_probe(buffer_.as<uint8_t>() + t * kPiece, kPiece);
  });
  return static_cast<double>(buffer_.bytes()) / seconds_since(start);
}

double Ceilings::dot_rate(Context& ctx) const {
  const DotProbeFn probe = dot_probe_of(isa_);
  const auto warm = std::chrono::steady_clock::now();
  double flops = probe(20000);
  const int64_t pieces = 16 * ctx.pool.size();
  const auto steps = static_cast<int64_t>(20000 * 5e-3 / seconds_since(warm) / 16) + 1;
  const auto start = std::chrono::steady_clock::now();
  flops = flops / 20000 * static_cast<double>(steps * pieces);
  ctx.pool.parallel_for(pieces, [&](int64_t, int) { probe(steps); });
  return flops / seconds_since(start);
}

}  // namespace sluice::kernels::cpu
