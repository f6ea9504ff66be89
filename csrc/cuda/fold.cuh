// Stage 2 of the reduction: the blocks' partials, folded in an order that their number alone decides.
#pragma once

#include <algorithm>
#include <cub/warp/warp_reduce.cuh>
#include <cuda/atomic>
#include <type_traits>

#include "core/arith.h"
#include "core/pass.h"
#include "core/plan.h"
#include "core/sum.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// What partials are kept in: plain fp64 where the result is narrower.
template <class T>
using Partial = std::conditional_t<std::is_same_v<T, double>, Sum, double>;

// Lets the next kernel on the stream start when all blocks of this one have, if that starts behind it (launch.h).
__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the kernel before is over and what it wrote is there.
__device__ __forceinline__ void wait_for_prior() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Where a reduction's blocks leave their sums, and what becomes of them: `store(sum, segment)`.
template <class P, class Store>
struct Fold {
  P* partials;       // one a block, or one a part of a segment
  unsigned* ticket;  // 0 before and after; null: a later launch folds
  Store store;
};

__device__ __forceinline__ void store_scalar(const Result& output, int64_t i, double value) {
  dispatch(output.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    static_cast<Element*>(output.data)[i] = narrow<Element>(value);
  });
}

// What the 32 sums of a warp are added in. Of float arithmetic they carry float's rounding errors already, and a
// shuffle of two words would cost a pass 3 %.
template <class T>
using WarpSum = std::conditional_t<std::is_same_v<T, double>, Sum,
                                   std::conditional_t<std::is_same_v<T, FloatFloat>, double, float>>;

// The sum of N terms as a tree in the arithmetic's own precision: exact where they are equal, and a fourth of the
// fp64 additions, which are slow on most GPUs.
template <int N>
__device__ __forceinline__ double tree_sum(const float (&term)[N]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; i += 4) {
    const float low = N > 1 ? term[i] + term[i + (N > 1)] : term[i];
    const float high = N > 2 ? term[i + 2 * (N > 2)] + term[i + 3 * (N > 2)] : 0.0f;
    sum += static_cast<double>(low + high);
  }
  return sum;
}
template <int N, class T>
__device__ __forceinline__ double tree_sum(const T (&term)[N]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += as_double(term[i]);
  return sum;
}
template <int N>
__device__ __forceinline__ double tree_sum(const FastFloat (&term)[N]) {
  constexpr int kSums = N == 8 ? 4 : N;  // eight are paired in float: a conversion to fp64 less
  float value[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) value[i] = N == 8 ? term[i].value + term[i + N - kSums].value : term[i].value;
  return tree_sum(value);
}

// A thread's sum, a double or a Sum, as its warp adds it.
template <class T, class S>
__device__ __forceinline__ WarpSum<T> in_warp(const S& sum) {
  return WarpSum<T>{static_cast<std::conditional_t<std::is_same_v<WarpSum<T>, float>, float, S>>(sum)};
}

// The sum over the block's threads as a P, in thread 0: within each warp as W, then over the warps. Two trees of
// shuffles, where cub::BlockReduce has one thread add 32 warps' sums: 0.2 us later. A thread may stand for kShares,
// with a sum share(i) of each: the result has the bits of a block of as many times more threads. The warp's index comes
// by a shuffle: so the compiler knows that all threads of a warp branch alike, and kernels have 11 % less code.
template <int kThreads, class P, int kShares, class Share>
__device__ __forceinline__ P block_sum_of(const Share& share) {
  using W = decltype(share(0));
  constexpr int kWarp = 32, kWarps = kThreads / kWarp;
  static_assert(kWarps * kShares <= kWarp, "one warp adds the sums of all");
  using InWarp = cub::WarpReduce<W>;
  using OverWarps = cub::WarpReduce<P>;
  __shared__ typename InWarp::TempStorage in_warp[kWarps];
  __shared__ typename OverWarps::TempStorage over_warps;
  __shared__ P of_warp[kWarps * kShares];
  const int warp = __shfl_sync(~0u, threadIdx.x / kWarp, 0), lane = threadIdx.x % kWarp;
#pragma unroll
  for (int i = 0; i < kShares; ++i) {
    const W total = InWarp(in_warp[warp]).Sum(share(i));
    if (lane == 0) of_warp[i * kWarps + warp] = P{total};
  }
  __syncthreads();
  if (warp != 0) return P{};
  const int warps = blockDim.x / kWarp * kShares;  // the block may have fewer threads
  return OverWarps(over_warps).Sum(lane < warps ? of_warp[lane] : P{});
}
template <int kThreads, class P, class W>
__device__ __forceinline__ P block_sum(const W& sum) {
  return block_sum_of<kThreads, P, 1>([&](int) { return sum; });
}

// The sum of partials[0, count), of at most kMost, in thread 0: as kFoldThreads threads add them, however many the
// block has, so that it has the same bits whichever launch folds.
template <int kThreads, int64_t kMost, class P>
__device__ __forceinline__ P sum_partials(const P* partials, int64_t count) {
  constexpr int kShares = std::max(1, plan::kFoldThreads / kThreads);
  constexpr int kEach = static_cast<int>(kMost / plan::kFoldThreads);
  static_assert(
      kShares * std::min(kThreads, plan::kFoldThreads) == plan::kFoldThreads && kEach * plan::kFoldThreads == kMost,
      "in whole rounds");
  return block_sum_of<kThreads, P, kShares>([&](int share) {
    P sum = {};
    if (kThreads > plan::kFoldThreads && threadIdx.x >= plan::kFoldThreads) return sum;  // of a larger block
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = int64_t{k} * plan::kFoldThreads + share * kThreads + threadIdx.x;
      sum = sum + (i < count ? partials[i] : P{});
    }
    return sum;
  });
}

// The one result of a reduction whose divisor the host knows.
struct Quotient {
  Divisor divisor;
  double scale;
  Result output;

  // By the reciprocal, whose rounding no narrower result shows: a division takes 0.1 us.
  __device__ __forceinline__ void operator()(double sum, int64_t) const {
    store_scalar(output, 0, sum * divisor.reciprocal * scale);
  }
  __device__ __forceinline__ void operator()(const Sum& sum, int64_t) const {
    store_scalar(output, 0, sum.times(scale).over(divisor.value));
  }
};

// A pass's result for one segment.
struct SegmentLoss {
  Denominator denominator;
  double scale;
  bool divides;  // a sum of gradients has its denominator in each of them
  Result output;

  __device__ __forceinline__ void operator()(double sum, int64_t segment) const {
    if (divides) {
      const Divisor divisor = denominator.at(segment);  // with a reciprocal of 0 where it is 0
      sum = sum * (divisor.value == 0.0 ? INFINITY : divisor.reciprocal) * scale;
    }
    store_scalar(output, segment, sum);
  }
  __device__ __forceinline__ void operator()(const Sum& sum, int64_t segment) const {
    const Sum scaled = divides ? sum.times(scale) : sum;
    store_scalar(output, segment, scaled.over(divides ? denominator.at(segment).value : 1.0));
  }
};

// A denominator, of one segment.
struct SegmentDivisor {
  double multiplicity;
  Divisor* output;

  __device__ __forceinline__ void operator()(const Sum& sum, int64_t segment) const { (*this)(sum.over(1.0), segment); }
  __device__ __forceinline__ void operator()(double sum, int64_t segment) const {
    const double value = sum * multiplicity;
    output[segment] = {value, value == 0.0 ? 0.0 : 1.0 / value};
  }
};

// Hands in the block's sum, thread 0's `total`, and tells whether that is now the sum of all blocks: so it is in the
// one block, and in the one that finds all others done and folds. Which one that is leaves no trace in the result.
template <int kThreads, class P, class Store>
__device__ __forceinline__ bool grid_reduce(P& total, const Fold<P, Store>& fold) {
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) fold.partials[blockIdx.x] = total;
  if (!fold.ticket) return false;  // at once: a block whose warps wait for thread 0 costs a pass of 2^28 elements 17 %
  __shared__ bool is_last;
  if (threadIdx.x == 0) {
    const ::cuda::atomic_ref<unsigned, ::cuda::thread_scope_device> ticket(*fold.ticket);
    is_last = ticket.fetch_add(1, ::cuda::memory_order_acq_rel) == gridDim.x - 1;
    if (is_last) ticket.store(0, ::cuda::memory_order_relaxed);
  }
  __syncthreads();
  if (!is_last) return false;
  total = sum_partials<kThreads, plan::kCountedBlocks>(fold.partials, gridDim.x);
  return true;
}

// The same, and the result is stored: at one place, which a kernel has the code for once.
template <int kThreads, class P, class Store>
__device__ __forceinline__ void grid_reduce_and_store(P total, const Fold<P, Store>& fold) {
  if (grid_reduce<kThreads>(total, fold) && threadIdx.x == 0) fold.store(total, 0);
}

// The second launch, where the blocks did not count themselves.
template <class P, class Store>
void fold(int64_t count, const Store& store, const Workspace& workspace, Stream stream);

// The second launch of many segments: partials[part * segments + segment], all parts of one to one result.
template <class P, class Store>
void fold_segments(int64_t segments, int64_t parts, const Store& store, const Workspace& workspace, Stream stream);

// Runs `pass(fold)` over `blocks` blocks, and what follows it.
template <class P, class Store, class Pass>
void folded(int64_t blocks, const Store& store, const Memory& memory, Stream stream, const Pass& pass) {
  const Workspace workspace = memory.of<P>(blocks);
  const bool counted = blocks <= plan::kCountedBlocks;
  pass(Fold<P, Store>{static_cast<P*>(workspace.partials), counted ? workspace.ticket : nullptr, store});
  if (blocks > 1 && !(counted && workspace.ticket)) fold<P>(blocks, store, workspace, stream);
}

}  // namespace cudaloss::cuda
