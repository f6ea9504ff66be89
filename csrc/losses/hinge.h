// The hinge loss of targets of 1 and -1: how far w = target * input stays behind the margin, or the square of that.
// Rosasco et al., "Are Loss Functions All the Same?", 2004.
#pragma once

#include "core/functor.h"
#include "core/pairs.h"

namespace cudaloss::losses {

template <class T>
struct hinge {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true;

  struct Terms {
    F x, t;
    WithRest<F> behind;
  };

  WithRest<F> margin;
  bool squares;

  explicit hinge(const Numbers& n) : hinge(constant_of(n.third, F()), n.second == 2.0) {}
  CUDALOSS_INLINE hinge(Constant<F> m, bool s) : margin{m.hi, m.lo}, squares(s) {}
  CUDALOSS_INLINE hinge with(F own) const { return {Constant<F>{own, F(0)}, squares}; }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> w = product_of(t, x), gap = difference_of(margin.value, w.value);
    const F rest = gap.rest + (margin.rest - w.rest), behind = gap.value + rest;
    return {x, t, select(behind <= F(0), WithRest<F>{}, WithRest<F>{behind, (gap.value - behind) + rest})};
  }
  CUDALOSS_INLINE WithRest<F> value(const Terms& e) const { return select(squares, e.behind * e.behind, e.behind); }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return chained(slope(e), -e.t, scale); }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const { return chained(slope(e), -e.x, scale); }

 private:
  CUDALOSS_INLINE WithRest<F> slope(const Terms& e) const {
    const F one = select(e.behind.value > F(0), F(1), e.behind.value);  // NaN of NaN
    return {select(squares, twice(e.behind.value), one), select(squares, twice(e.behind.rest), F(0))};
  }
};

}  // namespace cudaloss::losses
