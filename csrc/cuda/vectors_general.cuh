// Rows of vectors of any strides and dtypes, also fp64: a thread, a warp or a block reads a row twice.
#pragma once

#include "cuda/any_vectors.cuh"
#include "cuda/row_lanes.cuh"

namespace cudaloss::cuda {

// A known element type; or Any<F>: looked up at each element.
template <class F, class E>
struct GeneralVectors {
  const VectorParameters<Partial<F>>& g;
  int64_t begin[3];  // offsets of input, target, third

  __device__ __forceinline__ F at(const Operand& operand, Place place, int64_t begin, int32_t j) const {
    const int64_t i = begin + j * g.rows.class_stride[place];
    if constexpr (std::is_same_v<E, Any<F>>) {
      return floating_at<F>(operand, i);
    } else {
      return widen<F>(static_cast<const E*>(operand.data)[i]);
    }
  }
  __device__ __forceinline__ F input(int32_t j) const { return at(g.rows.input, kInput, begin[0], j); }
  __device__ __forceinline__ F target(int32_t j) const { return at(g.rows.target, kTarget, begin[1], j); }
  __device__ __forceinline__ F third(int32_t j) const { return at(g.rows.third, kThird, begin[2], j); }

  __device__ __forceinline__ void store(const Result& gradient, int64_t i, F value) const {
    if constexpr (std::is_same_v<E, Any<F>>) {
      store_scalar(gradient, i, static_cast<double>(value));
    } else {
      static_cast<E*>(gradient.data)[i] = narrow<E>(value);
    }
  }

  // u and v, and w if it is needed.
  __device__ __forceinline__ void load(int32_t j, bool needs_w, F& u, F& v, F& w) const {
    const F x = input(j), t = target(j), eps = static_cast<F>(g.eps);
    u = x, v = t;
    if (!g.differences) return;
    const F z = third(j);
    u = x - t + eps;
    v = x - z + eps;
    if (needs_w) w = t - z + eps;
  }
};

template <class P>
struct GeneralSums {
  P uu, vv, third;
};

template <class F, class E>
__device__ __forceinline__ void general_vectors(const VectorParameters<Partial<F>>& g, const Task<F>& task, int lane,
                                                int lanes, Partial<F>& sum) {
  using P = Partial<F>;
  const RowParameters<P>& p = g.rows;
  const GeneralVectors<F, E> row = {
      g, {offset(p, task.at, kInput), offset(p, task.at, kTarget), g.differences ? offset(p, task.at, kThird) : 0}};
  GeneralSums<P> part = {};
  const int32_t end = task.counts ? p.classes : 0;
#pragma unroll 4
  for (int32_t j = lane; j < end; j += lanes) {
    F u, v, w = F(0);
    row.load(j, g.needs_w, u, v, w);
    const double of_u = static_cast<double>(u), of_v = static_cast<double>(v), of_w = static_cast<double>(w);
    // Written as fused operations: |v| and |w| of one vector are then equal, whatever a compiler contracts.
    part.uu = part.uu + P{fused(of_u, of_u, 0.0)};
    part.vv = part.vv + P{fused(of_v, of_v, 0.0)};
    part.third = part.third + P{g.needs_w ? fused(of_w, of_w, 0.0) : fused(of_u, of_v, 0.0)};
  }
  part = together(part, lanes, [](const GeneralSums<P>& a, const GeneralSums<P>& b) {
    return GeneralSums<P>{a.uu + b.uu, a.vv + b.vv, a.third + b.third};
  });
  double loss;
  const VectorGains<F> gains = finished(g, task, {value_in(part.uu), value_in(part.vv), value_in(part.third)}, loss);
  if (lane == 0) add_loss(p, task.at, P{loss * static_cast<double>(task.weight)}, sum);
  if (!p.wants_gradients) return;
  const int64_t first = offset(p, task.at, kResult), second = offset(p, task.at, kSecondResult),
                last = offset(p, task.at, kThirdResult);
  const bool needs_w = gains.uses_w != UsesW::No, is_half = gains.uses_w == UsesW::Half;
#pragma unroll 4
  for (int32_t j = lane; j < p.classes; j += lanes) {
    F u = F(0), v = F(0), w = F(0);
    if (!gains.nothing) row.load(j, needs_w, u, v, w);
    if (gains.uses_w == UsesW::Yes) v = w;
    const auto store = [&](const Result& to, int64_t begin, Place place, F value) {
      if (to.data) row.store(to, begin + j * p.class_stride[place], value);
    };
    store(p.grad_input, first, kResult, gains.gradient(0, u, v));
    store(p.grad_target, second, kSecondResult, gains.gradient(1, u, is_half ? w : v));
    store(p.grad_third, last, kThirdResult, gains.gradient(2, is_half ? w : u, v));
  }
}

// Two blocks a processor: without the bound the fp32 kernel takes 70 registers, so that a processor has only one.
template <class F, class E>
__global__ void __launch_bounds__(kGeneralThreads, 2)
    vectors_in_general(const __grid_constant__ VectorParameters<Partial<F>> g) {
  const RowParameters<Partial<F>>& p = g.rows;
  release_next();
  wait_for_prior();
  if (all_held<F>(p)) return;
  const int lanes = 1 << g.lanes_shift, lane = static_cast<int>(threadIdx.x) & (lanes - 1);
  const uint32_t rows = kGeneralThreads >> g.lanes_shift;
  Partial<F> sum = {};
  RowFactor<F> factor;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows) {
    const Task<F> task = task_of<F, false>(p, factor, first + (threadIdx.x >> g.lanes_shift));
    if (!task.held) general_vectors<F, E>(g, task, lane, lanes, sum);  // all of a row's threads, in whole warps
  }
  reduce_losses<kGeneralThreads, SumsOf::Block>(p, sum);
}

}  // namespace cudaloss::cuda
