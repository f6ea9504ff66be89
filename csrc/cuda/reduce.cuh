// Stage 1 of a reduction that only reads: losses of a block's tiles, summed in registers, warp and block.
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

// A thread's sum as its warp adds it.
template <class T>
__device__ __forceinline__ WarpSum<T> in_warp(double sum) {
  return WarpSum<T>{static_cast<std::conditional_t<std::is_same_v<WarpSum<T>, float>, float, double>>(sum)};
}

template <int N>
__device__ __forceinline__ double tree_sum(const Brief (&term)[N]) {
  float value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = term[i].value;
  return tree_sum(value);
}

template <class T, class A, class B, int N, class Loss>
__device__ __forceinline__ double vector_loss(const Loss& loss, const Vectors<A, B, N>& operands) {
  T value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = loss.value(operands.template difference<T>(i));
  return tree_sum(value);
}

// N elements from any address, or a vector past the L1.
template <int N, bool kAligned, class Element>
__device__ __forceinline__ Vector<Element, N> load_once(Source<Element> source, int64_t begin) {
  if constexpr (kAligned) return source.template load_past_l1<N>(begin);
  return source.template load_each<N>(begin, N);
}

// This thread's share of the whole vectors of one tile, loads issued before the first is used. Of the last tile, whose
// vectors may be fewer, the missing ones are read from the tile's first: a branch around a load would serialise them.
template <class T, bool kAligned, bool kLastTile, class A, class B, int N, class Loss>
__device__ __forceinline__ double tile_loss(const Loss& loss, Source<A> input, Source<B> target, int64_t first,
                                            int64_t vectors) {
  // At once all loads, unless they are of single halves, which would take 80 registers.
  constexpr int kTogether = kAligned || N < 8 ? plan::kReduceUnroll : 2;
  double sum = 0.0;
#pragma unroll 1
  for (int begin = 0; begin < plan::kReduceUnroll; begin += kTogether) {
    Vectors<A, B, N> operands[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t vector = first + threadIdx.x + (begin + u) * plan::kReduceThreads;
      const int64_t at = (kLastTile && vector >= vectors ? first : vector) * N;
      operands[u].a = load_once<N, kAligned>(input, at);
      operands[u].b = load_once<N, kAligned>(target, at);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t vector = first + threadIdx.x + (begin + u) * plan::kReduceThreads;
      if (!kLastTile || vector < vectors) sum += vector_loss<T>(loss, operands[u]);
    }
  }
  return sum;
}

template <class T, class P, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::kReduceThreads)
    reduce_kernel(Loss loss, Source<A> input, Source<B> target, bool aligned, int64_t count, Fold<P, Quotient> fold) {
  constexpr int64_t kTileVectors = plan::reduce_tile(N) / N;
  const int64_t vectors = count / N;
  double sum = 0.0;
  for (int64_t first = blockIdx.x * kTileVectors; first < vectors; first += gridDim.x * kTileVectors) {
    const bool whole = first + kTileVectors <= vectors;
    if (!aligned) {
      sum += tile_loss<T, false, true, A, B, N>(loss, input, target, first, vectors);
    } else if (whole) {  // as the last tile it would take 8 % longer at 2^17 elements
      sum += tile_loss<T, true, false, A, B, N>(loss, input, target, first, vectors);
    } else {
      sum += tile_loss<T, true, true, A, B, N>(loss, input, target, first, vectors);
    }
  }
  const int64_t single = vectors * N + threadIdx.x;  // what is left of a vector
  if (blockIdx.x == gridDim.x - 1 && single < count) {
    sum += as_double(loss.value(Difference<T>::of(input.data[single], target.data[single])));
  }
  finish<plan::kReduceThreads>(block_sum<plan::kReduceThreads, P>(in_warp<T>(sum)), fold);
}

}  // namespace cudaloss::cuda
