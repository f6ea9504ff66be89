// The margin ranking loss of two scores: how far target * (input1 - input2) is below the margin, for a target of 1 if
// input1 should be the larger one, and -1 if input2 should. The target is the third operand.
// Herbrich et al., "Support Vector Learning for Ordinal Regression", 1999.
#pragma once

#include "core/functor.h"
#include "core/numbers.h"

namespace cudaloss::losses {

template <class T>
struct margin_ranking {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    N d, gap;  // input1 - input2, whose rest is NaN if it is infinite; and margin - target d
  };

  N target, margin;

  explicit margin_ranking(const Numbers& n)
      : margin_ranking(number_of<N>(constant_of(n.third, F())), number_of<N>(constant_of(n.second, F()))) {}
  CUDALOSS_INLINE margin_ranking(N t, N m) : target(t), margin(m) {}
  CUDALOSS_INLINE margin_ranking with(F own) const { return {number_of<N>(Constant<F>{own, F(0)}), margin}; }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N d = difference_in<N>(x, t);
    return {d, gap_between(margin, target * d)};
  }
  CUDALOSS_INLINE N value(const Terms& e) const { return select(value_of(e.gap) <= F(0), N{}, e.gap); }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return chained(slope(e), -target, scale); }
  CUDALOSS_INLINE F grad_third(const Terms& e, Constant<F> scale) const { return chained(slope(e), -e.d, scale); }

 private:
  // At the margin 1, as that of PyTorch's clamp.
  CUDALOSS_INLINE static N slope(const Terms& e) {
    const F gap = value_of(e.gap), one = select(gap < F(0), F(0), select(gap == gap, F(1), gap));
    return number_of<N>(Constant<F>{one, F(0)});
  }
};

}  // namespace cudaloss::losses
