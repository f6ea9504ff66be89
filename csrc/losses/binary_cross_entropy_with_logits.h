// Binary cross-entropy of sigmoid(x): (1 - t) softplus(x) + pos_weight t softplus(-x), with t moved towards 1/2 by
// label smoothing. softplus(x) = max(x, 0) + log1p(exp(-|x|)).
#pragma once

#include <type_traits>

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct binary_cross_entropy_with_logits {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true;
  static constexpr bool kIsFast = std::is_same_v<T, FastFloat>;

  // `slope` is the factor of softplus(|x|), `total` the sum of both factors. `sigmoid` and `log` are sigmoid(-|x|) and
  // softplus(-|x|).
  struct Terms {
    F x, slope, total, sigmoid, log, log_rest;
  };

  F keep, half;        // 1 - label_smoothing, and half of label_smoothing: a target t becomes keep t + half
  F keep_on, half_on;  // pos_weight times keep and half
  F excess;            // pos_weight - 1

  explicit binary_cross_entropy_with_logits(const Numbers& n)
      : keep(static_cast<F>(1.0 - n.second)),
        half(static_cast<F>(0.5 * n.second)),
        keep_on(static_cast<F>(n.third * (1.0 - n.second))),
        half_on(static_cast<F>(0.5 * n.third * n.second)),
        excess(static_cast<F>(n.third - 1.0)) {}

  // The same loss for an element with its own pos_weight.
  CUDALOSS_INLINE binary_cross_entropy_with_logits with(F own) const {
    binary_cross_entropy_with_logits result = *this;
    result.keep_on = keep * own;
    result.half_on = half * own;
    result.excess = own - F(1);
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const F off = fused(F(1) - t, keep, half), on = fused(t, keep_on, half_on), slope = select(x < F(0), on, off);
    if constexpr (kIsFast) {
      const PlainLogistic<F> of = fast_logistic(absolute(x));
      return {x, slope, fused(fused(t, keep, half), excess, F(1)), of.sigmoid, of.log, F(0)};
    } else {
      const Logistic<F> of = logistic(absolute(x));
      return {x, slope, off + on, of.sigmoid, of.log, of.log_rest};
    }
  }

  CUDALOSS_INLINE F value(const Terms& e) const {
    const F linear = select(e.slope == F(0), F(0), absolute(e.x));  // 0 times an infinite x is 0
    if constexpr (kIsFast) {
      return fused(e.slope, linear, e.total * e.log);
    } else {
      const F total = e.total * ExpParts<F>::small;
      return fused(total, e.log, fused(e.slope, linear, total * e.log_rest));
    }
  }

  // off sigmoid(x) - on sigmoid(-x); the sigmoids add up to 1.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    if constexpr (kIsFast) {
      return fused(-e.total, e.sigmoid, e.slope) * select(e.x < F(0), -scale.hi, scale.hi);
    } else {
      constexpr F small = ExpParts<F>::small, big = ExpParts<F>::big;
      const F size = fused(-e.total, e.sigmoid, e.slope * big), grad = select(e.x < F(0), -size, size);
      return fused(grad, scale.hi, grad * scale.lo) * small;  // in this order a scale of 1e-30 keeps its digits
    }
  }

  // (1 - label_smoothing) (pos_weight softplus(-x) - softplus(x)).
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const F slope = select(e.x < F(0), -keep_on, -keep);
    const F linear = select(slope == F(0), F(0), slope * e.x);
    const F log = kIsFast ? e.log : (e.log + e.log_rest) * ExpParts<F>::small;
    const F grad = fused(keep * excess, log, linear);
    return select(e.total == e.total, grad, e.total) * scale.hi;  // NaN if the target is NaN
  }
};

}  // namespace cudaloss::losses
