// Huber's loss, quadratic below delta and linear with slope delta above.
// Huber, "Robust Estimation of a Location Parameter", 1964.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct huber {
  Constant<Scalar<T>> delta, half_delta, half;

  static constexpr bool kHasThird = true;

  template <class P>
  CUDALOSS_INLINE explicit huber(P d)
      : delta(constant_of(d, Scalar<T>())),
        half_delta(constant_of(P(0.5) * d, Scalar<T>())),
        half(constant_of(P(0.5), Scalar<T>())) {}

  CUDALOSS_INLINE T value(T d) const {
    const T distance = absolute(d);
    return select(distance < delta, finite_product(distance, half) * distance, (distance - half_delta) * delta);
  }
  CUDALOSS_INLINE Scalar<T> grad(T d, Constant<Scalar<T>> scale) const {
    return select(absolute(d) < delta, rounded_finite_product(d, scale), sign_times(d, times(delta, scale)));
  }
};

}  // namespace cudaloss::losses
