// Kernels that write an element for every element read: reduction="none", and the gradients of both operands.
#pragma once

#include "core/plan.h"
#include "cuda/memory.cuh"

namespace cudaloss::cuda {

template <int N>
__device__ __forceinline__ int64_t thread_begin(int64_t tile) {
  return (tile * plan::elementwise_threads(N) + threadIdx.x) * N;
}

template <class T, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::elementwise_threads(N))
    elementwise_kernel(Loss loss, Source<A> input, Source<B> target, bool aligned, int64_t count, Result output) {
  const auto span = span_of<N>(aligned, thread_begin<N>(blockIdx.x), count);
  if (span.length <= 0) return;
  const auto operands = load(span, input, target);
  Scalar<T> value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = rounded(loss.value(operands.template difference<T>(i)));
  // The result's dtype (the promoted one, or the caller's) is a run-time value: it changes the last instruction only.
  dispatch(output.dtype, [&](auto type) { Sink<typename decltype(type)::type>(output).store(span, value); });
}

// The incoming gradient, of any floating dtype: one element for all, or one for each.
struct GradOutput {
  Operand operand;
  bool scalar;

  // Element i of the gradient, or the one that there is.
  template <class F>
  __device__ __forceinline__ Constant<F> at(int64_t i, F) const {
    Constant<F> value[1];
    each(scalar ? 0 : i, 0, 1, value);
    return value[0];
  }

  // `length` elements from `begin` along a stride. Their dtype is looked at once: at each, it would be most of a
  // kernel.
  template <int N, class F>
  __device__ __forceinline__ void each(int64_t begin, int64_t stride, int length, Constant<F> (&value)[N]) const {
    dispatch(operand.dtype, [&](auto type) {
      const auto* const data = static_cast<const typename decltype(type)::type*>(operand.data) + begin;
#pragma unroll
      for (int i = 0; i < N; ++i) value[i] = i < length ? as_constant(data[i * stride], F()) : Constant<F>{F(0), F(0)};
    });
  }

 private:
  // Of a narrower number without a detour through double, which is slow on many GPUs.
  template <class Element, class F>
  __device__ __forceinline__ static Constant<F> as_constant(Element element, F) {
    if constexpr (std::is_same_v<Element, double>) {
      return constant_of(element, F());
    } else {
      return {widen<F>(element), F(0)};
    }
  }
};

// Both gradients of a vector of operands, where they are wanted: grad(difference, factor(i)) and its negative.
template <class T, int N, class Loss, class A, class B, class Factor>
__device__ __forceinline__ void store_gradients(const Span<N>& span, const Loss& loss, const Vectors<A, B, N>& operands,
                                                const Factor& factor, Sink<A> grad_input, Sink<B> grad_target) {
  Scalar<T> gradient[N];
#pragma unroll
  for (int i = 0; i < N; ++i) gradient[i] = loss.grad(operands.template difference<T>(i), factor(i));
  grad_input.store(span, gradient);
#pragma unroll
  for (int i = 0; i < N; ++i) gradient[i] = -gradient[i];
  grad_target.store(span, gradient);
}

template <class T, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::elementwise_threads(N))
    backward_kernel(Loss loss, GradOutput grad_output, Constant<Scalar<T>> scale, Source<A> input, Source<B> target,
                    bool aligned, int64_t count, Sink<A> grad_input, Sink<B> grad_target) {
  using F = Scalar<T>;
  const auto span = span_of<N>(aligned, thread_begin<N>(blockIdx.x), count);
  if (span.length <= 0) return;
  const auto operands = load(span, input, target);
  Constant<F> incoming[N];
  grad_output.each(grad_output.scalar ? 0 : span.begin, grad_output.scalar ? 0 : 1, span.length, incoming);
  const auto factor = [&](int i) { return times(scale, incoming[i]); };
  store_gradients<T>(span, loss, operands, factor, grad_input, grad_target);
}

}  // namespace cudaloss::cuda
