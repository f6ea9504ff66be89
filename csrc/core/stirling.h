// Stirling's approximation of log(t!), and other parts of the likelihood of counts.
#pragma once

#include "core/log.h"

namespace cudaloss {

// t if it is above 1, otherwise 0, and the log of t.
template <class F>
struct Stirling {
  F t;
  WithRest<F> log;
};

template <class T, class Flag, class F>
CUDALOSS_INLINE Stirling<F> stirling_as(Flag wanted, F t) {
  const F above = select(t > F(1), t, F(0));
  const WithRest<F> zero = {F(0), F(0)};
  return {wanted.choose(above, F(0)), either(
                                          wanted, [&]() CUDALOSS_INLINE_LAMBDA { return log_as<T>(t); },
                                          [&]() CUDALOSS_INLINE_LAMBDA { return zero; })};
}
// t log t - t + log(2 pi t) / 2 for t above 1.
template <class F>
CUDALOSS_INLINE F stirling(const Stirling<F>& of) {
  const F tail = fused(F(0.5), of.log.value + of.log.rest, F(-0.5) * minus_log_2_pi(F()).value) - of.t;
  return select(of.t > F(0), fused(of.t, of.log.value, fused(of.t, of.log.rest, tail)), F(0));
}
// Its derivative, log t + 1 / (2 t).
template <class F>
CUDALOSS_INLINE WithRest<F> stirling_slope(const Stirling<F>& of) {
  const WithRest<F> zero = {F(0), F(0)};
  return select(of.t > F(0), difference_of(of.log, WithRest<F>{F(-0.5) / of.t, F(0)}), zero);
}

// a - b. If a is lifted, b must be small.
template <class F>
CUDALOSS_INLINE Lifted<F> difference_of(Lifted<F> a, F b) {
  const F lifted = b * select(a.back < F(1), F(ExpParts<F>::big), select(a.back > F(1), F(0.5), F(1)));
  return {difference_of(a.number, WithRest<F>{lifted, F(0)}), a.back};
}

// 1 - a / b. The quotient is 0 for 0 / 0 and for an infinite b, but NaN for a NaN.
template <class F>
CUDALOSS_INLINE WithRest<F> one_less_quotient(F a, WithRest<F> b) {
  const WithRest<F> zero = {F(0), F(0)}, quotient = in_place(quotient_of(WithRest<F>{a, F(0)}, inverted(b)));
  const WithRest<F> one = {F(1), F(0)}, finite = select(b.value > largest(F()) && a == a, zero, quotient);
  return difference_of(one, select(b.value == F(0), select(a == F(0), zero, finite), finite));
}

}  // namespace cudaloss
