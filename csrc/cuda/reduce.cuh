// Stage 1 of the reduction: losses of a persistent grid's tiles, summed in registers, warp and block.
#pragma once

#include "core/plan.h"
#include "cuda/fold.cuh"
#include "cuda/memory.cuh"

namespace cudaloss::cuda {

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
template <int N>
__device__ __forceinline__ double tree_sum(const double (&term)[N]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += term[i];
  return sum;
}
template <int N>
__device__ __forceinline__ double tree_sum(const Wide (&term)[N]) {
  double sum = 0.0;
#pragma unroll
  for (int i = 0; i < N; ++i) sum += as_double(term[i]);
  return sum;
}

template <class T, class A, class B, int N, class Loss>
__device__ __forceinline__ double vector_loss(const Loss& loss, const Vector<A, N>& a, const Vector<B, N>& b) {
  T value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = loss.value(Difference<T>::of(a.element[i], b.element[i]));
  return tree_sum(value);
}

// This thread's share of the whole tiles, every load of a tile issued before the first is used.
template <class T, bool kAligned, class A, class B, int N, class Loss>
__device__ __forceinline__ double sum_tiles(const Loss& loss, Source<A> input, Source<B> target, int64_t tiles) {
  constexpr int kUnroll = plan::kReduceUnroll;
  constexpr int kStride = plan::kReduceThreads * N;
  double sum = 0.0;
  for (int64_t tile = blockIdx.x; tile < tiles; tile += gridDim.x) {
    const int64_t begin = tile * plan::reduce_tile(N) + threadIdx.x * N;
    Vector<A, N> a[kUnroll];
    Vector<B, N> b[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t at = begin + u * kStride;
      a[u] = kAligned ? input.template load<N>(at) : input.template load_each<N>(at, N);
      b[u] = kAligned ? target.template load<N>(at) : target.template load_each<N>(at, N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) sum += vector_loss<T>(loss, a[u], b[u]);
  }
  return sum;
}

template <class T, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::kReduceThreads, plan::kReduceBlocksAProcessor)
    reduce_kernel(Loss loss, Source<A> input, Source<B> target, bool aligned, int64_t count, double divisor,
                  Sum* partials, Result output) {
  const int64_t tiles = count / plan::reduce_tile(N);
  double sum = aligned ? sum_tiles<T, true, A, B, N>(loss, input, target, tiles)
                       : sum_tiles<T, false, A, B, N>(loss, input, target, tiles);
  // The part of a tile that is left goes to the block whose turn it is, an element a thread.
  if (tiles % gridDim.x == blockIdx.x) {
    for (int64_t i = tiles * plan::reduce_tile(N) + threadIdx.x; i < count; i += plan::kReduceThreads) {
      sum += as_double(loss.value(Difference<T>::of(input.data[i], target.data[i])));
    }
  }

  const Sum total = block_sum<plan::kReduceThreads>({sum, 0.0});
  if (threadIdx.x != 0) return;
  if (gridDim.x == 1) {
    store_scalar(output, total.over(divisor));
  } else {
    partials[blockIdx.x] = total;
  }
}

}  // namespace cudaloss::cuda
