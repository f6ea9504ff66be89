// The pseudo-Huber loss, delta^2 (sqrt(1 + (d / delta)^2) - 1): d^2 / 2 near 0, delta |d| far from it, smooth between.
// Charbonnier et al., "Deterministic Edge-Preserving Regularization in Computed Imaging", 1997.
#pragma once

#include "core/functor.h"
#include "core/pairs.h"

namespace cudaloss::losses {

template <class T>
struct pseudo_huber {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    F d;
    WithRest<F> distance, least;  // |d|, and the smaller one of it and delta
    Hypotenuse<F> of;
  };

  WithRest<F> delta;

  explicit pseudo_huber(const Numbers& n) : pseudo_huber(constant_of(n.third, F())) {}
  CUDALOSS_INLINE explicit pseudo_huber(Constant<F> d) : delta{d.hi, d.lo} {}
  CUDALOSS_INLINE pseudo_huber with(F own) const { return pseudo_huber(Constant<F>{own, F(0)}); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> d = difference_of(x, t), distance = absolute(d);
    const Hypotenuse<F> of = hypotenuse_of(distance, delta);
    return {d.value, distance, select(of.swapped, distance, delta), of};
  }
  // With h the root of d^2 + delta^2: d^2 delta / (h + delta), of whose factors the larger one is taken by h.
  CUDALOSS_INLINE WithRest<F> value(const Terms& e) const {
    const WithRest<F> sum = sum_of(e.of.root, select(e.of.swapped, e.of.larger, e.of.smaller));
    return e.least * quotient_of(e.of.larger, sum, reciprocal_of(sum.value)) * e.distance;
  }
  // d delta / h.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const WithRest<F> size = e.least * quotient_of(e.of.larger, e.of.root, e.of.inverse);
    return signed_by(e.d, F(1)) * rounded_product(size, scale);
  }
};

}  // namespace cudaloss::losses
