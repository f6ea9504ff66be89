// The pseudo-Huber loss, delta^2 (sqrt(1 + (d / delta)^2) - 1): d^2 / 2 near 0, delta |d| far from it, smooth between.
// Charbonnier et al., "Deterministic Edge-Preserving Regularization in Computed Imaging", 1997.
#pragma once

#include "core/functor.h"
#include "core/numbers.h"

namespace cudaloss::losses {

template <class T>
struct pseudo_huber {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    N d;
    Hypotenuse<N> of;
  };

  N delta;
  Leg<N> leg;

  explicit pseudo_huber(const Numbers& n) : pseudo_huber(constant_of(n.third, F())) {}
  CUDALOSS_INLINE explicit pseudo_huber(Constant<F> d) : delta(number_of<N>(d)), leg(d) {}
  CUDALOSS_INLINE pseudo_huber with(F own) const { return pseudo_huber(Constant<F>{own, F(0)}); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N d = difference_in<N>(x, t);
    return {d, Hypotenuse<N>(d, leg)};
  }
  // With h the root of d^2 + delta^2: d^2 delta / (h + delta), or |d| delta for a far d.
  CUDALOSS_INLINE N value(const Terms& e) const {
    const N sum = sum_of(e.of.root, leg.c), near = quotient_of(leg.c, sum, reciprocal_of(value_of(sum)));
    return absolute(e.d) * select(e.of.is_far, delta, absolute(e.d) * near);
  }
  // d delta / h.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const N far = signed_by(value_of(e.d), delta), near = e.d * quotient_of(leg.c, e.of.root, e.of.inverse);
    return rounded_finite_product(select(e.of.is_far, far, near), scale);
  }
};

}  // namespace cudaloss::losses
