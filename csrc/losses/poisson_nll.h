// The negative log likelihood of a Poisson distribution of the rate r, r - t log r, with r = exp(x), or the input
// itself plus eps in the log. Nelder, Wedderburn, "Generalized Linear Models", 1972.
#pragma once

#include "core/functor.h"
#include "core/stirling.h"

namespace cudaloss::losses {

template <class T>
struct poisson_nll {
  using F = Scalar<T>;

  struct Terms {
    F t;
    Lifted<F> rate;
    WithRest<F> sum, log;  // of the input and eps, of the rate
    Stirling<F> of_target;
  };

  Flag<F> log_input, full;
  WithRest<F> less;  // -eps

  explicit poisson_nll(const Numbers& n)
      : log_input((n.flags & 1) != 0), full((n.flags & 2) != 0), less(with_rest(-n.second, F())) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> given = {x, F(0)}, sum = difference_of(given, less);
    const bool lifted = is_lifted(x + select(t < F(0x1p-16), F(0), F(INFINITY)));  // a larger t hides it
    const Lifted<F> plain = {given, F(1)};
    const Lifted<F> rate = either(log_input, [&] { return exp_as<T>(x, lifted); }, [&] { return plain; });
    const WithRest<F> log = either(log_input, [&] { return given; }, [&] { return log_as<T>(sum); });
    return {t, rate, sum, log, stirling_as<T>(full, t)};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    // Of a target of 0 an infinite log is none, nor is any beside an infinite rate.
    const F rate = e.rate.number.value, taken = select(absolute(e.log.value) > largest(F()), F(0), e.log.value);
    const F log = select(rate > largest(F()), F(0), select(e.t == F(0), taken, e.log.value));
    const F rest = fused(e.rate.number.rest, e.rate.back, stirling(e.of_target));
    return fused(rate, e.rate.back, fused(-e.t, log, fused(-e.t, e.log.rest, rest)));
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    return either(
        log_input, [&] { return rounded_product(difference_of(e.rate, e.t), scale); },
        [&] { return rounded_product(one_less_quotient(e.t, e.sum), scale); });
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const F slope = rounded_product(difference_of(stirling_slope(e.of_target), e.log), scale);
    return select(e.t == e.t, slope, e.t);
  }
};

}  // namespace cudaloss::losses
