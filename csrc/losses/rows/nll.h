// Negative log-likelihood of log-probabilities and a class index: -w_y x_y, with class weights w.
#pragma once

#include "core/pass.h"
#include "core/platform.h"

namespace cudaloss::losses {

struct nll {
  explicit nll(const Pass&) {}

  // From the target's log-probability and its class's weight.
  CUDALOSS_INLINE double loss(double x, double weight) const { return -weight * x; }
  CUDALOSS_INLINE double grad_input(double weight) const { return -weight; }
};

}  // namespace cudaloss::losses
