// The CUDA engine: from a request's run-time dtypes to one kernel launch.
#pragma once

#include <type_traits>

#include "cuda/as_pass.h"
#include "cuda/elementwise.cuh"
#include "cuda/engine.h"
#include "cuda/fold.cuh"
#include "cuda/launch.h"
#include "cuda/pass_impl.cuh"
#include "cuda/reduce.cuh"
#include "cuda/train.cuh"

namespace cudaloss::cuda {

// Pairs of dtypes that have kernels of their own: those that training code brings. Each is 80 KB of machine code a
// loss and architecture; all sixteen would double the binary. The others are a general pass (as_pass.h).
template <class A_, class B_, class Fast_, class Exact_, class Gradient_>
struct Pair {
  using A = A_;
  using B = B_;
  using Fast = Fast_;          // the arithmetic of a large reduction,
  using Exact = Exact_;        // of a small one and of single losses,
  using Gradient = Gradient_;  // and of gradients
  static constexpr int N = plan::vector_elements(sizeof(A), sizeof(B));
  static constexpr bool kTrains = !std::is_same_v<A, Half>;  // gradients come from the pass that sums
};

template <class Body>
void dispatch_pair(const Operand& input, const Operand& target, const Body& body) {
  const auto is = [&](DType a, DType b) { return input.dtype == a && target.dtype == b; };
  if (is(DType::Float32, DType::Float32)) return body(Pair<float, float, float, Wide, Wide>());
  if (is(DType::BFloat16, DType::BFloat16)) return body(Pair<BFloat16, BFloat16, Brief, float, Brief>());
  if (is(DType::BFloat16, DType::Float32)) return body(Pair<BFloat16, float, float, Wide, Brief>());
  if (is(DType::Float16, DType::Float16)) return body(Pair<Half, Half, Brief, float, Brief>());
  if (is(DType::Float16, DType::Float32)) return body(Pair<Half, float, float, Wide, Brief>());
  body(Pair<double, double, double, double, double>());
}

template <class T, class P, class Loss>
void launch_reduce(const Forward& r, const Memory& memory, Stream stream) {
  using Kept = Partial<T>;
  const int64_t blocks = plan::reduce_blocks(r.count, P::N);
  folded<Kept>(blocks, Quotient{divisor_of(r.divisor), r.output}, memory, stream, [&](const auto& fold) {
    launch(reduce_kernel<T, Kept, typename P::A, typename P::B, P::N, Loss>, blocks, plan::kReduceThreads, stream,
           Loss(r.parameter), Source<typename P::A>(r.input), Source<typename P::B>(r.target),
           vector_aligned({r.input.data, r.target.data}), r.count, fold);
  });
}

template <template <class> class Loss>
void elementwise(const Forward& r, Stream stream) {
  if (!is_native(r)) return pass<Loss>(as_pass_of_losses(r), {}, stream);
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using T = typename P::Exact;
    launch(elementwise_kernel<T, typename P::A, typename P::B, P::N, Loss<T>>, plan::elementwise_tiles(r.count, P::N),
           plan::elementwise_threads(P::N), stream, Loss<T>(r.parameter), Source<typename P::A>(r.input),
           Source<typename P::B>(r.target), vector_aligned({r.input.data, r.target.data, r.output.data}), r.count,
           r.output);
  });
}

template <class TV, class P, template <class> class Loss>
void launch_train(const Training& t, const Memory& memory, Stream stream) {
  using A = typename P::A;
  using B = typename P::B;
  using TG = typename P::Gradient;
  using Kept = Partial<TV>;
  const Forward& r = t.forward;
  const int64_t blocks = plan::train_blocks(r.count, P::N);
  const bool aligned = vector_aligned({r.input.data, r.target.data, t.grad_input.data, t.grad_target.data});
  auto kernel = train_kernel<false, TV, TG, Kept, A, B, P::N, Loss<TV>, Loss<TG>>;
  if constexpr (!std::is_same_v<TV, typename P::Exact>) {
    if (aligned) kernel = train_kernel<true, TV, TG, Kept, A, B, P::N, Loss<TV>, Loss<TG>>;
  }
  folded<Kept>(blocks, Quotient{divisor_of(r.divisor), r.output}, memory, stream, [&](const auto& fold) {
    launch(kernel, blocks, plan::train_threads(r.count, P::N), stream, Loss<TV>(r.parameter), Loss<TG>(r.parameter),
           ratio(1.0, r.divisor, Scalar<TG>()), Source<A>(r.input), Source<B>(r.target), aligned, r.count,
           Sink<A>(t.grad_input), Sink<B>(t.grad_target), fold);
  });
}

template <template <class> class Loss>
void reduce(const Forward& r, const Memory& memory, Stream stream) {
  const Training no_gradients = {r, {}, {}};
  if (!is_native(r)) return pass<Loss>(as_pass(no_gradients), memory, stream);
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using Fast = typename P::Fast;
    if (r.count <= plan::kExactCount) return launch_train<typename P::Exact, P, Loss>(no_gradients, memory, stream);
    if constexpr (P::kTrains) {
      if (r.count <= plan::train_tile(P::N)) return launch_train<Fast, P, Loss>(no_gradients, memory, stream);
    }
    launch_reduce<Fast, P, Loss<Fast>>(r, memory, stream);
  });
}

template <template <class> class Loss>
void train(const Training& t, const Memory& memory, Stream stream) {
  if (!is_native(t)) return pass<Loss>(as_pass(t), memory, stream);
  dispatch_pair(t.forward.input, t.forward.target, [&](auto pair) {
    using P = decltype(pair);
    if constexpr (P::kTrains) {
      if (t.forward.count <= plan::kExactCount) return launch_train<typename P::Exact, P, Loss>(t, memory, stream);
      launch_train<typename P::Fast, P, Loss>(t, memory, stream);
    }
  });
}

template <template <class> class Loss>
void backward(const Backward& r, Stream stream) {
  if (!is_native(r)) return pass<Loss>(as_pass(r), {}, stream);
  dispatch_pair(r.input, r.target, [&](auto pair) {
    using P = decltype(pair);
    using A = typename P::A;
    using B = typename P::B;
    using T = typename P::Gradient;
    const auto start = [&](auto kernel, int64_t blocks) {
      launch(kernel, blocks, plan::elementwise_threads(P::N), stream, Loss<T>(r.parameter),
             GradOutput{r.grad_output, r.grad_output_is_scalar}, ratio(1.0, r.divisor, Scalar<T>()), Source<A>(r.input),
             Source<B>(r.target), vector_aligned({r.input.data, r.target.data, r.grad_input.data, r.grad_target.data}),
             r.count, Sink<A>(r.grad_input), Sink<B>(r.grad_target));
    };
    const int64_t tiles = plan::elementwise_tiles(r.count, P::N);
    if (r.hold_unit_gradients) {
      start(rescale_kernel<T, A, B, P::N, Loss<T>>, std::min(tiles, plan::kPersistentBlocks));
    } else {
      start(backward_kernel<T, A, B, P::N, Loss<T>>, tiles);
    }
  });
}

}  // namespace cudaloss::cuda
