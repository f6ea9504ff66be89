// The soft margin loss (logistic loss) for targets of 1 and -1: softplus(-w) with w = target * input.
// Cox, "The Regression Analysis of Binary Sequences", 1958.
#pragma once

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct soft_margin {
  using F = Scalar<T>;
  using N = Number<T>;

  // w; and sigmoid(-w) and the parts of log1p(exp(-|w|)), both divided by `small`.
  struct Terms {
    F x, t, w, slope;
    WithRest<F> behind;  // max(-w, 0)
    Logistic<F> of;
  };

  explicit soft_margin(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N product = product_in<N>(t, x);
    const F w = value_of(product), z = absolute(w), behind = -clamped_to(F(0), w);
    if constexpr (kHasRest<N>) {
      const F rest = select(z > F(ExpParts<F>::limit), F(0), signed_by(w, product.rest));
      const Logistic<F> of = logistic(z, rest);
      const F slope = select(w < F(0), F(ExpParts<F>::big) - of.sigmoid, of.sigmoid);
      return {x, t, w, slope, {behind, select(w < F(0), rest, F(0))}, of};
    } else {
      const PlainLogistic<F> of = fast_logistic<23>(z);  // a large target multiplies it
      return {x, t, w, select(w < F(0), F(1) - of.sigmoid, of.sigmoid), {behind, F(0)}, {of.sigmoid, of.log}};
    }
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    constexpr F small = ExpParts<F>::small;
    // Without the rest of `behind` the largest error was 2.02 ulp.
    if constexpr (kHasRest<N>) {
      return e.behind.value + fused(small, e.of.log, fused(small, e.of.log_rest, e.behind.rest));
    }
    return e.behind.value + e.of.log;
  }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    constexpr F small = ExpParts<F>::small;
    return e.behind.value + log1p_in_sum(e.of.log * small, e.of.sigmoid * small);
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return gradient(e, -e.t, scale); }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const { return gradient(e, -e.x, scale); }

 private:
  CUDALOSS_INLINE static F gradient(const Terms& e, F other, Constant<F> scale) {
    if constexpr (kHasRest<N>) {
      const F taken = select(e.w > F(ExpParts<F>::limit), F(0), other);
      if constexpr (sizeof(F) == sizeof(float)) return chained_back(e.slope, taken, scale);
      // Without the rest the largest error was 2.03 ulp in fp64. In fp32, where the extra instructions would cost time,
      // it is 1.86.
      const F big = ExpParts<F>::big;
      const F rest = select(e.w < F(0), (big - e.slope) - e.of.sigmoid - e.of.sigmoid_rest, e.of.sigmoid_rest);
      return chained_back(WithRest<F>{e.slope, rest}, WithRest<F>{taken, F(0)}, scale, F(ExpParts<F>::small));
    } else {
      return chained(e.slope, other, scale);
    }
  }
};

}  // namespace cudaloss::losses
