// Cross-entropy of logits and a class index: (1 - s) w_y (lse - x_y) + s / C sum_j w_j (lse - x_j) + z lse^2, of a
// label smoothing s, class weights w, and z_loss z (de Brebisson and Vincent, 2016; PaLM, 2022). Of probabilities q in
// the place of an index, with q' = (1 - s) q + s / C: sum_j w_j q'_j (lse - x_j) + z lse^2.
#pragma once

#include "core/pass.h"
#include "core/softmax.h"

namespace cudaloss::losses {

struct cross_entropy {
  double smoothing, z_loss;

  explicit cross_entropy(const Pass& pass) : smoothing(pass.numbers.second), z_loss(pass.rows.z_loss) {}

  // Sums over all classes, max being the largest of all: of share (max - x), and of the shares. An index's are the
  // class weights, and read where there is smoothing alone; a probability's are w q'.
  struct Shared {
    double below_max, shares;
  };
  // The loss, and the gradients for an incoming one of 1: of another class `of_exp` times its exp(x - max of the
  // others) less `of_share` times its share; of the target's `at_target`.
  struct Row {
    double loss, of_exp, of_share, at_target;
  };

  // Of an index whose class has this weight.
  CUDALOSS_INLINE Row finish(const OtherClasses<double>& others, double target, double weight, const Shared& shared,
                             double classes) const {
    const Softmax<double> softmax = softmax_of(others, target);
    const double hard = (1.0 - smoothing) * weight, each = smoothing / classes;
    const double log_all = rounded(softmax.log_all), top = select(target > others.max, target, others.max);
    const double lse = top + log_all, twice_lse = 2.0 * z_loss * lse;
    const double smooth = each * (shared.below_max + shared.shares * log_all);
    const double of_all = hard + each * shared.shares + twice_lse;
    return {hard * rounded(softmax.loss) + smooth + z_loss * lse * lse, of_all * rounded(softmax.of_others), each,
            each * (shared.shares - weight) + twice_lse - of_all * rounded(softmax.not_target)};
  }
};

}  // namespace cudaloss::losses
