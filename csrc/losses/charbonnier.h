// The Charbonnier loss, sqrt(d^2 + eps^2): |d| with a round tip.
// Charbonnier et al., "Two Deterministic Half-Quadratic Regularization Algorithms", 1994.
#pragma once

#include "core/functor.h"
#include "core/numbers.h"

namespace cudaloss::losses {

template <class T>
struct charbonnier {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    N d;
    Hypotenuse<N> of;
  };

  Leg<N> eps;

  explicit charbonnier(const Numbers& n) : charbonnier(constant_of(n.third, F())) {}
  CUDALOSS_INLINE explicit charbonnier(Constant<F> e) : eps(e) {}
  CUDALOSS_INLINE charbonnier with(F own) const { return charbonnier(Constant<F>{own, F(0)}); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N d = difference_in<N>(x, t);
    return {d, Hypotenuse<N>(d, eps)};
  }
  CUDALOSS_INLINE N value(const Terms& e) const {
    return select(e.of.is_far, absolute(e.d), scaled(e.of.root, eps.back));
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const N far = signed_by(value_of(e.d), number_of<N>(Constant<F>{F(1), F(0)}));
    return rounded_finite_product(select(e.of.is_far, far, quotient_of(e.of.d, e.of.root, e.of.inverse)), scale);
  }
};

}  // namespace cudaloss::losses
