// Huber's loss, quadratic below delta and linear with slope delta above.
// Huber, "Robust Estimation of a Location Parameter", 1964.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct huber {
  Constant<Scalar<T>> delta, half_delta, half;

  explicit huber(double d)
      : delta(constant_of(d, Scalar<T>())),
        half_delta(constant_of(0.5 * d, Scalar<T>())),
        half(constant_of(0.5, Scalar<T>())) {}

  CUDALOSS_INLINE T value(T d) const {
    const T distance = absolute(d);
    return select(distance < delta, distance * half * distance, (distance - half_delta) * delta);
  }
  CUDALOSS_INLINE T grad(T d) const { return select(absolute(d) < delta, d, sign(d) * delta); }
};

}  // namespace cudaloss::losses
