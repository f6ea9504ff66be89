// The soft margin loss (logistic loss) of targets of 1 and -1: softplus(-w) of w = target * input.
// Cox, "The Regression Analysis of Binary Sequences", 1958.
#pragma once

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct soft_margin {
  using F = Scalar<T>;

  struct Terms {
    F x, t, log, log_rest;  // log1p(exp(-|w|)); like the slope, sigmoid(-w), divided by `small`
    WithRest<F> w, slope;
  };

  explicit soft_margin(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> w = product_of(t, x);
    const Logistic<F> of = logistic(absolute(w.value));
    const WithRest<F> behind = {select(absolute(w.value) > F(ExpParts<F>::limit), F(0), of.sigmoid), F(0)},
                      ahead = difference_of(ExpParts<F>::big, of.sigmoid);
    const bool is_behind = w.value < F(0);
    WithRest<F> slope = select(is_behind, ahead, behind);
    // What w lost changes sigmoid(-w) by -rest sigmoid(-w) sigmoid(w).
    const F sigmoid = select(is_behind, behind.value, ahead.value) * ExpParts<F>::small;
    slope.rest = fused(slope.value, -w.rest * sigmoid, slope.rest);
    return {x, t, of.log, of.log_rest, w, slope};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    constexpr F small = ExpParts<F>::small;
    const F tail = fused(small, e.log_rest, -e.w.rest * (e.slope.value * small));
    return select(e.w.value < F(0), -e.w.value, F(0)) + fused(small, e.log, tail);
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return chained_back(e.slope, -e.t, scale); }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const { return chained_back(e.slope, -e.x, scale); }
};

}  // namespace cudaloss::losses
