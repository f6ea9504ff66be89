// Two distributions of a row, q of its input's logits and p of its target's, each softmax(x / T).
//
// What a loss takes of a class is the larger one of p and q, and d = log q - log p. Neither needs the sums of exp to
// their last place: as p and q each sum to 1, the sums of p and of q - p tell afterwards what all p, and all d, have
// too much. A row that is nearly certain keeps its digits so.
#pragma once

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
  using Parts = ExpParts<F>;
  constexpr F kBias = sizeof(F) == sizeof(double) ? F(0x1.8p52 + 1023) : F(0x1.8p23f + 127);
  const F taken = select(x > least, x, least), value = fused(taken, inverse.hi, F(0)), magic = kBias - power;
  const F rest = fused(taken, inverse.lo, fused(taken, inverse.hi, -value));
  const F shifted = fused(value, F(Parts::log2_e), magic), k = shifted - magic;
  const F r = fused(k, F(-Parts::ln2), value) + fused(k, F(-Parts::ln2_rest), rest);
  const F scale = bit_cast<F>(bit_cast<typename Parts::Bits>(shifted) << Parts::kMantissa);
  const F tail = fused(r * r, exp_tail(r), F(0)), growth = r + tail, e = fused(scale, growth, scale);
  const F lost = fused(scale, growth, scale - e) + scale * (tail - (growth - r));
  return select(x > least, WithRest<F>{e, lost}, WithRest<F>{F(0), F(0)});
}
// The same to 2^-21, of log2(e) / T.
CUDALOSS_INLINE float coarse_exp(float x, float power, Constant<float> scale) {
  const float bounded = clamped_to(largest(x), -x);  // of -inf a product with the rest could be NaN
  return fast_exp2(fused(-bounded, scale.lo, fused(-bounded, scale.hi, -power)));
}

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
