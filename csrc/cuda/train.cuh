// One-pass training: the loss and its gradients for a grad_output of 1 from one reading of the operands, and what
// makes them the gradients for another grad_output.
#pragma once

#include "core/plan.h"
#include "cuda/elementwise.cuh"
#include "cuda/reduce.cuh"

namespace cudaloss::cuda {

// Blocks that a processor must hold, for one's end to hide behind the others: three of 42 registers a thread, but two
// where the loads alone are heavier (bf16 with fp32: 4.36 TB/s, with three 4.08).
template <class A, class B>
constexpr int kBlocksAProcessor = sizeof(A) == sizeof(B) && sizeof(A) < 8 ? 3 : 2;

// A tile a block, kTrainUnroll vectors a thread: also the quickest way to the loss alone of few elements, with neither
// gradient wanted. TV is the arithmetic of the loss, which averages rounding errors out, TG that of the gradients,
// which are seen singly. Many aligned operands have a kernel of their own, which the loads of misaligned ones would
// cost registers.
template <bool kAligned, class TV, class TG, class P, class A, class B, int N, class LossV, class LossG>
__global__ void __launch_bounds__(plan::kTrainThreads, (kBlocksAProcessor<A, B>))
    train_kernel(LossV loss, LossG loss_of_gradients, Constant<Scalar<TG>> scale, Source<A> input, Source<B> target,
                 bool aligned, int64_t count, Sink<A> grad_input, Sink<B> grad_target, Fold<P, Quotient> fold) {
  constexpr int kUnroll = plan::kTrainUnroll;
  const bool whole = kAligned || aligned;
  const auto factor = [&](int) { return scale; };
  const bool wants_gradients = grad_input.data || grad_target.data;
  const int64_t vectors = count / N;
  const int threads = blockDim.x;
  double sum = 0.0;
  for (int64_t first = int64_t{blockIdx.x} * threads * kUnroll; first < vectors;
       first += int64_t{gridDim.x} * threads * kUnroll) {
    Vectors<A, B, N> operands[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t vector = first + u * threads + threadIdx.x;
      operands[u] = load(Span<N>{(vector < vectors ? vector : first) * N, N, whole}, input, target);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t vector = first + u * threads + threadIdx.x;
      if (vector >= vectors) break;
      sum += vector_loss<TV>(loss, operands[u]);
      if (wants_gradients) {
        const Span<N> span = {vector * N, N, whole};
        store_gradients<TG>(span, loss_of_gradients, operands[u], factor, grad_input, grad_target);
      }
    }
  }
  const int64_t single = vectors * N + threadIdx.x;  // what is left of a vector
  if (blockIdx.x == gridDim.x - 1 && single < count) {
    const Span<1> span = {single, 1, false};
    const auto operands = load(span, input, target);
    if (wants_gradients) store_gradients<TG>(span, loss_of_gradients, operands, factor, grad_input, grad_target);
    sum += vector_loss<TV>(loss, operands);
  }
  constexpr int kThreads = plan::kTrainThreads;
  finish<kThreads>(block_sum<kThreads, P>(in_warp<TV>(sum)), fold);
}

template <class F>
__device__ __forceinline__ bool is_power_of_two(Constant<F> x) {
  return x.lo == F(0) && is_normal(x.hi) && has_no_fraction(x.hi);
}

// Multiplies a vector of gradients by a power of two, which rounds nothing, unless one of them may have lost digits
// when it was stored: below the normal numbers or above the largest. Whether it did.
template <int N, class G, class F>
__device__ __forceinline__ bool multiply(const Span<N>& span, const Sink<G>& gradient, F factor) {
  const auto stored = load(span, Source<G>(gradient.data));
  bool exact = true;
  F value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    exact = exact && (i >= span.length || is_normal(stored.element[i]));
    value[i] = widen<F>(stored.element[i]) * factor;
  }
  if (exact) gradient.store(span, value);
  return exact;
}

// Turns the gradients for a grad_output of 1, in the sinks that are wanted, into those for `grad_output`. Where that is
// 1, the kernel is over at once. A power of two (loss / 2, a GradScaler's 65,536) is multiplied by. Any other number
// would round a second time: those gradients are computed anew.
template <class T, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::elementwise_threads(N))
    rescale_kernel(Loss loss, GradOutput grad_output, Constant<Scalar<T>> scale, Source<A> input, Source<B> target,
                   bool aligned, int64_t count, Sink<A> grad_input, Sink<B> grad_target) {
  using F = Scalar<T>;
  const Constant<F> incoming = grad_output.at(0, F());
  if (incoming.hi == F(1) && incoming.lo == F(0)) return;
  const bool multiplies = is_power_of_two(incoming);
  scale = times(scale, incoming);
  for (int64_t tile = blockIdx.x; tile * plan::elementwise_tile(N) < count; tile += gridDim.x) {
    const auto span = span_of<N>(aligned, thread_begin<N>(tile), count);
    if (span.length <= 0) continue;
    bool done = multiplies;
    if (done && grad_input.data) done = multiply(span, grad_input, incoming.hi);
    if (done && grad_target.data) done = multiply(span, grad_target, incoming.hi);
    if (done) continue;
    const auto operands = load(span, input, target);
    const auto factor = [&](int) { return scale; };
    store_gradients<T>(span, loss, operands, factor, grad_input, grad_target);
  }
}

}  // namespace cudaloss::cuda
