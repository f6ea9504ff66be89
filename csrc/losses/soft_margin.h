// The soft margin loss (logistic loss) of targets of 1 and -1: softplus(-w) of w = target * input.
// Cox, "The Regression Analysis of Binary Sequences", 1958.
#pragma once

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct soft_margin {
  using F = Scalar<T>;
  using N = Number<T>;

  // softplus(-w), and like it sigmoid(-w) divided by `small`.
  struct Terms {
    F x, t, value, slope;
  };

  explicit soft_margin(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N w = product_in<N>(t, x), distance = absolute(w);
    const F behind = select(value_of(w) < F(0), value_of(distance), F(0));
    if constexpr (kHasRest<N>) {
      using Parts = ExpParts<F>;
      const Logistic<F> of = logistic(distance.value, distance.rest);
      const F sigmoid = select(distance.value > F(Parts::limit), F(0), of.sigmoid);
      const F value = behind + fused(F(Parts::small), of.log, F(Parts::small) * of.log_rest);
      return {x, t, value, select(w.value < F(0), Parts::big - sigmoid, sigmoid)};
    } else {
      const FastLogistic of = fast_logistic<true>(distance);  // which a large target multiplies
      return {x, t, behind + of.log, select(w < F(0), F(1) - of.sigmoid, of.sigmoid)};
    }
  }
  CUDALOSS_INLINE F value(const Terms& e) const { return e.value; }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return gradient(e.slope, -e.t, scale); }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const { return gradient(e.slope, -e.x, scale); }

 private:
  CUDALOSS_INLINE static F gradient(F slope, F other, Constant<F> scale) {
    if constexpr (kHasRest<N>) {
      return chained_back(slope, other, scale);
    } else {
      return chained(slope, other, scale);
    }
  }
};

}  // namespace cudaloss::losses
