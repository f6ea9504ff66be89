// A loss of vectors known only at run time. It is called once a row, so one set of kernels serves all losses.
#pragma once

#include "core/vectors.h"
#include "cuda/row_parameters.cuh"
#include "row_losses.h"

namespace cudaloss::cuda {

template <class Loss, class = void>
constexpr bool kIsOfVectors = false;
template <class Loss>
constexpr bool kIsOfVectors<Loss, std::void_t<decltype(Loss::kVectors)>> = true;

struct AnyVectors {
  int loss;
  Numbers numbers;

  __device__ __forceinline__ VectorRow finish(const VectorSums& sums, double label) const {
    VectorRow row = {};
    switch (loss) {
#define CUDALOSS_ROW_LOSS(name, id, reads)      \
  case id:                                      \
    row = finish_as<losses::name>(sums, label); \
    break;
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
    }
    return row;
  }

 private:
  template <class Loss>
  __device__ __forceinline__ VectorRow finish_as(const VectorSums& sums, double label) const {
    if constexpr (kIsOfVectors<Loss>) {
      return Loss(numbers).finish(sums, label);
    } else {
      return {};
    }
  }
};

template <class P>
struct VectorParameters {
  RowParameters<P> rows;
  AnyVectors loss;
  double eps;  // for losses of differences
  bool differences, needs_w;
  int lanes_shift;  // the log2 of a row's threads, in vectors_general.cuh
};

// The gradients of a row's operands (input, target, third): multiples of u and v times powers of two. nothing: they are
// 0, for any u and v.
template <class F>
struct VectorGains {
  Constant<F> by_u[3], by_v[3];
  F power_u, power_v;
  bool nothing;
  UsesW uses_w;

  __device__ __forceinline__ F gradient(int of, F u, F v) const {
    u *= power_u;
    v *= power_v;
    const F found = fused(by_u[of].hi, u, fused(by_v[of].hi, v, fused(by_u[of].lo, u, by_v[of].lo * v)));
    return nothing ? F(0) : found;
  }
};

// From a row's sums to its loss, and to its gradients times `factor`.
template <class F, class P>
__device__ __forceinline__ VectorGains<F> finished(const VectorParameters<P>& g, const Task<F>& task,
                                                   const VectorSums& sums, double& loss) {
  const RowParameters<P>& p = g.rows;
  VectorGains<F> gains = {};
  gains.nothing = true;
  loss = 0.0;
  if (task.held || !task.counts) return gains;
  const bool has_label = !g.differences && p.third.data;
  const double label = has_label ? number_at<double>(p.third, offset(p, task.at, kThird)) : 0.0;
  const VectorRow row = g.loss.finish(sums, label);
  loss = row.loss;
  if (!p.wants_gradients) return gains;
  const double hi = static_cast<double>(task.factor.hi), lo = static_cast<double>(task.factor.lo);
  const NormPower u = norm_power(sums.uu), v = norm_power(row.uses_w == UsesW::Yes ? sums.third : sums.vv);
  const auto by = [&](double x, double back) { return constant_of(fused(x, hi, x * lo) * back, F()); };
  gains.uses_w = row.uses_w;
  gains.power_u = static_cast<F>(u.power);
  gains.power_v = static_cast<F>(v.power);
  gains.nothing = is_nothing(row);
  const Multiples of[] = {row.input, row.target, third_of(row)};
#pragma unroll
  for (int i = 0; i < 3; ++i) {
    gains.by_u[i] = by(of[i].of_u, u.back);
    gains.by_v[i] = by(of[i].of_v, v.back);
  }
  return gains;
}

}  // namespace cudaloss::cuda
