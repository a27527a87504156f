// SPDX-License-Identifier: Apache-2.0
#include "kernels/cpu/isa.h"

#include <algorithm>

#include "base/cpuid.h"

namespace sluice::kernels::cpu {

namespace {
bool has(Isa isa) {
  const CpuFeatures& f = cpu_features();
  switch (isa) {
    case Isa::scalar:
      return true;
    case Isa::avx2:
      return f.avx2;
    case Isa::avx_vnni:
      return f.avx_vnni;
    case Isa::avx512:
      return f.avx512 && f.avx512_vnni;
    case Isa::avx512_bf16:
      return f.avx512_bf16 && f.avx512_vnni && f.avx512_vbmi;
    case Isa::amx:
      return has(Isa::avx512_bf16) && f.amx_bf16;
  }
  return false;
}

std::string_view needs(Isa isa) {
  switch (isa) {
    case Isa::avx2:
      return "AVX2, FMA and F16C";
    case Isa::avx_vnni:
      return "AVX-VNNI, AVX2, FMA and F16C";
    case Isa::avx512:
      return "AVX-512 F, BW, DQ, VL and VNNI";
    case Isa::avx512_bf16:
      return "AVX-512 BF16, VBMI and VNNI";
    case Isa::amx:
      return "AMX-BF16 and AVX-512 BF16, VBMI and VNNI";
    case Isa::scalar:
      break;
  }
  return "nothing";
}
}  // namespace

Support supported(Isa isa) {
  if (!has(isa))
    return Support::no(fmt::format("{} needs {}, which this processor ({}) does not offer", name_of(kIsas, isa),
                                   needs(isa), cpu_features().brand));
  if (isa == Isa::amx && !amx_permission())
    return Support::no("amx: the operating system refused the use of tile registers");
  return Support::yes(std::string(name_of(kIsas, isa)));
}

Isa best_isa() {
  for (auto row = kIsas.rbegin(); row != kIsas.rend(); ++row)
    if (supported(row->value)) return row->value;
  return Isa::scalar;
}

}  // namespace sluice::kernels::cpu
