// The negative log likelihood of a Poisson distribution with rate r: r - t log r. r is exp(x), or the input itself,
// plus eps in the log. Nelder, Wedderburn, "Generalized Linear Models", 1972.
#pragma once

#include "core/functor.h"
#include "core/stirling.h"

namespace cudaloss::losses {

template <class T, class LogInput, class Full>
struct poisson_nll_of {
  using F = Scalar<T>;

  struct Terms {
    F x, t;
    Lifted<F> rate;
    WithRest<F> sum;  // of input and eps
  };

  LogInput log_input;
  Full full;
  WithRest<F> less;  // -eps

  explicit poisson_nll_of(const Numbers& n)
      : log_input((n.flags & 1) != 0), full((n.flags & 2) != 0), less(with_rest(-n.second, F())) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> given = {x, F(0)};
    const bool lifted = is_lifted(x + select(t < F(0x1p-16), F(0), F(INFINITY)));  // only matters beside a small t
    const Lifted<F> plain = {given, F(1)};
    const Lifted<F> rate = either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return exp_as<T>(x, lifted); },
        [&]() CUDALOSS_INLINE_LAMBDA { return plain; });
    return {x, t, rate, difference_of(given, less)};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> log = log_of_rate(e);
    const F rest = fused(e.rate.number.rest, e.rate.back, stirling(stirling_as<T>(full, e.t)));
    return fused(e.rate.number.value, e.rate.back, fused(-e.t, counted(e, log.value), fused(-e.t, log.rest, rest)));
  }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    const F log = either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return e.x; },
        [&]() CUDALOSS_INLINE_LAMBDA { return log_in_sum(e.sum.value, e.sum.rest); });
    const F rest = either(
        full, [&]() CUDALOSS_INLINE_LAMBDA { return stirling(stirling_as<T>(full, e.t)); },
        [&]() CUDALOSS_INLINE_LAMBDA { return F(0); });
    return fused(e.rate.number.value, e.rate.back, fused(-e.t, counted(e, log), rest));
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    return either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return rounded_product(difference_of(e.rate, e.t), scale); },
        [&]() CUDALOSS_INLINE_LAMBDA { return rounded_product(one_less_quotient(e.t, e.sum), scale); });
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const F slope = rounded_product(difference_of(stirling_slope(stirling_as<T>(full, e.t)), log_of_rate(e)), scale);
    return select(e.t == e.t, slope, e.t);
  }

 private:
  CUDALOSS_INLINE WithRest<F> log_of_rate(const Terms& e) const {
    const WithRest<F> x = {e.x, F(0)};
    return either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return x; },
        [&]() CUDALOSS_INLINE_LAMBDA { return log_as<T>(e.sum); });
  }
  // The log counts as 0 if it is infinite and the target is 0, or if the rate is infinite.
  CUDALOSS_INLINE static F counted(const Terms& e, F log) {
    const F taken = select(absolute(log) > largest(F()), F(0), log);
    return select(e.rate.number.value > largest(F()), F(0), select(e.t == F(0), taken, log));
  }
};

template <class T>
struct poisson_nll : poisson_nll_of<T, Flag<Scalar<T>>, Flag<Scalar<T>>> {
  template <class U>
  using Usual = poisson_nll_of<U, Known<true>, Known<false>>;

  using poisson_nll_of<T, Flag<Scalar<T>>, Flag<Scalar<T>>>::poisson_nll_of;
  static bool is_usual(const Numbers& n) { return n.flags == 1; }
};

}  // namespace cudaloss::losses
