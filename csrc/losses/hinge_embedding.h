// The hinge embedding loss: the input, which is a distance, where the target is 1, and how far it is below the margin
// where the target is -1. For any other target the sum of both, as PyTorch's.
// Hadsell et al., "Dimensionality Reduction by Learning an Invariant Mapping", 2006.
#pragma once

#include "core/functor.h"
#include "core/numbers.h"

namespace cudaloss::losses {

template <class T>
struct hinge_embedding {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true;

  struct Terms {
    F x, t;  // x is NaN if the target is
    N gap;   // margin - x
  };

  N margin;

  explicit hinge_embedding(const Numbers& n) : hinge_embedding(constant_of(n.third, F())) {}
  CUDALOSS_INLINE explicit hinge_embedding(Constant<F> m) : margin(number_of<N>(m)) {}
  CUDALOSS_INLINE hinge_embedding with(F own) const { return hinge_embedding(Constant<F>{own, F(0)}); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N gap = gap_between(margin, number_of<N>(Constant<F>{x, F(0)}));
    return {select(t == t, x, t), t, gap};
  }
  CUDALOSS_INLINE N value(const Terms& e) const {
    const N behind = select(value_of(e.gap) <= F(0), N{}, e.gap);
    const F minus = select(e.t == F(-1), F(0), -e.x);
    return gap_between(select(e.t == F(1), N{}, behind), number_of<N>(Constant<F>{minus, F(0)}));
  }
  // At the margin the second part has a slope, as PyTorch's clamp.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F behind = select(value_of(e.gap) < F(0), F(0), F(1));
    const F slope = select(e.t == F(-1), F(0), F(1)) - select(e.t == F(1), F(0), behind);
    return select(e.x == e.x, slope, e.x) * (scale.hi + scale.lo);  // the slope is 1, 0 or -1: one rounding
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    return select(e.x == e.x, F(0), e.x) * scale.hi;
  }
};

}  // namespace cudaloss::losses
