// Smooth L1, quadratic below beta and linear above; beta = 0 is L1.
// Girshick, "Fast R-CNN", 2015, equation 3, with PyTorch's beta.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct smooth_l1 {
  using F = Scalar<T>;
  Constant<F> beta, half_beta, half_inverse;
  Split<F> inverse;

  static constexpr bool kHasThird = true;

  template <class P>
  CUDALOSS_INLINE explicit smooth_l1(P b)
      : beta(constant_of(b, F())),
        half_beta(constant_of(P(0.5) * b, F())),
        half_inverse(inverse_of(b + b, F())),
        inverse(split_inverse(b, F())) {}

  CUDALOSS_INLINE T value(T d) const {
    const T distance = absolute(d);
    return select(distance < beta, finite_product(distance, half_inverse) * distance, distance - half_beta);
  }
  CUDALOSS_INLINE F grad(T d, Constant<F> scale) const {
    const T ratio = scaled_by(d, inverse.power);
    return select(absolute(d) >= beta, sign_times(d, scale),  // false for a NaN among the betas, which then shows
                  rounded_finite_product(ratio, times(inverse.fraction, scale)));
  }
};

}  // namespace cudaloss::losses
