// exp(x - max) of a row, and the results from its sum.
//
// The sum is over the other classes, without the target's. So a confident row's loss, log1p(sum / e), and its gradient,
// -sum / (sum + e), keep the digits that 1 - p has lost.
#pragma once

#include "core/log.h"
#include "core/numbers.h"

namespace cudaloss {

// exp is divided by ExpParts::small, so that a class far below the maximum keeps its digits.
template <class F>
constexpr double kLifted = 1.0 / static_cast<double>(ExpParts<F>::small);

// The maximum as a finite number, also if all classes are -inf or there are none: the difference of two infinities
// would be NaN.
CUDALOSS_INLINE double bounded(double max) { return select(max < -DBL_MAX, -DBL_MAX, max); }

// Below the floor exp(x - max) is 0; above it x - max does not overflow, as it would for 3e38 and -3e38. -inf is below
// the floor of every maximum.
template <class F>
CUDALOSS_INLINE F floor_below(F max) {
  const F floor = max - fused(F(0.5), absolute(max), F(2) * ExpParts<F>::limit);
  return select(floor > -largest(F()), floor, -largest(F()));
}

// exp(x - max) / small for x <= max, with this maximum's floor. The difference is rounded by up to half its last place,
// for 16 that is 2^-20: the rest keeps it.
template <class F>
CUDALOSS_INLINE F exp_below_max(F x, F max, F floor) {
  const F above = select(x < floor, floor, x), d = above - max, subtracted = d - above;
  const F rest = (above - (d - subtracted)) - (max + subtracted);
  const ExpApart<F> apart = exp_apart(F(ExpParts<F>::magic), -clamped_to(F(ExpParts<F>::limit), -d));
  const F near = F(1) + apart.r, lost = apart.r - (near - F(1));
  const F tail = fused(apart.r * apart.r, exp_tail(apart.r), lost);
  return select(x < floor, F(0), fused(apart.power, fused(rest, near + tail, tail), apart.power * near));
}

// cap tanh(x / cap) with its rest, and its slope. exp turns an error of the rest into as many last places as the cap
// has units.
template <class F>
struct Capped {
  F value, rest, slope;
};
template <class F>
CUDALOSS_INLINE Capped<F> capped(F x, F cap) {
  const F most = F(64) * cap, size = clamped_to(most, absolute(x)), quotient = size / cap;
  const F lost = fused(-quotient, cap, size) / cap;
  const ExpBelowOne<F> below = exp_below_one(twice(quotient));  // w = (1 - exp(-z)) / 2, tanh = w / (1 - w)
  const WithRest<F> w = {below.w.value, fused(below.exp, lost, below.w.rest)};
  const F one_less = F(1) - w.value;
  const WithRest<F> rest_of_one = {one_less, ((F(1) - one_less) - w.value) - w.rest};
  const WithRest<F> tanh = quotient_of(w, rest_of_one, F(1) / one_less);
  const WithRest<F> found = WithRest<F>{cap, F(0)} * tanh;
  const F slope = fused(F(-2) * lost, below.exp, below.exp) / one_less * (F(1) + tanh.value);
  return {signed_by(x, found.value), signed_by(x, found.rest), slope};
}

// Over the classes except the target's: their maximum, and the sum of exp(x - max), not lifted.
template <class F>
struct OtherClasses {
  F max;
  WithRest<F> sum;
};

// Sums over all classes, with max the largest logit: of share (max - x), and of the shares. The shares of an index are
// the class weights, read only with smoothing; the shares of a probability are w q'.
struct ClassShares {
  double below_max, shares;
};
// The same where each class has its own share, in the arithmetic of a row: the sum of share (target - x), with 0 in
// place of a target of -inf, the other classes' shares, and the target's.
template <class N>
struct SharesOfRow {
  N below, others;
  ScalarOf<N> own;

  CUDALOSS_INLINE N all() const { return gap_between(others, number_of<N>({-own, ScalarOf<N>(0)})); }
};
// A class's share, w ((1 - s) q + s / C) with the probability q, or w s / C with an index; `each` is s / C. N: its
// arithmetic.
struct ShareOfClass {
  Constant<float> of_target, each;

  template <class N>
  CUDALOSS_INLINE N of(float q) const {
    if (each.hi == 0.0f) return number_of<N>({q, 0.0f});
    return gap_between(number_of<N>(of_target) * number_of<N>({q, 0.0f}), -number_of<N>(each));
  }
  template <class N>
  CUDALOSS_INLINE N of_index() const {
    return number_of<N>(each);
  }
};
// The results of a row: its loss, and the gradients for an incoming gradient of 1. Another class has `of_exp` times
// exp(x - max of the others), minus `of_share` times its share; the target has `at_target`. A rounded `of_exp` would be
// an error in all gradients of a row.
struct ClassRow {
  double loss;
  WithRest<double> of_exp;
  double of_share, at_target;
  WithRest<double> log_all;  // log(sum of exp(x - the largest of all))
};

// A row seen from its target's class.
template <class F>
struct Softmax {
  WithRest<F> log_all;     // log(sum of exp(x - the largest of all)),
  WithRest<F> loss;        // and this minus the target's logit, without their cancellation
  WithRest<F> of_others;   // exp(x - max) of another class times this is its probability
  WithRest<F> not_target;  // 1 - the target's probability
};
template <class F>
CUDALOSS_INLINE Softmax<F> softmax_of(const OtherClasses<F>& others, F target) {
  const WithRest<F> above = difference_of(target, others.max), one = {F(1), F(0)}, zero = {F(0), F(0)};
  const bool is_above = above.value > F(0);
  const F below = -absolute(above.value);
  const Lifted<F> e = exp_of(below, is_lifted(below));
  const F sign = select(is_above, F(-1), F(1));
  const WithRest<F> exp = {e.number.value * e.back, fused(e.number.value, sign * above.rest, e.number.rest) * e.back};
  const WithRest<F> sum = select(is_above, others.sum * exp, others.sum), own = select(is_above, one, exp);
  const bool is_more = sum.value > own.value;
  const WithRest<F> all = sum_of(select(is_more, sum, own), select(is_more, own, sum));
  const WithRest<F> log_all = log_of(all), lower = select(is_above, zero, -above);
  const bool is_lower = lower.value > log_all.value;
  const F inverse = reciprocal_of(all.value);
  return {log_all, sum_of(select(is_lower, lower, log_all), select(is_lower, log_all, lower)),
          quotient_of(select(is_above, exp, one), all, inverse), quotient_of(sum, all, inverse)};
}

}  // namespace cudaloss
