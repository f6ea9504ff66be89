// exp(x - max) of a row, and what is made of its sum.
//
// The sum is that of the other classes, without the target's: a confident row's loss, log1p(sum / e), and its gradient,
// -sum / (sum + e), then keep their digits, which 1 - p has lost.
#pragma once

#include "core/log.h"

namespace cudaloss {

// exp is divided by ExpParts::small: of a class far below the maximum it then keeps its digits.
template <class F>
constexpr double kLifted = 1.0 / static_cast<double>(ExpParts<F>::small);

// A logit as a row reads it: -inf as a number beside which every other is larger by more than exp has range for. The
// difference of two infinities would be NaN.
template <class F>
constexpr F kLowest = F(-3e38);
template <>
constexpr double kLowest<double> = -1.7e308;
CUDALOSS_INLINE float bounded(float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(kLowest<float>));
  return result;
#else
  return select(x < kLowest<float>, kLowest<float>, x);
#endif
}
CUDALOSS_INLINE double bounded(double x) { return select(x < kLowest<double>, kLowest<double>, x); }

// exp(x - max) / small of a bounded x <= max. A difference is rounded by up to half its last place, which of 16 is
// 2^-20: the rest keeps that.
template <class F>
CUDALOSS_INLINE F exp_below_max(F x, F max) {
  const F d = x - max, subtracted = d - x;
  const F rest = (x - (d - subtracted)) - (max + subtracted);
  const ExpApart<F> apart = exp_apart(F(ExpParts<F>::magic), -clamped_to(F(ExpParts<F>::limit), -d));
  const F near = F(1) + apart.r, lost = apart.r - (near - F(1));
  const F tail = fused(apart.r * apart.r, exp_tail(apart.r), lost);
  return fused(apart.power, fused(rest, near + tail, tail), apart.power * near);
}

// Of the classes but the target's: their maximum, and the sum of exp(x - max), not lifted.
template <class F>
struct OtherClasses {
  F max;
  WithRest<F> sum;
};

// A row against the class at which its target is.
template <class F>
struct Softmax {
  WithRest<F> log_all;     // log(sum of exp(x - the largest of all)),
  WithRest<F> loss;        // and this less the target's logit, without their cancellation
  WithRest<F> of_others;   // what exp(x - max) of another class is multiplied by for its probability
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
