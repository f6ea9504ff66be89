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

  // `slope` is the factor of softplus(|x|), with the rounding error of 1 - t in it; `total` the sum of both factors.
  // `of` has sigmoid(-|x|) and softplus(-|x|).
  struct Terms {
    F x, total;
    WithRest<F> slope;
    Logistic<F> of;
  };

  F keep, half;        // 1 - label_smoothing, and half of label_smoothing: a target t becomes keep t + half
  F keep_on, half_on;  // pos_weight times keep and half
  WithRest<F> excess;  // pos_weight - 1; without the rest a pos_weight below 1e-5 would lose a half's digits

  explicit binary_cross_entropy_with_logits(const Numbers& n)
      : keep(static_cast<F>(1.0 - n.second)),
        half(static_cast<F>(0.5 * n.second)),
        keep_on(static_cast<F>(n.third * (1.0 - n.second))),
        half_on(static_cast<F>(0.5 * n.third * n.second)),
        excess(with_rest(n.third - 1.0, F())) {}

  // The same loss for an element with its own pos_weight.
  CUDALOSS_INLINE binary_cross_entropy_with_logits with(F own) const {
    binary_cross_entropy_with_logits result = *this;
    result.keep_on = keep * own;
    result.half_on = half * own;
    result.excess = difference_of(own, F(1));
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> other = one_less(t);
    const F off = fused(other.value, keep, half), on = fused(t, keep_on, half_on);
    const F slope = select(x < F(0), on, off);
    if constexpr (kIsFast) {
      const PlainLogistic<F> of = fast_logistic(absolute(x));
      // off + on. That sum itself made the bf16 step 1.13 times as long (H100): the compiler spilled 40 bytes.
      const F moved = fused(t, keep, half), total = fused(moved, excess.rest, fused(moved, excess.value, F(1)));
      return {x, total, {slope, F(0)}, {of.sigmoid, of.log}};
    } else {
      const F lost = select(x < F(0), F(0), other.rest * keep);
      return {x, off + on, {slope, lost}, logistic(absolute(x))};
    }
  }

  CUDALOSS_INLINE F value(const Terms& e) const {
    const F linear = select(e.slope.value == F(0), F(0), absolute(e.x));  // 0 times an infinite x is 0
    if constexpr (kIsFast) {
      return fused(e.slope.value, linear, e.total * e.of.log);
    } else {
      const F total = e.total * ExpParts<F>::small;
      return fused(total, e.of.log, fused(e.slope.value, linear, total * e.of.log_rest));
    }
  }

  // off sigmoid(x) - on sigmoid(-x); the sigmoids add up to 1.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F sigmoid = e.of.sigmoid;
    if constexpr (kIsFast) {
      return fused(-e.total, sigmoid, e.slope.value) * select(e.x < F(0), -scale.hi, scale.hi);
    } else {
      // Without the rests the largest errors were 2.27 ulp in fp32 and 2.39 in fp64. With them an fp32 step with a
      // weight for each class takes 1.09 times as long (H100).
      constexpr F small = ExpParts<F>::small, big = ExpParts<F>::big;
      const F whole = e.slope.value * big, value = fused(-e.total, sigmoid, whole);
      const F rest = fused(-e.total, sigmoid, whole - value) + fused(-e.total, e.of.sigmoid_rest, e.slope.rest * big);
      const WithRest<F> size = {value, rest};
      return rounded_product(select(e.x < F(0), -size, size), scale) * small;
    }
  }

  // (1 - label_smoothing) (pos_weight softplus(-x) - softplus(x)).
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const F slope = select(e.x < F(0), -keep_on, -keep);
    const F linear = select(slope == F(0), F(0), slope * e.x);
    const F log = kIsFast ? e.of.log : (e.of.log + e.of.log_rest) * ExpParts<F>::small;
    const F grad = fused(keep * excess.value, log, linear);
    return select(e.total == e.total, grad, e.total) * scale.hi;  // NaN if the target is NaN
  }
};

}  // namespace cudaloss::losses
