// Squared error, d^2.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct mse {
  explicit mse(double) {}

  CUDALOSS_INLINE T value(T d) const { return d * d; }
  CUDALOSS_INLINE Scalar<T> grad(T d, Constant<Scalar<T>> scale) const { return rounded_product(twice(d), scale); }
};

}  // namespace cudaloss::losses
