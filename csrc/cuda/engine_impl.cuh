// The CUDA engine: from a request's run-time dtypes to one kernel launch.
#pragma once

#include <type_traits>

#include "cuda/elementwise.cuh"
#include "cuda/engine.h"
#include "cuda/fold.cuh"
#include "cuda/launch.h"
#include "cuda/pass_impl.cuh"
#include "cuda/reduce.cuh"
#include "cuda/train.cuh"

namespace cudaloss::cuda {

template <class A, class B>
constexpr bool kAnyDouble = std::is_same_v<A, double> || std::is_same_v<B, double>;
template <class A, class B>
constexpr bool kAnyFloat = std::is_same_v<A, float> || std::is_same_v<B, float>;

// The arithmetic of a large reduction, and of everything whose single results are seen.
template <class A, class B>
using Fast = std::conditional_t<kAnyDouble<A, B>, double, std::conditional_t<kAnyFloat<A, B>, float, Brief>>;
template <class A, class B>
using Exact = std::conditional_t<kAnyDouble<A, B>, double, std::conditional_t<kAnyFloat<A, B>, Wide, float>>;

template <class A_, class B_>
struct Pair {
  using A = A_;
  using B = B_;
  static constexpr int N = plan::vector_elements(sizeof(A), sizeof(B));
  static constexpr bool kHalves = !kAnyDouble<A, B> && !kAnyFloat<A, B>;
  static constexpr bool kHalfAndFloat = !kAnyDouble<A, B> && !kHalves && !std::is_same_v<A, B>;
};

template <class Body>
void dispatch_pair(const Operand& input, const Operand& target, const Body& body) {
  dispatch(input.dtype, [&](auto a) {
    dispatch(target.dtype, [&](auto b) { body(Pair<typename decltype(a)::type, typename decltype(b)::type>()); });
  });
}

// The arithmetic of gradients, by the widest that is wanted.
template <class P, bool kNoFloatWanted = P::kHalves>
using OfGradients = std::conditional_t<kNoFloatWanted, Brief, Exact<typename P::A, typename P::B>>;

template <class P, class Body>
void dispatch_gradients(P, const Result& grad_input, const Result& grad_target, const Body& body) {
  if constexpr (P::kHalfAndFloat) {
    const Result& of_float = std::is_same_v<typename P::A, float> ? grad_input : grad_target;
    if (!of_float.data) return body(Type<OfGradients<P, true>>());
  }
  body(Type<OfGradients<P>>());
}

template <class T, class P, class Loss>
void launch_reduce(const Forward& r, const Workspace& workspace, Stream stream) {
  using Kept = Partial<T>;
  const int64_t blocks = plan::reduce_blocks(r.count, P::N);
  folded<Kept>(blocks, Quotient{divisor_of(r.divisor), r.output}, workspace, stream, [&](const auto& fold) {
    launch(reduce_kernel<T, Kept, typename P::A, typename P::B, P::N, Loss>, blocks, plan::kReduceThreads, stream,
           Loss(r.parameter), Source<typename P::A>(r.input), Source<typename P::B>(r.target),
           vector_aligned({r.input.data, r.target.data}), r.count, fold);
  });
}

template <class T, class P, class Loss>
void launch_elementwise(const Forward& r, Stream stream) {
  launch(elementwise_kernel<T, typename P::A, typename P::B, P::N, Loss>, plan::elementwise_tiles(r.count, P::N),
         plan::elementwise_threads(P::N), stream, Loss(r.parameter), Source<typename P::A>(r.input),
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

template <class TV, class TG, class P, template <class> class Loss>
void launch_train(const Training& t, const Workspace& workspace, Stream stream) {
  using A = typename P::A;
  using B = typename P::B;
  using Kept = Partial<TV>;
  const Forward& r = t.forward;
  const int64_t blocks = plan::train_blocks(r.count, P::N);
  const bool aligned = vector_aligned({r.input.data, r.target.data, t.grad_input.data, t.grad_target.data});
  const auto kernel = aligned ? train_kernel<true, TV, TG, Kept, A, B, P::N, Loss<TV>, Loss<TG>>
                              : train_kernel<false, TV, TG, Kept, A, B, P::N, Loss<TV>, Loss<TG>>;
  folded<Kept>(blocks, Quotient{divisor_of(r.divisor), r.output}, workspace, stream, [&](const auto& fold) {
    launch(kernel, blocks, plan::train_threads(r.count, P::N), stream, Loss<TV>(r.parameter), Loss<TG>(r.parameter),
           ratio(1.0, r.divisor, Scalar<TG>()), Source<A>(r.input), Source<B>(r.target), r.count, Sink<A>(t.grad_input),
           Sink<B>(t.grad_target), fold);
  });
}

template <template <class> class Loss>
void reduce(const Forward& r, const Workspace& workspace, Stream stream) {
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using FastT = Fast<typename P::A, typename P::B>;
    using ExactT = Exact<typename P::A, typename P::B>;
    const Training no_gradients = {r, {}, {}};
    if (r.output.dtype == DType::Float64) {
      launch_reduce<double, P, Loss<double>>(r, workspace, stream);
    } else if (r.count <= plan::kExactCount) {
      launch_train<ExactT, OfGradients<P>, P, Loss>(no_gradients, workspace, stream);
    } else if (r.count <= plan::train_tile(P::N)) {
      launch_train<FastT, OfGradients<P>, P, Loss>(no_gradients, workspace, stream);
    } else {
      launch_reduce<FastT, P, Loss<FastT>>(r, workspace, stream);
    }
  });
}

template <template <class> class Loss>
void train(const Training& t, const Workspace& workspace, Stream stream) {
  dispatch_pair(t.forward.input, t.forward.target, [&](auto pair) {
    using P = decltype(pair);
    using A = typename P::A;
    using B = typename P::B;
    dispatch_gradients(pair, t.grad_input, t.grad_target, [&](auto arithmetic) {
      using TG = typename decltype(arithmetic)::type;
      if (t.forward.count <= plan::kExactCount) {
        launch_train<Exact<A, B>, TG, P, Loss>(t, workspace, stream);
      } else {
        launch_train<Fast<A, B>, TG, P, Loss>(t, workspace, stream);
      }
    });
  });
}

template <template <class> class Loss>
void backward(const Backward& r, Stream stream) {
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using A = typename P::A;
    using B = typename P::B;
    dispatch_gradients(pair, r.grad_input, r.grad_target, [&](auto arithmetic) {
      using T = typename decltype(arithmetic)::type;
      const auto start = [&](auto kernel, int64_t blocks) {
        launch(kernel, blocks, plan::elementwise_threads(P::N), stream, Loss<T>(r.parameter),
               GradOutput{r.grad_output, r.grad_output_is_scalar}, ratio(1.0, r.divisor, Scalar<T>()),
               Source<A>(r.input), Source<B>(r.target),
               vector_aligned({r.input.data, r.target.data, r.grad_input.data, r.grad_target.data}), r.count,
               Sink<A>(r.grad_input), Sink<B>(r.grad_target));
      };
      const int64_t tiles = plan::elementwise_tiles(r.count, P::N);
      if (r.hold_unit_gradients) {
        start(rescale_kernel<T, A, B, P::N, Loss<T>>, std::min(tiles, plan::kPersistentBlocks));
      } else {
        start(backward_kernel<T, A, B, P::N, Loss<T>>, tiles);
      }
    });
  });
}

}  // namespace cudaloss::cuda
