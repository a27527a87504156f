// SPDX-License-Identifier: Apache-2.0
#include "base/math.h"
#include "kernels/ptx/st_async.cuh"
#include "kernels/ptx/sync.cuh"
#include "kernels/sm90/elements.cuh"
#include "kernels/sm90/finalize/add_results.cuh"
#include "kernels/sm90/launch.cuh"
#include "kernels/sm90/norm/norm.h"
#include "kernels/sm90/norm/row_product.cuh"
#include "kernels/sm90/quantize/round.cuh"

namespace sluice::sm90 {

namespace {

// What a norm's kernel writes beside y.
enum class Codes {
  none,
  rows,    // fp8_static, fp8_token: a factor for the row
  groups,  // fp8_group, mxfp8: one for 128 or 32 columns
};

// A thread holds kPieces times N neighbouring values of a row; kLong: there are more, which are read again.
template <class D_, int N_, int kThreads_, int kPieces_, bool kLong_>
struct Split {
  using D = D_;
  static constexpr int N = N_, threads = kThreads_, pieces = kPieces_, step = N * threads;
  static constexpr bool more = kLong_;
  // Calls f(column, p) for this thread's held pieces, which lie inside `columns`.
  template <class F>
  __device__ static __forceinline__ void held(int columns, F&& f) {
    const int first = static_cast<int>(threadIdx.x) * N;
#pragma unroll
    for (int p = 0; p < pieces; ++p)
      if (first + p * step < columns) f(first + p * step, p);
  }
  // Calls f(column) for this thread's pieces that are not held.
  template <class F>
  __device__ static __forceinline__ void others(int columns, F&& f) {
    if constexpr (more)
      for (int column = static_cast<int>(threadIdx.x) * N + pieces * step; column < columns; column += step) f(column);
  }
};

__device__ __forceinline__ uint32_t block_max(uint32_t v, uint32_t* shared, int warps) {
  v = __reduce_max_sync(0xffffffffu, v);
  if ((threadIdx.x & 31) == 0) shared[threadIdx.x >> 5] = v;
  __syncthreads();
  for (int i = 0; i < warps; ++i) v = max(v, shared[i]);
  return v;
}

__device__ __forceinline__ void store_codes8(const RmsNormArgs& a, int64_t row, int column, uint2 codes) {
  *reinterpret_cast<uint2*>(a.rounded.codes + row * a.cols + column) = codes;
}

// The codes of a row under one factor.
template <class S>
__device__ __forceinline__ void store_row_codes(const RmsNormArgs& a, int64_t row, const float (&held)[S::pieces][8],
                                                const typename S::D* y) {
  __shared__ uint32_t maxima[S::threads / 32];
  const auto code = [&](auto&& code8) {
    S::held(a.cols, [&](int column, int p) { store_codes8(a, row, column, code8(held[p])); });
    S::others(a.cols, [&](int column) {
      float v[8];
      load_elements<8>(y + column, v);  // as this thread stored it
      store_codes8(a, row, column, code8(v));
    });
  };
  if (a.rounded.round == Round::fp8_static)
    return code([&](const float(&v)[8]) { return rounded_e4m3(Round::fp8_static, v, a.rounded.inverse); });
  uint32_t bits = 0;
  S::held(a.cols, [&](int, int p) { bits = max(bits, amax8(held[p])); });
  S::others(a.cols, [&](int column) {
    float v[8];
    load_elements<8>(y + column, v);
    bits = max(bits, amax8(v));
  });
  const float scale = group_scale(block_max(bits, maxima, S::threads / 32));
  if (threadIdx.x == 0) a.rounded.row_scales[row] = scale;
  code([&](const float(&v)[8]) { return rounded_e4m3(Round::fp8_token, v, scale); });
}

// Eight columns of a row under the factors of their groups. All lanes call it together; v counts if it is inside.
__device__ __forceinline__ void store_group_codes8(const RmsNormArgs& a, int64_t row, int column, const float (&v)[8]) {
  const bool inside = column < a.cols;
  const uint32_t bits = inside ? amax8(v) : 0;
  uint2 codes;
  if (a.rounded.round == Round::fp8_group) {
    const float scale = group_scale(amax_lanes(bits, 16));
    if (inside && column % 128 == 0)
      static_cast<float*>(a.rounded.scales)[row * ceil_div(a.cols, 128) + column / 128] = scale;
    codes = rounded_e4m3(Round::fp8_group, v, scale);
  } else {
    const uint8_t scale = format::mxfp8_scale(format::amax_value(amax_lanes(bits, 4)));
    if (inside && column % 32 == 0)
      static_cast<uint8_t*>(a.rounded.scales)[row * ceil_div(a.cols, 32) + column / 32] = scale;
    codes = rounded_e4m3(Round::fp8_static, v, format::e8m0_inverse(scale));  // a factor that multiplies
  }
  if (inside) store_codes8(a, row, column, codes);
}
template <class S>
__device__ __forceinline__ void store_group_codes(const RmsNormArgs& a, int64_t row, const float (&held)[S::pieces][8],
                                                  const typename S::D* y) {
  const int first = static_cast<int>(threadIdx.x) * 8;
#pragma unroll
  for (int p = 0; p < S::pieces; ++p) store_group_codes8(a, row, first + p * S::step, held[p]);
  if constexpr (S::more)
    for (int base = S::pieces * S::step; base < a.cols; base += S::step) {
      float v[8];
      if (base + first < a.cols) load_elements<8>(y + base + first, v);  // as this thread stored it
      store_group_codes8(a, row, base + first, v);
    }
}

// What a thread reads of a row whose change is a sum of experts' results. All of it is under way at once: x and the
// second change stay as they come until the sums are there.
template <class S>
struct SummedRow {
  static constexpr int kAtOnce = S::threads > 256 ? 1 : S::pieces;  // pieces; of 512 threads two would spill
  uint4 x[S::pieces], change2[S::pieces];
  float sums[S::pieces / kAtOnce][kAtOnce][8];

  __device__ __forceinline__ const float (&sum(int p) const)[8] { return sums[p / kAtOnce][p % kAtOnce]; }
  __device__ __forceinline__ void read(const RmsNormArgs& a, int64_t row, bool counts, const bf16_t* from,
                                       const bf16_t* from2) {
    S::held(a.cols, [&](int column, int p) { x[p] = *reinterpret_cast<const uint4*>(from + column); });
    if (from2 != nullptr)
      S::held(a.cols, [&](int column, int p) { change2[p] = *reinterpret_cast<const uint4*>(from2 + column); });
    const int first = static_cast<int>(threadIdx.x) * 8;
    const auto* results = static_cast<const bf16_t*>(a.sum.results) + row * a.sum.top_k * a.cols + first;
    const float* weights = a.sum.weights == nullptr ? nullptr : a.sum.weights + row * a.sum.top_k;
#pragma unroll
    for (int group = 0; group < S::pieces / kAtOnce; ++group) {
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p)
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[group][p][i] = 0.0f;
      const auto load = [&](int p, int k) {
        const int at = (group * kAtOnce + p) * S::step;
        return first + at < a.cols ? *reinterpret_cast<const uint4*>(results + int64_t{k} * a.cols + at) : uint4{};
      };
      add_results(
          a.sum.top_k, load, [&](int k) { return weights == nullptr ? 1.0f : weights[k]; }, sums[group]);
#pragma unroll
      for (int p = 0; p < kAtOnce; ++p)
#pragma unroll
        for (int i = 0; i < 8; ++i) sums[group][p][i] = counts ? rounded<bf16_t>(sums[group][p][i]) : 0.0f;
    }
  }
};

// Blocks per multiprocessor for which the registers of a norm without sums and product suffice: 1024 threads. With 512
// per block and 74 registers a multiprocessor had one block, which waited for memory as a whole. Long rows need fewer
// registers anyway, and would spill with this.
template <class S>
inline constexpr int kNormBlocks = S::more ? 0 : 1024 / S::threads;

// A block computes one row. How the sum is split depends on the row's length alone. kSums: a.sum is the change; without
// a least number of blocks ptxas would save registers by waiting for each result before it reads the next one.
// kProduct: the blocks of a cluster all compute the row, the first one stores it, and each has a share of the product.
template <class S, Codes kCodes, bool kSums, bool kProduct>
__global__ void __launch_bounds__(S::threads, kSums || kProduct ? 1 : kNormBlocks<S>)
    rms_norm_kernel(const __grid_constant__ RmsNormArgs a) {
  using D = typename S::D;
  constexpr int N = S::N;
  static_assert(!(kSums && kProduct) && (!(kSums || kProduct) || (N == 8 && !S::more)));
  __shared__ float sums[S::threads / 32];
  ptx::griddepcontrol_launch_dependents();
  const int64_t row = kProduct ? blockIdx.x / kRowProductBlocks : blockIdx.x;
  const int rank = kProduct ? static_cast<int>(blockIdx.x % kRowProductBlocks) : 0;
  D* x = static_cast<D*>(a.x.data) + row * a.x.stride;
  D* y = static_cast<D*>(a.y.data) + row * a.y.stride;
  const auto part = [&](const ConstRowsView& v) {
    return v.data == nullptr ? nullptr : static_cast<const D*>(v.data) + row * v.stride;
  };
  const D *change = part(a.change), *change2 = part(a.change2);
  // Nothing that runs beside this kernel writes the weight, the product's matrix or the number of rows.
  float weight[S::pieces][N];
  S::held(a.cols, [&](int column, int p) { load_elements<N>(a.weight + column, weight[p]); });
  using Product = RowProduct<S::pieces * S::threads / 32, S::threads / 32>;
  std::conditional_t<kProduct, Product, int> product;
  if constexpr (kProduct) product.read(a.product, a.cols, rank);
  bool counts = true;
  if constexpr (kSums) counts = row < real_tokens(a.sum.num_rows, a.rows);
  ptx::griddepcontrol_wait();

  float held[S::pieces][N];
  float sum = 0.0f;
  // v becomes D(v + D(c + more)), or D(v + c) without a second change.
  const auto add = [&](int column, float(&v)[N], const float(&c)[N], const float(&more)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = rounded<D>(v[i] + (change2 != nullptr ? rounded<D>(c[i] + more[i]) : c[i]));
    if constexpr (!kProduct) store_elements<N>(v, x + column);
  };
  const auto add_squares = [&](const float(&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(v[i], v[i], sum);
  };
  if constexpr (kSums) {
    SummedRow<S> from;
    from.read(a, row, counts, x, change2);
    S::held(a.cols, [&](int column, int p) {
      float more[N];
      load_elements<N>(reinterpret_cast<const D*>(&from.x[p]), held[p]);
      load_elements<N>(reinterpret_cast<const D*>(&from.change2[p]), more);
      add(column, held[p], from.sum(p), more);
      add_squares(held[p]);
    });
  } else {
    const auto take = [&](int column, float(&v)[N]) {
      float c[N], more[N];
      load_elements<N>(x + column, v);
      if (change != nullptr) load_elements<N>(change + column, c);
      if (change2 != nullptr) load_elements<N>(change2 + column, more);
      if (change != nullptr) add(column, v, c, more);
      add_squares(v);
    };
    S::held(a.cols, [&](int column, int p) { take(column, held[p]); });
    S::others(a.cols, [&](int column) {
      float v[N];
      take(column, v);
    });
  }
  if constexpr (kProduct) ptx::cluster_arrive();
  sum = block_sum<S::threads>(sum, sums);
  if constexpr (kProduct) {
    ptx::cluster_wait();  // the first block overwrites x when all have read it
    if (rank == 0 && change != nullptr)
      S::held(a.cols, [&](int column, int p) { store_elements<N>(held[p], x + column); });
  }
  const float factor = __frcp_rn(__fsqrt_rn(sum / static_cast<float>(a.cols) + a.eps));
  __shared__ uint4 normed[kProduct ? S::pieces * S::threads : 1];
  const auto give = [&](int column, float(&v)[N], const float(&w)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = rounded<D>(rounded<D>(v[i] * factor) * w[i]);
    if (rank == 0) store_elements<N>(v, y + column);
    if constexpr (kProduct) store_elements<N>(v, reinterpret_cast<D*>(normed) + column);
  };
  S::held(a.cols, [&](int column, int p) { give(column, held[p], weight[p]); });
  S::others(a.cols, [&](int column) {
    float v[N], w[N];
    load_elements<N>(x + column, v);
    load_elements<N>(a.weight + column, w);
    give(column, v, w);
  });
  if (rank == 0) {
    if constexpr (kCodes == Codes::rows) store_row_codes<S>(a, row, held, y);
    if constexpr (kCodes == Codes::groups) store_group_codes<S>(a, row, held, y);
  }
  if constexpr (kProduct) {
    __syncthreads();
    product.multiply(a.product, a.cols, rank, row, normed);
  }
}

// A block computes one group of one row. Values that a thread does not hold are computed twice: x and gate stay in the
// cache.
template <class S>
__global__ void __launch_bounds__(S::threads) gated_norm_kernel(const __grid_constant__ GatedNormArgs a) {
  using D = typename S::D;
  constexpr int N = S::N;
  __shared__ float shared[S::threads / 32];
  ptx::griddepcontrol_launch_dependents();
  const int64_t row = blockIdx.x, begin = int64_t{blockIdx.y} * a.size;
  const float* x = static_cast<const float*>(a.x.data) + row * a.x.stride + begin;
  const D* gate = static_cast<const D*>(a.gate.data) + row * a.gate.stride + begin;
  D* y = static_cast<D*>(a.y.data) + row * a.y.stride + begin;
  // Nothing that runs beside this kernel writes the weight.
  float weight[S::pieces][N];
  S::held(a.size, [&](int column, int p) { load_elements<N>(a.weight + begin + column, weight[p]); });
  ptx::griddepcontrol_wait();
  const auto gated = [&](int column, float(&v)[N]) {
    float g[N];
    load_elements<N>(x + column, v);
    load_elements<N>(gate + column, g);
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] *= silu<D>(g[i]);
  };
  float held[S::pieces][N];
  float sum = 0.0f;
  const auto add = [&](const float(&v)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) sum = fmaf(v[i], v[i], sum);
  };
  S::held(a.size, [&](int column, int p) {
    gated(column, held[p]);
    add(held[p]);
  });
  S::others(a.size, [&](int column) {
    float v[N];
    gated(column, v);
    add(v);
  });
  sum = block_sum<S::threads>(sum, shared);
  const float factor = __frcp_rn(__fsqrt_rn(sum / static_cast<float>(a.size) + a.eps));
  const auto give = [&](int column, float(&v)[N], const float(&w)[N]) {
#pragma unroll
    for (int i = 0; i < N; ++i) v[i] = v[i] * factor * w[i];
    store_elements<N>(v, y + column);
  };
  S::held(a.size, [&](int column, int p) { give(column, held[p], weight[p]); });
  S::others(a.size, [&](int column) {
    float v[N], w[N];
    gated(column, v);
    load_elements<N>(a.weight + begin + column, w);
    give(column, v, w);
  });
}

// As many threads as hold one access each, so that all of a row is under way at once; of long rows two.
template <class D, Codes kCodes, bool kSums, bool kProduct>
void launch_wide(const RmsNormArgs& a, Stream stream, bool pdl) {
  const auto run = [&]<class S>(S) {
    constexpr int kCluster = kProduct ? kRowProductBlocks : 1;
    launch_clusters(rms_norm_kernel<S, kCodes, kSums, kProduct>, kCluster, static_cast<unsigned>(a.rows * kCluster),
                    S::threads, 0, stream, pdl, a);
  };
  if (a.cols <= 1024)
    run(Split<D, 8, 128, 1, false>());
  else if (a.cols <= 2048)
    run(Split<D, 8, 256, 1, false>());
  else if (kProduct || a.cols <= 4096)
    run(Split<D, 8, 256, 2, false>());
  else if constexpr (!kProduct) {
    if (kSums || a.cols <= 8192)
      run(Split<D, 8, 512, 2, false>());
    else if constexpr (!kSums)
      run(Split<D, 8, 512, 2, true>());
  }
}

template <class D, bool kSums, bool kProduct>
void launch_in_eights(const RmsNormArgs& a, Stream stream, bool pdl) {
  const Round round = a.rounded.round;
  if (round == Round::plain)
    launch_wide<D, Codes::none, kSums, kProduct>(a, stream, pdl);
  else if (round == Round::fp8_static || round == Round::fp8_token)
    launch_wide<D, Codes::rows, kSums, kProduct>(a, stream, pdl);
  else
    launch_wide<D, Codes::groups, kSums, kProduct>(a, stream, pdl);
}

template <class D>
void launch_of(const RmsNormArgs& a, Stream stream, bool pdl) {
  using Narrow = Split<D, 1, 256, 8, true>;
  if (a.rounded.round != Round::plain || in_eights(a))
    launch_in_eights<D, false, false>(a, stream, pdl);
  else
    launch(rms_norm_kernel<Narrow, Codes::none, false, false>, static_cast<unsigned>(a.rows), Narrow::threads, 0,
           stream, pdl, a);
}

template <class D>
void launch_groups_of(const GatedNormArgs& a, bool aligned, Stream stream, bool pdl) {
  const auto run = [&]<class S>(S) {
    const dim3 blocks(static_cast<unsigned>(a.rows), static_cast<unsigned>(a.groups));
    launch(gated_norm_kernel<S>, blocks, S::threads, 0, stream, pdl, a);
  };
  if (!aligned)
    run(Split<D, 1, 128, 4, true>());
  else if (a.size <= 512)
    run(Split<D, 8, 64, 1, false>());
  else
    run(Split<D, 8, 128, 1, true>());
}

template <Codes kCodes>
void prefer_product_memory() {
  prefer_shared_memory(rms_norm_kernel<Split<bf16_t, 8, 128, 1, false>, kCodes, false, true>);
  prefer_shared_memory(rms_norm_kernel<Split<bf16_t, 8, 256, 1, false>, kCodes, false, true>);
  prefer_shared_memory(rms_norm_kernel<Split<bf16_t, 8, 256, 2, false>, kCodes, false, true>);
}

}  // namespace

void allow_row_product() {
  prefer_product_memory<Codes::none>();
  prefer_product_memory<Codes::rows>();
  prefer_product_memory<Codes::groups>();
}

void launch_rms_norm(const RmsNormArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  if (a.product.weights != nullptr) return launch_in_eights<bf16_t, false, true>(a, stream, pdl);
  if (a.sum.results != nullptr) return launch_in_eights<bf16_t, true, false>(a, stream, pdl);
  a.x.f32 ? launch_of<float>(a, stream, pdl) : launch_of<bf16_t>(a, stream, pdl);
}

void launch_gated_group_rms_norm(const GatedNormArgs& a, Stream stream, bool pdl) {
  if (a.rows == 0) return;
  const bool aligned = rows_aligned(a.x) && rows_aligned(a.gate) && rows_aligned(a.y) && a.size % 8 == 0 &&
                       reinterpret_cast<uintptr_t>(a.weight) % 16 == 0;
  a.gate.f32 ? launch_groups_of<float>(a, aligned, stream, pdl) : launch_groups_of<bf16_t>(a, aligned, stream, pdl);
}

}  // namespace sluice::sm90
