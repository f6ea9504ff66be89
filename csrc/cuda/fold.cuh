// Stage 2 of the reduction: folds the blocks' partial sums in an order that depends only on their number.
#pragma once

#include <cub/warp/warp_reduce.cuh>
#include <cuda/atomic>
#include <type_traits>

#include "core/arith.h"
#include "core/pass.h"
#include "core/plan.h"
#include "core/sum.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

// The type of partial sums: plain fp64 if the result is narrower.
template <class T>
using Partial = std::conditional_t<std::is_same_v<T, double>, Sum, double>;

// Lets the next kernel on the stream start when all blocks of this one have started, if it is launched behind this one
// (launch.h).
__device__ __forceinline__ void release_next() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}
// Waits until the previous kernel has ended and its writes are visible.
__device__ __forceinline__ void wait_for_prior() {
#if __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Where the blocks of a reduction leave their sums, and what stores the result: `store(sum, segment)`.
template <class P, class Store>
struct Fold {
  P* partials;       // one for each block, or one for each part of a segment
  unsigned* ticket;  // 0 before and after; null: a later launch folds
  Store store;
};

__device__ __forceinline__ void store_scalar(const Result& output, int64_t i, double value) {
  dispatch(output.dtype, [&](auto type) {
    using Element = typename decltype(type)::type;
    static_cast<Element*>(output.data)[i] = narrow<Element>(value);
  });
}

// The type in which a warp adds its 32 sums. Sums in float arithmetic already have float's rounding errors, and a
// shuffle of two words would slow a pass by 3 %.
template <class T>
using WarpSum = std::conditional_t<std::is_same_v<T, double>, Sum,
                                   std::conditional_t<std::is_same_v<T, FloatFloat>, double, float>>;

// The sum of N terms as a tree in the arithmetic's own precision: exact if they are equal, and with a fourth of the
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
  constexpr int kSums = N == 8 ? 4 : N;  // eight are paired in float: saves a conversion to fp64
  float value[kSums];
#pragma unroll
  for (int i = 0; i < kSums; ++i) value[i] = N == 8 ? term[i].value + term[i + N - kSums].value : term[i].value;
  return tree_sum(value);
}

// A thread's sum, a double or a Sum, in the type that its warp adds.
template <class T, class S>
__device__ __forceinline__ WarpSum<T> in_warp(const S& sum) {
  return WarpSum<T>{static_cast<std::conditional_t<std::is_same_v<WarpSum<T>, float>, float, S>>(sum)};
}

// The sum over the block's threads as a P, in thread 0: within each warp as W, then over the warps. Two trees of
// shuffles: 0.2 us faster than cub::BlockReduce, where one thread adds the sums of 32 warps. A thread can stand for
// kShares threads, with a sum share(i) for each: the result has the same bits as from a block with kShares times as
// many threads. A shuffle provides the warp's index, so the compiler knows that a warp's threads branch alike: 11 %
// less code in kernels. A second call needs a barrier first: all calls with the same types share their memory.
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

// The sum of partials[0, count), count at most kMost, in thread 0. It is added as kFoldThreads threads would add it,
// for any block size, so that it has the same bits in either launch.
template <int kThreads, int64_t kMost, class P>
__device__ __forceinline__ P sum_partials(const P* partials, int64_t count) {
  constexpr bool kIsLarger = kThreads > plan::kFoldThreads;
  constexpr int kShares = kIsLarger ? 1 : plan::kFoldThreads / kThreads;
  constexpr int kEach = static_cast<int>(kMost / plan::kFoldThreads);
  static_assert((kIsLarger || kShares * kThreads == plan::kFoldThreads) && kEach * plan::kFoldThreads == kMost,
                "in whole rounds");
  return block_sum_of<kThreads, P, kShares>([&](int share) {
    P sum = {};
    if (kIsLarger && threadIdx.x >= plan::kFoldThreads) return sum;
#pragma unroll
    for (int k = 0; k < kEach; ++k) {
      const int64_t i = int64_t{k} * plan::kFoldThreads + share * kThreads + threadIdx.x;
      sum = sum + (i < count ? partials[i] : P{});
    }
    return sum;
  });
}

// The result of a reduction with one segment, whose divisor the host knows.
struct Quotient {
  Divisor divisor;
  double scale;
  Result output;

  // Multiplies by the reciprocal, because no narrower result shows its rounding and a division takes 0.1 us.
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
  bool divides;  // false for a sum of gradients: each has its denominator already
  Result output;

  __device__ __forceinline__ void operator()(double sum, int64_t segment) const {
    if (divides) {
      const Divisor divisor = denominator.at(segment);  // the reciprocal is 0 if the value is 0
      sum = sum * (divisor.value == 0.0 ? INFINITY : divisor.reciprocal) * scale;
    }
    store_scalar(output, segment, sum);
  }
  __device__ __forceinline__ void operator()(const Sum& sum, int64_t segment) const {
    const Sum scaled = divides ? sum.times(scale) : sum;
    store_scalar(output, segment, scaled.over(divides ? denominator.at(segment).value : 1.0));
  }
};

// The denominator of one segment.
struct SegmentDivisor {
  double multiplicity;
  Divisor* output;

  __device__ __forceinline__ void operator()(const Sum& sum, int64_t segment) const { (*this)(sum.over(1.0), segment); }
  __device__ __forceinline__ void operator()(double sum, int64_t segment) const {
    const double value = sum * multiplicity;
    output[segment] = {value, value == 0.0 ? 0.0 : 1.0 / value};
  }
};

// Adds the block's sum, thread 0's `total`, and returns whether it is now the sum of all blocks. That is true in a
// single block, and in the block that finds all others done and folds. The result does not depend on which block that
// is.
template <int kThreads, class P, class Store>
__device__ __forceinline__ bool grid_reduce(P& total, const Fold<P, Store>& fold) {
  if (gridDim.x == 1) return true;
  if (threadIdx.x == 0) fold.partials[blockIdx.x] = total;
  if (!fold.ticket) return false;  // returns at once: blocks whose warps wait for thread 0 cost 2^28 elements 17 %
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

// The same, and stores the result. The store is in one place, so that a kernel has its code only once.
template <int kThreads, class P, class Store>
__device__ __forceinline__ void grid_reduce_and_store(P total, const Fold<P, Store>& fold) {
  if (grid_reduce<kThreads>(total, fold) && threadIdx.x == 0) fold.store(total, 0);
}

// The second launch, if the blocks did not count themselves.
template <class P, class Store>
void fold(int64_t count, const Store& store, const Workspace& workspace, Stream stream);

// The second launch for many segments: partials[part * segments + segment], all parts of a segment to one result.
template <class P, class Store>
void fold_segments(int64_t segments, int64_t parts, const Store& store, const Workspace& workspace, Stream stream);

// Runs `pass(fold)` over `blocks` blocks, and the second launch if it is needed.
template <class P, class Store, class Pass>
void folded(int64_t blocks, const Store& store, const Memory& memory, Stream stream, const Pass& pass) {
  const Workspace workspace = memory.of<P>(blocks);
  const bool counted = blocks <= plan::kCountedBlocks;
  pass(Fold<P, Store>{static_cast<P*>(workspace.partials), counted ? workspace.ticket : nullptr, store});
  if (blocks > 1 && !(counted && workspace.ticket)) fold<P>(blocks, store, workspace, stream);
}

}  // namespace cudaloss::cuda
