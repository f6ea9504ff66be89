// The negative log likelihood of a normal distribution: (log v + d^2 / v) / 2 with d = input - target and v = max(var,
// eps). Nix, Weigend, "Estimating the Mean and Variance of the Target Probability Distribution", 1994.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct gaussian_nll {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kMirrors = true;

  struct Terms {
    Lifted<F> slope;     // d / v
    WithRest<F> square;  // d^2 / v
  };

  WithRest<F> eps, less, log;  // less: subtracted from log v
  Inverted<F> var;

  explicit gaussian_nll(const Numbers& n)
      : gaussian_nll(with_rest(n.third, F()), with_rest(n.second, F()), minus_log_2_pi(F()), (n.flags & 1) != 0) {}
  CUDALOSS_INLINE gaussian_nll(WithRest<F> v, WithRest<F> e, WithRest<F> l, bool full)
      : eps(e), less(select(full, l, WithRest<F>{F(0), F(0)})) {
    const WithRest<F> taken = select(v.value < e.value, e, v);
    log = log_as<T>(taken);
    const bool is_infinite = taken.value > largest(F());  // quotients by it are then 0
    var = inverted(select(is_infinite, WithRest<F>{largest(F()), F(0)}, taken));
    var.inverse = select(v.value < F(0), F(NAN), select(is_infinite, F(0), var.inverse));  // NaN: so are all results
  }
  CUDALOSS_INLINE gaussian_nll with(F own) const { return {WithRest<F>{own, F(0)}, eps, less, true}; }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    if constexpr (std::is_same_v<T, FastFloat>) {
      const F slope = (x - t) * (var.inverse * var.power);
      return {{{slope, F(0)}, F(1)}, {fused(slope, x - t, F(0)), F(0)}};
    }
    const WithRest<F> d = difference_of(x, t);
    const Lifted<F> slope = quotient_of(d, var);
    return {slope, in_place(Lifted<F>{slope.number * d, slope.back})};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> sum = difference_of(log, less);
    const F all = (e.square.value + sum.value) + (e.square.rest + sum.rest);
    return F(0.5) * select(e.square.value <= largest(F()), all, e.square.value);
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const { return rounded_product(e.slope, scale); }
  CUDALOSS_INLINE F grad_third(const Terms& e, Constant<F> scale) const {
    return rounded_product(quotient_of(difference_of(WithRest<F>{F(1), F(0)}, e.square), var), scale) * F(0.5);
  }
};

}  // namespace cudaloss::losses
