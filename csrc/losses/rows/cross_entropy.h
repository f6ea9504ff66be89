// Cross-entropy of logits and a class index: (1 - s) w_y (lse - x_y) + s / C sum_j w_j (lse - x_j) + z lse^2, of a
// label smoothing s, class weights w, and z_loss z (de Brebisson and Vincent, 2016; PaLM, 2022).
#pragma once

#include "core/softmax.h"

namespace cudaloss::losses {

struct cross_entropy {
  double smoothing, z_loss;

  // What smoothing asks of a row, over all classes: the sum of w (max - x), max the largest of all, and of w.
  struct Smoothed {
    double below_max, weights;
  };
  // The loss, and the gradients for an incoming one of 1: of another class `of_exp` times its exp(x - max) less
  // `of_weight` times its weight; of the target's `at_target`.
  struct Row {
    double loss, of_exp, of_weight, at_target;
  };

  CUDALOSS_INLINE Row finish(const OtherClasses<double>& others, double target, double weight, const Smoothed& smoothed,
                             double classes) const {
    const Softmax<double> softmax = softmax_of(others, target);
    const double hard = (1.0 - smoothing) * weight, each = smoothing / classes;
    const double log_all = rounded(softmax.log_all), top = select(target > others.max, target, others.max);
    const double lse = top + log_all, twice_lse = 2.0 * z_loss * lse;
    const double smooth = each * (smoothed.below_max + smoothed.weights * log_all);
    const double of_all = hard + each * smoothed.weights + twice_lse;
    return {hard * rounded(softmax.loss) + smooth + z_loss * lse * lse, of_all * rounded(softmax.of_others), each,
            each * (smoothed.weights - weight) + twice_lse - of_all * rounded(softmax.not_target)};
  }
};

}  // namespace cudaloss::losses
