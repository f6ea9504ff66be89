// The pass over operands that are read in whole vectors: two of each thread's are in flight.
#pragma once

#include "cuda/pass.cuh"
#include "cuda/train.cuh"

namespace cudaloss::cuda {

// What there may be beside dense operands that lie alike: nothing; a mask that lies as they do; weights of the
// arithmetic's own dtype and such a mask; or anything: NaN to be looked for, masks of any strides, weights of any
// dtype, operands that are not dense.
enum class Beside { Nothing, Mask, Weight, Anything };

// The offset of a vector's weight, by the dimensions that matter to it.
template <class A, class B, class F, class P>
__device__ __forceinline__ int64_t weight_offset(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                 uint32_t vector) {
  uint32_t sum = 0;
#pragma unroll
  for (int d = 0; d < kFewSteps; ++d) {
    if (d >= p.weight_dims) break;
    const uint32_t rest = p.inner.size[d].quotient(vector);
    sum += (vector - rest * p.inner.size[d].divisor) * static_cast<uint32_t>(p.inner.step[d][kWeight]);
    vector = rest;
  }
  if (p.grid.segments == 1) return sum;
  return sum + narrow_offset(p.segments, coordinates<kFewSteps>(p.segments, segment), kWeight);
}

template <Beside kBeside, int N, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, N> read_whole(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                          uint32_t vector) {
  Reading<A, B, F, N> r;
  r.length = N;
  const int64_t linear = (int64_t{segment} * p.grid.vectors + vector) * N;
  if constexpr (kBeside == Beside::Anything) {
    const auto at = position<kFewSteps>(p, segment, vector);
    const int64_t of_input = p.linear ? linear : narrow_offset(p, at, kInput);
    const int64_t of_target = p.linear ? linear : narrow_offset(p, at, kTarget);
    r.operands = {p.input.template load_whole<N>(of_input), p.target.template load_whole<N>(of_target)};
    if (p.weight.data) p.weight.load(narrow_offset(p, at, kWeight), N, r.weight);
    if (p.mask.data) r.mask = load_mask<N>(p.mask, narrow_offset(p, at, kMask), N);
  } else {
    r.operands = {p.input.template load_whole<N>(linear), p.target.template load_whole<N>(linear)};
    if (kBeside != Beside::Nothing && p.mask.data) r.mask = p.mask.template load_whole<N>(linear);
    if constexpr (kBeside == Beside::Weight) {
      const F* const weight = static_cast<const F*>(p.weight.data) + weight_offset(p, segment, vector);
      const auto each = load_each<N>(weight, p.weight.stride, p.weight.stride == 0 ? 1 : N);
#pragma unroll
      for (int i = 0; i < N; ++i) r.weight[i] = each.element[i];
    }
  }
  return r;
}

// Where the gradients of a vector go.
template <Beside kBeside, int N, class A, class B, class F, class P>
__device__ __forceinline__ void set_offsets(const PassParameters<A, B, F, P>& p, uint32_t segment, uint32_t vector,
                                            Reading<A, B, F, N>& r) {
  r.first = r.second = (int64_t{segment} * p.grid.vectors + vector) * N;
  if (kBeside == Beside::Anything && !p.linear) {
    const auto at = position<kFewSteps>(p, segment, vector);
    r.first = narrow_offset(p, at, kFirst);
    r.second = narrow_offset(p, at, kSecond);
  }
}

// Element i of a row that is all there is, which the last whole vector does not reach.
template <Beside kBeside, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, 1> read_single(const PassParameters<A, B, F, P>& p, int64_t i) {
  Reading<A, B, F, 1> r;
  r.first = r.second = i;
  r.length = 1;
  r.operands = {p.input.template load_whole<1>(i), p.target.template load_whole<1>(i)};
  if (kBeside != Beside::Nothing && p.mask.data) r.mask.element[0] = p.mask.data[i * p.inner.stride[kMask]];
  if (kBeside >= Beside::Weight && p.weight.data) p.weight.load(i * p.inner.stride[kWeight], 1, r.weight);
  return r;
}

template <Beside kBeside, class A, class B>
constexpr int kWholeBlocks = kBeside != Beside::Nothing ? 2 : kBlocksAProcessor<A, B>;

template <Beside kBeside, class TV, class TG, class P, class A, class B, int N, class LossV, class LossG>
__global__ void __launch_bounds__(plan::kPassThreads, (kWholeBlocks<kBeside, A, B>))
    whole_pass_kernel(LossV loss, LossG loss_of_gradients,
                      const __grid_constant__ PassParameters<A, B, Scalar<TG>, P> p) {
  using F = Scalar<TG>;
  Wanted wanted = {};
  wanted.losses = p.sums_losses;
  wanted.gradients = p.grad_input.data || p.grad_target.data;
  wanted.masked = kBeside != Beside::Nothing && p.mask.data;
  wanted.without_nan = kBeside == Beside::Anything && p.ignore_nan;
  wanted.weighted = kBeside == Beside::Weight || (kBeside == Beside::Anything && p.weight.data);
  wanted.whole = true;
  run<plan::kPassThreads, TV>(p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
    constexpr int kUnroll = plan::kPassUnroll;
    constexpr uint32_t kLanes = plan::kPassThreads;
    const uint32_t lane = threadIdx.x;
    const uint32_t whole_end = min(end, p.inner.whole_end);
    P sum = {};
#pragma unroll 1
    for (uint32_t turn = begin; turn < whole_end; turn += kLanes * kUnroll) {
      Reading<A, B, F, N> reading[kUnroll];
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        reading[u] = read_whole<kBeside, N>(p, segment, min(turn + u * kLanes + lane, whole_end - 1));
      }
      const Constant<F> scale = factor_in(p, segment);  // behind the loads, because it may have to wait for one itself
#pragma unroll
      for (int u = 0; u < kUnroll; ++u) {
        const uint32_t vector = turn + u * kLanes + lane;
        if (vector >= whole_end) break;
        set_offsets<kBeside, N>(p, segment, vector, reading[u]);
        sum = AddPartials()(sum, P{process<TV, TG>(p, wanted, loss, loss_of_gradients, reading[u], scale)});
      }
    }
    const uint32_t single = p.inner.whole_end * N + lane;
    if (whole_end < end && end == p.grid.vectors && single < p.inner.vector_size) {
      const auto reading = read_single<kBeside>(p, single);
      const Constant<F> scale = factor_in(p, segment);
      sum = AddPartials()(sum, P{process<TV, TG>(p, wanted, loss, loss_of_gradients, reading, scale)});
    }
    return sum;
  });
}

}  // namespace cudaloss::cuda
