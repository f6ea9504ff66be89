// Squared error, d^2.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct mse {
  explicit mse(double) {}

  CUDALOSS_INLINE T value(T d) const { return d * d; }
  CUDALOSS_INLINE T grad(T d) const { return twice(d); }
};

}  // namespace cudaloss::losses
