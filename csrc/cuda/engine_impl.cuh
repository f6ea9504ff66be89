// The CUDA engine: from a request's run-time dtypes to one kernel launch.
#pragma once

#include <type_traits>

#include "cuda/elementwise.cuh"
#include "cuda/engine.h"
#include "cuda/fold.cuh"
#include "cuda/launch.h"
#include "cuda/reduce.cuh"

namespace cudaloss::cuda {

template <class A, class B>
constexpr bool kAnyDouble = std::is_same_v<A, double> || std::is_same_v<B, double>;
template <class A, class B>
constexpr bool kAnyFloat = std::is_same_v<A, float> || std::is_same_v<B, float>;

// The arithmetic of a large reduction, and of everything whose single results are seen.
template <class A, class B>
using Fast = std::conditional_t<kAnyDouble<A, B>, double, float>;
template <class A, class B>
using Exact = std::conditional_t<kAnyFloat<A, B> && !kAnyDouble<A, B>, Wide, Fast<A, B>>;

template <class A_, class B_>
struct Pair {
  using A = A_;
  using B = B_;
  static constexpr int N = plan::vector_elements(sizeof(A), sizeof(B));
};

template <class Body>
void dispatch_pair(const Operand& input, const Operand& target, const Body& body) {
  dispatch(input.dtype, [&](auto a) {
    dispatch(target.dtype, [&](auto b) { body(Pair<typename decltype(a)::type, typename decltype(b)::type>()); });
  });
}

template <class T, class P, class Loss>
void launch_reduce(const Forward& r, void* workspace, Stream stream) {
  const int blocks = plan::reduce_blocks(r.count, P::N);
  Sum* const partials = static_cast<Sum*>(workspace);
  launch(reduce_kernel<T, typename P::A, typename P::B, P::N, Loss>, blocks, plan::kReduceThreads, stream,
         Loss(r.parameter), Source<typename P::A>(r.input), Source<typename P::B>(r.target),
         vector_aligned({r.input.data, r.target.data}), r.count, r.divisor, partials, r.output);
  if (blocks > 1) fold(partials, blocks, r.divisor, r.output, stream);
}

template <template <class> class Loss>
void reduce(const Forward& r, void* workspace, Stream stream) {
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using FastT = Fast<typename P::A, typename P::B>;
    using ExactT = Exact<typename P::A, typename P::B>;
    if (r.output.dtype == DType::Float64) {
      launch_reduce<double, P, Loss<double>>(r, workspace, stream);
    } else if (r.count <= plan::kExactCount) {
      launch_reduce<ExactT, P, Loss<ExactT>>(r, workspace, stream);
    } else {
      launch_reduce<FastT, P, Loss<FastT>>(r, workspace, stream);
    }
  });
}

template <class T, class P, class Loss>
void launch_elementwise(const Forward& r, Stream stream) {
  launch(elementwise_kernel<T, typename P::A, typename P::B, P::N, Loss>, plan::elementwise_blocks(r.count, P::N),
         plan::kElementwiseThreads, stream, Loss(r.parameter), Source<typename P::A>(r.input),
         Source<typename P::B>(r.target), vector_aligned({r.input.data, r.target.data, r.output.data}), r.count,
         r.output);
}

template <template <class> class Loss>
void elementwise(const Forward& r, Stream stream) {
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using ExactT = Exact<typename P::A, typename P::B>;
    if (r.output.dtype == DType::Float64) {
      launch_elementwise<double, P, Loss<double>>(r, stream);
    } else {
      launch_elementwise<ExactT, P, Loss<ExactT>>(r, stream);
    }
  });
}

template <template <class> class Loss>
void backward(const Backward& r, Stream stream) {
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using A = typename P::A;
    using B = typename P::B;
    using T = Exact<A, B>;
    launch(backward_kernel<T, A, B, P::N, Loss<T>>, plan::elementwise_blocks(r.count, P::N), plan::kElementwiseThreads,
           stream, Loss<T>(r.parameter), GradOutput{r.grad_output, r.grad_output_is_scalar},
           ratio(1.0, r.divisor, Scalar<T>()), Source<A>(r.input), Source<B>(r.target),
           vector_aligned({r.input.data, r.target.data, r.grad_input.data, r.grad_target.data}), r.count,
           Sink<A>(r.grad_input), Sink<B>(r.grad_target));
  });
}

}  // namespace cudaloss::cuda
