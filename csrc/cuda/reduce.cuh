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

template <int N>
__device__ __forceinline__ double tree_sum(const Brief (&term)[N]) {
  float value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = term[i].value;
  return tree_sum(value);
}

// The losses of a vector's first `length` elements.
template <class T, class A, class B, int N, class Loss>
__device__ __forceinline__ double vector_loss(const Loss& loss, const Vectors<A, B, N>& operands, int length = N) {
  T value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = i < length ? loss.value(operands.template difference<T>(i)) : T();
  return tree_sum(value);
}

// This thread's share of one tile, every load issued before the first is used.
template <class T, class A, class B, int N, class Loss>
__device__ __forceinline__ double whole_tile_loss(const Loss& loss, Source<A> input, Source<B> target, int64_t begin) {
  constexpr int kUnroll = plan::kReduceUnroll;
  Vectors<A, B, N> operands[kUnroll];
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) {
    const int64_t at = begin + u * plan::kReduceThreads * N;
    operands[u].a = input.template load_past_l1<N>(at);
    operands[u].b = target.template load_past_l1<N>(at);
  }
  double sum = 0.0;
#pragma unroll
  for (int u = 0; u < kUnroll; ++u) sum += vector_loss<T>(loss, operands[u]);
  return sum;
}

// The same of the last, partial tile, and of misaligned operands: the same elements to the same threads.
template <class T, class A, class B, int N, class Loss>
__device__ __forceinline__ double any_tile_loss(const Loss& loss, Source<A> input, Source<B> target, bool aligned,
                                                int64_t begin, int64_t count) {
  constexpr int kTogether = N < 8 ? plan::kReduceUnroll : 2;  // of 8 halves each, all would take 80 registers
  double sum = 0.0;
#pragma unroll 1
  for (int first = 0; first < plan::kReduceUnroll; first += kTogether) {
    Vectors<A, B, N> operands[kTogether];
    int length[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t at = begin + (first + u) * plan::kReduceThreads * N;
      length[u] = vector_length<N>(at, count);
      operands[u] = Vectors<A, B, N>(input, target, aligned && length[u] == N, at, length[u]);
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      if (length[u] > 0) sum += vector_loss<T>(loss, operands[u], length[u]);
    }
  }
  return sum;
}

template <class T, class P, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::kReduceThreads)
    reduce_kernel(Loss loss, Source<A> input, Source<B> target, bool aligned, int64_t count, Fold<P> fold) {
  constexpr int64_t kTile = plan::reduce_tile(N);
  double sum = 0.0;
  for (int64_t tile = blockIdx.x; tile * kTile < count; tile += gridDim.x) {
    const int64_t begin = tile * kTile + threadIdx.x * N;
    sum += aligned && (tile + 1) * kTile <= count
               ? whole_tile_loss<T, A, B, N>(loss, input, target, begin)
               : any_tile_loss<T, A, B, N>(loss, input, target, aligned, begin, count);
  }
  finish<plan::kReduceThreads>(block_sum<plan::kReduceThreads>(P{sum}), fold);
}

}  // namespace cudaloss::cuda
