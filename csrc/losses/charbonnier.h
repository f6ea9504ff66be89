// The Charbonnier loss, sqrt(d^2 + eps^2): |d| with a round tip.
// Charbonnier et al., "Two Deterministic Half-Quadratic Regularization Algorithms", 1994.
#pragma once

#include "core/functor.h"
#include "core/pairs.h"

namespace cudaloss::losses {

template <class T>
struct charbonnier {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    F d;
    Hypotenuse<F> of;
  };

  WithRest<F> eps;

  explicit charbonnier(const Numbers& n) : charbonnier(constant_of(n.third, F())) {}
  CUDALOSS_INLINE explicit charbonnier(Constant<F> e) : eps{e.hi, e.lo} {}
  CUDALOSS_INLINE charbonnier with(F own) const { return charbonnier(Constant<F>{own, F(0)}); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> d = difference_of(x, t);
    return {d.value, hypotenuse_of(absolute(d), eps)};
  }
  CUDALOSS_INLINE WithRest<F> value(const Terms& e) const {
    return {e.of.root.value * e.of.back, e.of.root.rest * e.of.back};
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const WithRest<F> distance = select(e.of.swapped, e.of.smaller, e.of.larger);
    return signed_by(e.d, F(1)) * rounded_product(quotient_of(distance, e.of.root, e.of.inverse), scale);
  }
};

}  // namespace cudaloss::losses
