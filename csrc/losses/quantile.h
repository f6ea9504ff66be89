// The quantile (pinball) loss: (1 - q) d above the target, -q d below it.
// Koenker, Bassett, "Regression Quantiles", 1978.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct quantile {
  using F = Scalar<T>;
  Constant<F> above, below;

  static constexpr bool kHasThird = true;

  template <class P>
  CUDALOSS_INLINE explicit quantile(P q) : above(complement_of(q, F())), below(constant_of(q, F())) {}

  CUDALOSS_INLINE T value(T d) const { return absolute(d) * slope(rounded(d)); }
  CUDALOSS_INLINE F grad(T d, Constant<F> scale) const { return sign_times(d, times(slope(rounded(d)), scale)); }

 private:
  CUDALOSS_INLINE Constant<F> slope(F d) const {
    return {select(d > F(0), above.hi, below.hi), select(d > F(0), above.lo, below.lo)};
  }
};

}  // namespace cudaloss::losses
