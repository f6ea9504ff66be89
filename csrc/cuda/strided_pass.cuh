// The pass over operands of any strides and dtypes, with any third operand, to any result: one kernel for all losses.
#pragma once

#include "cuda/any_loss.cuh"
#include "cuda/general_pass.cuh"

namespace cudaloss::cuda {

// Third operands are read only where dtypes are looked up at run time.
template <class A, class F>
constexpr bool kMayHaveThird = std::is_same_v<A, Any<F>>;

template <int N, class A, class F, class P>
__device__ __forceinline__ Reading<A, A, F, N> read(const PassParameters<A, A, F, P>& p, uint32_t segment,
                                                    uint32_t vector) {
  const auto at = position<kMaxOffsetDims>(p, segment, vector);
  Reading<A, A, F, N> r;
  r.length = static_cast<int>(min(uint32_t{N}, p.inner.vector_size - vector_index(p.inner, at.inner) * N));
  const int64_t of_input = offset(p, at, kInput), of_target = offset(p, at, kTarget);
  // One branch around both loads: with a branch for each, the second would wait for the first.
  if (!std::is_same_v<A, Any<F>> && p.whole && r.length == N) {
    r.operands = {p.input.template load_vector<N>(of_input), p.target.template load_vector<N>(of_target)};
  } else {
    r.operands = {p.input.template load<N>(of_input, r.length), p.target.template load<N>(of_target, r.length)};
  }
  if (p.mask.data) r.mask = load_mask<N>(p.mask, offset(p, at, kMask), r.length);
  if (p.weight.data) p.weight.load(offset(p, at, kWeight), r.length, r.weight);
  if constexpr (kMayHaveThird<A, F>) {
    if (p.third.data) p.third.load(offset(p, at, kThird), r.length, r.third);
  }
  r.first = p.input_is_first ? of_input : offset(p, at, kResult);
  r.second = p.target_is_second ? of_target : offset(p, at, kSecondResult);
  r.grad_output = p.scattered_grad_output ? offset(p, at, kGradOutput) : 0;
  return r;
}

// The factors of a vector's gradients.
template <int N, class A, class F, class P>
__device__ __forceinline__ void read_factors(const PassParameters<A, A, F, P>& p, const Reading<A, A, F, N>& reading,
                                             Constant<F> scale, Constant<F> (&factor)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) factor[i] = scale;
  if (p.weight.data) {
#pragma unroll
    for (int i = 0; i < N; ++i) factor[i] = times(factor[i], Constant<F>{p.weight.of(i, reading.weight), F(0)});
  }
  if (!p.scattered_grad_output) return;
  Constant<F> incoming[N];
  p.grad_output.each(reading.grad_output, p.inner.stride[kGradOutput], reading.length, incoming);
#pragma unroll
  for (int i = 0; i < N; ++i) factor[i] = times(factor[i], incoming[i]);
}

// A loss's results for a vector.
template <int N, class T>
struct Results {
  T value[N];
  Scalar<T> first[N], second[N];  // gradients: of the input or the third operand, and of the target
};

template <class T>
CUDALOSS_INLINE T value_as(T value) {
  return value;
}
template <class T>
CUDALOSS_INLINE FloatFloat value_as(float value) {
  return {value, 0.0f};
}

template <int N, class T, class A, class F, class P>
__device__ __forceinline__ Results<N, T> evaluate(const PassParameters<A, A, F, P>& p, const AnyLoss<T>& any,
                                                  const Reading<A, A, F, N>& reading, Constant<F> scale) {
  const bool wants_value = p.sums_losses || p.losses.data;
  const bool wants_first = p.grad_input.data || p.summed == Summed::GradInput;
  const bool wants_second = p.grad_target.data || p.summed == Summed::GradTarget;
  Constant<F> factor[N] = {};
  if (wants_first || wants_second) read_factors(p, reading, scale, factor);
  Results<N, T> results = {};
  any.visit([&](const auto& loss) {
    using Loss = std::decay_t<decltype(loss)>;
    const auto make = [&](const Loss& loss, int i) {
      const auto terms = loss.terms(reading.operands.a.element[i], reading.operands.b.element[i]);
      if (wants_value) results.value[i] = value_as<T>(loss.value(terms));
      if constexpr (kHasGradThird<Loss>) {
        if (p.of_third) {
          results.first[i] = loss.grad_third(terms, factor[i]);
          return;
        }
      }
      if (wants_first || (Loss::kMirrors && wants_second)) results.first[i] = loss.grad_input(terms, factor[i]);
      if (!wants_second) return;
      if constexpr (Loss::kMirrors) {
        results.second[i] = -results.first[i];
      } else {
        results.second[i] = loss.grad_target(terms, factor[i]);
      }
    };
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Loss::kHasThird && kMayHaveThird<A, F>) {
        make(p.third.data ? loss.with(p.third.of(i, reading.third)) : loss, i);
      } else {
        make(loss, i);
      }
    }
  });
  return results;
}

// Makes all results of one vector, and returns its part of the segment's sum.
template <int N, class T, class A, class F, class P>
__device__ __forceinline__ double process(const PassParameters<A, A, F, P>& p, const Wanted& wanted,
                                          const AnyLoss<T>& loss, const Reading<A, A, F, N>& reading,
                                          Constant<F> scale) {
  const unsigned selected = selected_in<N>(p, wanted, reading);
  Results<N, T> results = evaluate<N>(p, loss, reading, scale);
  if (p.weight.data) {
#pragma unroll
    for (int i = 0; i < N; ++i) results.value[i] = weighted(results.value[i], p.weight.of(i, reading.weight));
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const bool is_selected = (selected >> i & 1) != 0;
    results.value[i] = select(is_selected, results.value[i], T());
    results.first[i] = select(is_selected, results.first[i], F(0));
    results.second[i] = select(is_selected, results.second[i], F(0));
  }
  if (p.losses.data) {
    const Constant<F> factor = constant_of(p.scale, F());
    F single[N];
#pragma unroll
    for (int i = 0; i < N; ++i) single[i] = rounded(results.value[i] * factor);
    p.losses.store(reading.first, reading.length, single);
  }
  if (p.grad_input.data) p.grad_input.store(reading.first, reading.length, results.first);
  if (p.grad_target.data) p.grad_target.store(reading.second, reading.length, results.second);
  if (p.summed == Summed::GradInput) return tree_sum(results.first);
  if (p.summed == Summed::GradTarget) return tree_sum(results.second);
  return p.sums_losses ? tree_sum(results.value) : 0.0;
}

// The blocks that a processor must hold. This leaves a thread 80 registers, or 96 in fp64: with 128 an fp32 pass takes
// 20 % longer, with 64 as long as with 80, and an fp64 pass 10 to 40 % longer.
template <class T>
constexpr int kStridedBlocks = sizeof(Scalar<T>) == sizeof(double) ? 5 : 6;

template <class P, class A, int N, class T>
__global__ void __launch_bounds__(plan::kStridedThreads, kStridedBlocks<T>)
    strided_pass_kernel(const __grid_constant__ AnyLoss<T> loss,
                        const __grid_constant__ PassParameters<A, A, Scalar<T>, P> p) {
  Wanted wanted = {};
  wanted.masked = p.mask.data != nullptr;
  wanted.without_nan = p.ignore_nan;
  run<0, T, plan::kStridedThreads>(p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
    const uint32_t lane = threadIdx.x & (p.partition.lanes - 1);
    const Constant<Scalar<T>> scale = factor_in(p, segment);
    P sum = {};
#pragma unroll 1
    for (uint32_t vector = begin + lane; vector < end; vector += p.partition.lanes) {
      sum = sum + P{process<N>(p, wanted, loss, read<N>(p, segment, vector), scale)};
    }
    return sum;
  });
}

}  // namespace cudaloss::cuda
