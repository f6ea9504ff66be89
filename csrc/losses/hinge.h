// The hinge loss for targets of 1 and -1: how far w = target * input is below the margin, or the square of that.
// Rosasco et al., "Are Loss Functions All the Same?", 2004.
#pragma once

#include "core/functor.h"
#include "core/numbers.h"

namespace cudaloss::losses {

template <class T>
struct hinge {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true;

  struct Terms {
    F x, t;
    N behind;
  };

  N margin;
  bool squares;

  explicit hinge(const Numbers& n) : hinge(constant_of(n.third, F()), n.second == 2.0) {}
  CUDALOSS_INLINE hinge(Constant<F> m, bool s) : margin(number_of<N>(m)), squares(s) {}
  CUDALOSS_INLINE hinge with(F own) const { return {Constant<F>{own, F(0)}, squares}; }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N behind = gap_between(margin, product_in<N>(t, x));
    return {x, t, select(value_of(behind) <= F(0), N{}, behind)};
  }
  CUDALOSS_INLINE N value(const Terms& e) const { return select(squares, e.behind * e.behind, e.behind); }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return chained(slope(e), -e.t, scale); }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const { return chained(slope(e), -e.x, scale); }

 private:
  CUDALOSS_INLINE N slope(const Terms& e) const {
    const F size = value_of(e.behind), one = select(size > F(0), F(1), size);  // NaN for NaN
    return select(squares, twice(e.behind), number_of<N>(Constant<F>{one, F(0)}));
  }
};

}  // namespace cudaloss::losses
