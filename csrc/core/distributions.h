// Two distributions of a row, q of its input's logits and p of its target's, each softmax(x / T).
//
// What a loss takes of a class is the larger one of p and q, and d = log q - log p. Neither needs the sums of exp to
// their last place: as p and q each sum to 1, the sums of p and of q - p tell afterwards what all p, and all d, have
// too much. A row that is nearly certain keeps its digits so.
#pragma once

#include <cmath>

#include "core/exp_log.h"
#include "core/numbers.h"

namespace cudaloss {

template <class F>
CUDALOSS_INLINE Constant<F> inverse_of(double temperature, F) {
  const double inverse = 1.0 / temperature;
  const Constant<F> found = constant_of(inverse, F());
  return {found.hi, sizeof(F) < sizeof(double) ? found.lo : F(fma(-inverse, temperature, 1.0) / temperature)};
}

// What a row's exponentials exp(x / T) are divided by: 2^power, so that x / T - power log(2) is exact; where x / T is
// so large that it has no digits left beside its integers the logits are brought nearer by `shift` first.
template <class F>
struct RowScale {
  using Parts = ExpParts<F>;
  static constexpr F kUsual = F(0x1p20), kRound = sizeof(F) == sizeof(double) ? F(0x1.8p52) : F(0x1.8p23);
  static constexpr F kLowest = sizeof(F) == sizeof(double) ? F(1021) : F(125);  // exp beyond 2^-kLowest is 0

  F shift, power, least;  // the least logit, less shift, whose exp is not 0

  CUDALOSS_INLINE static RowScale of(F max, Constant<F> inverse, F temperature) {
    const F bounded = select(max < -largest(F()), -largest(F()), max), scaled = bounded * inverse.hi;
    const bool is_usual = absolute(scaled) <= kUsual;
    const F power = fused(select(is_usual, scaled, F(0)), F(Parts::log2_e), kRound) - kRound;
    return {select(is_usual, F(0), bounded), power, (power - kLowest) * F(Parts::ln2) * temperature};
  }
};

// exp(x / T) / 2^power, with its rest.
template <class F>
CUDALOSS_INLINE WithRest<F> scaled_exp(F x, F power, F least, Constant<F> inverse) {
  constexpr F kBias = sizeof(F) == sizeof(double) ? F(0x1.8p52 + 1023) : F(0x1.8p23f + 127);
  const F taken = select(x > least, x, least), value = fused(taken, inverse.hi, F(0));
  const ExpApart<F> apart = exp_apart(kBias - power, value);
  const F r = apart.r + fused(taken, inverse.lo, fused(taken, inverse.hi, -value)), scale = apart.power;
  const F tail = fused(r * r, exp_tail(r), F(0)), growth = r + tail, e = fused(scale, growth, scale);
  const F lost = fused(scale, growth, scale - e) + scale * (tail - (growth - r));
  return select(x > least, WithRest<F>{e, lost}, WithRest<F>{F(0), F(0)});
}
// About the same, of log2(e) / T, whose rounding all of a row's sums share.
CUDALOSS_INLINE float coarse_exp(float x, float power, float scale) { return fast_exp2(fused(x, scale, -power)); }

// d = log q - log p of (x - t) / T, the logarithms of both sums being `lower` apart; its rest is half a last place.
// kFast: for results of 11 bits, without one.
template <bool kFast, class F>
CUDALOSS_INLINE WithRest<F> log_quotient(F x, F t, Constant<F> inverse, Constant<F> lower) {
  const F difference = x - t, found = fused(difference, inverse.hi, -lower.hi);
  if constexpr (kFast) {
    return {found - lower.lo, F(0)};
  } else {
    const F subtracted = x - difference, lost = (subtracted - t) + (x - (difference + subtracted));
    const F rest = fused(difference, inverse.lo, fused(lost, inverse.hi, -lower.lo));
    const F value = found + rest;
    const bool is_finite = absolute(found) <= largest(F());
    return {select(is_finite, value, found), select(is_finite, (found - value) + rest, F(0))};
  }
}

// How a row's classes are seen: logits are less their shifts.
template <class T>
struct SeenClasses {
  using F = Scalar<T>;
  static constexpr bool kFast = std::is_same_v<T, FastFloat>;
  Constant<F> inverse;  // of the temperature
  F log2_e;             // over the temperature
  RowScale<F> input, target;
  Constant<F> of_input, of_target;  // what exp is multiplied by for q and for p
  Constant<F> lower;                // what d is lowered by

  CUDALOSS_INLINE WithRest<F> d(F x, F t) const { return log_quotient<kFast>(x, t, inverse, lower); }
  CUDALOSS_INLINE static F times(F x, Constant<F> by) { return kFast ? x * by.hi : fused(x, by.hi, x * by.lo); }
  CUDALOSS_INLINE WithRest<F> exp(F x, F power, F least) const {
    if constexpr (kFast) {
      return {coarse_exp(x, power, log2_e), F(0)};
    } else {
      return scaled_exp(x, power, least, inverse);
    }
  }
  // For sums whose last places do not matter.
  CUDALOSS_INLINE F any_exp(F x, const RowScale<F>& scale) const {
    if constexpr (sizeof(F) == sizeof(float)) {
      return coarse_exp(x, scale.power, log2_e);
    } else {
      return scaled_exp(x, scale.power, scale.least, inverse).value;
    }
  }
  CUDALOSS_INLINE F exp_target(F t) const { return rounded(exp(t, target.power, target.least)); }
  // The larger one of p and q.
  CUDALOSS_INLINE WithRest<F> larger(F x, F t, WithRest<F> d) const {
    const bool is_more = d.value > F(0);
    const WithRest<F> e =
        exp(is_more ? x : t, is_more ? input.power : target.power, is_more ? input.least : target.least);
    const WithRest<F> by = {is_more ? of_input.hi : of_target.hi, is_more ? of_input.lo : of_target.lo};
    if constexpr (kFast) return {e.value * by.value, F(0)};
    return e * by;
  }

  // From the sums of exp to p, and to q and d as they then are to it.
  CUDALOSS_INLINE void compare(F sum_of_input, F sum_of_target) {
    using Parts = ExpParts<F>;
    const F log = std::log(sum_of_input / sum_of_target), powers = input.power - target.power;
    WithRest<F> of_powers = product_of(powers, F(Parts::ln2));
    of_powers.rest = fused(powers, F(Parts::ln2_rest), of_powers.rest);
    const WithRest<F> lowered = difference_of(of_powers, WithRest<F>{-log, F(0)});
    const WithRest<F> apart = in_place(exp_of(-log, is_lifted(-log))), inverse_sum = {F(1) / sum_of_target, F(0)};
    lower = {lowered.value, lowered.rest};
    of_target = {inverse_sum.value, F(0)};
    const WithRest<F> of_q = apart * inverse_sum;
    of_input = {of_q.value, of_q.rest};
  }
  // With the row's sums found, and the gradients' factor taken in.
  CUDALOSS_INLINE void correct(double lowered, double of_p) {
    const Constant<F> more = constant_of(lowered, F());
    const WithRest<F> sum = difference_of(lower.hi, -more.hi);
    lower = {sum.value, sum.rest + (lower.lo + more.lo)};
    const double own = as_double(WithRest<F>{of_input.hi, of_input.lo});
    of_target = constant_of(static_cast<double>(of_target.hi) * of_p, F());
    of_input = constant_of(own * (of_p * (1.0 - lowered + 0.5 * lowered * lowered)), F());
  }
};

// exp_tail to 2^-26 of itself, where it is 2^-22: what is left of d and 1 - exp(-d) has all of its error.
CUDALOSS_INLINE float exact_tail(float r) {
  return polynomial(r, 0x1.000000p-1f, 0x1.555554p-3f, 0x1.555502p-5f, 0x1.1111a6p-7f, 0x1.6d2ec0p-10f,
                    0x1.9fdcb0p-13f);
}
CUDALOSS_INLINE double exact_tail(double r) { return exp_tail(r); }

// 1 - exp(-d), as share + lost, of d >= 0; and d's value less 1 - exp of minus that. Neither cancels; beyond `taken`
// there is no more of either.
template <class F>
struct Fall {
  F share, lost, rest, taken;
};
template <bool kFast, class F>
CUDALOSS_INLINE Fall<F> fall_of(WithRest<F> distance) {
  using Parts = ExpParts<F>;
  const F d = distance.value, taken = clamped_to(F(Parts::limit_half), d);
  if constexpr (kFast) {  // near 0 2^-15 of each
    const float tail = d * d * polynomial(d, 0.5f, -0x1.5555p-3f, 0x1.5555p-5f, -0x1.1111p-7f);
    const bool is_near = d < 0.25f;
    const float share = select(is_near, d - tail, 1.0f - fast_exp(-taken));
    return {share, F(0), select(is_near, tail, taken - share), taken};
  }
  const ExpApart<F> apart = exp_apart(F(Parts::magic_half), -taken);
  const F tail = fused(apart.r * apart.r, exact_tail(apart.r), F(0)), growth = apart.r + tail;
  const F whole = F(0.5) - apart.power, w = fused(-apart.power, growth, whole), share = twice(w);
  const F lost = fused(-apart.power, tail - (growth - apart.r), fused(-apart.power, growth, whole - w));
  const F rest = select(apart.power == F(0.5), tail, (taken - share) - twice(lost));
  return {share, fused(distance.rest, F(1) - share, twice(lost)), rest, taken};
}

}  // namespace cudaloss
