// Smooth L1, quadratic below beta and linear above; beta = 0 is L1.
// Girshick, "Fast R-CNN", 2015, equation 3, with PyTorch's beta.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct smooth_l1 {
  Constant<Scalar<T>> beta, half_beta, inverse, half_inverse;

  explicit smooth_l1(double b)
      : beta(constant_of(b, Scalar<T>())),
        half_beta(constant_of(0.5 * b, Scalar<T>())),
        inverse(ratio(1.0, b, Scalar<T>())),
        half_inverse(ratio(0.5, b, Scalar<T>())) {}

  CUDALOSS_INLINE T value(T d) const {
    const T distance = absolute(d);
    return select(distance < beta, distance * half_inverse * distance, distance - half_beta);
  }
  CUDALOSS_INLINE T grad(T d) const { return select(absolute(d) < beta, d * inverse, sign(d)); }
};

}  // namespace cudaloss::losses
