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
  const int64_t begin = thread_begin<N>(blockIdx.x);
  with_vector<N>(aligned, begin, count, [&](auto whole, int length) {
    const auto operands = load<N>(whole, input, target, begin, length);
    Scalar<T> value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = rounded(loss.value(operands.template difference<T>(i)));
    // The result's dtype (the promoted one, or the caller's) is a run-time value: it changes the last instruction only.
    dispatch(output.dtype,
             [&](auto type) { Sink<typename decltype(type)::type>(output).store(whole, begin, length, value); });
  });
}

// The incoming gradient, of any floating dtype: one element for all, or one for each.
struct GradOutput {
  Operand operand;
  bool scalar;

  __device__ __forceinline__ Constant<double> at(int64_t i, double) const {
    double value = 0.0;
    dispatch(operand.dtype, [&](auto type) { value = widen<double>(element<decltype(type)>(i)); });
    return {value, 0.0};
  }
  __device__ __forceinline__ Constant<float> at(int64_t i, float) const {
    if (operand.dtype == DType::Float64) return constant_of(element<Type<double>>(i), 0.0f);
    float value = 0.0f;  // without a detour through double, which is slow on many GPUs
    dispatch(operand.dtype, [&](auto type) { value = widen<float>(element<decltype(type)>(i)); });
    return {value, 0.0f};
  }

 private:
  template <class Named>
  __device__ __forceinline__ typename Named::type element(int64_t i) const {
    return static_cast<const typename Named::type*>(operand.data)[scalar ? 0 : i];
  }
};

// Both gradients of a vector of operands, where they are wanted: grad(difference, factor(i)) and its negative.
template <class T, int N, class Kind, class Loss, class A, class B, class Factor>
__device__ __forceinline__ void store_gradients(Kind whole, int64_t begin, int length, const Loss& loss,
                                                const Vectors<A, B, N>& operands, const Factor& factor,
                                                Sink<A> grad_input, Sink<B> grad_target) {
  Scalar<T> to_input[N], to_target[N];
#pragma unroll
  for (int i = 0; i < N; ++i) {
    to_input[i] = loss.grad(operands.template difference<T>(i), factor(i));
    to_target[i] = -to_input[i];
  }
  grad_input.store(whole, begin, length, to_input);
  grad_target.store(whole, begin, length, to_target);
}

template <class T, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::elementwise_threads(N))
    backward_kernel(Loss loss, GradOutput grad_output, Constant<Scalar<T>> scale, Source<A> input, Source<B> target,
                    bool aligned, int64_t count, Sink<A> grad_input, Sink<B> grad_target) {
  using F = Scalar<T>;
  const int64_t begin = thread_begin<N>(blockIdx.x);
  with_vector<N>(aligned, begin, count, [&](auto whole, int length) {
    const auto operands = load<N>(whole, input, target, begin, length);
    if (grad_output.scalar) scale = times(scale, grad_output.at(0, F()));
    const auto factor = [&](int i) {
      return grad_output.scalar || i >= length ? scale : times(scale, grad_output.at(begin + i, F()));
    };
    store_gradients<T>(whole, begin, length, loss, operands, factor, grad_input, grad_target);
  });
}

}  // namespace cudaloss::cuda
