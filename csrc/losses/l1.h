// Absolute error, |d|. The gradient at 0 is 0, as in PyTorch.
#pragma once

#include "core/arith.h"

namespace cudaloss::losses {

template <class T>
struct l1 {
  explicit l1(double) {}

  CUDALOSS_INLINE T value(T d) const { return absolute(d); }
  CUDALOSS_INLINE Scalar<T> grad(T d, Constant<Scalar<T>> scale) const { return sign_times(d, scale); }
};

}  // namespace cudaloss::losses
