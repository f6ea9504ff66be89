// The divergence of q = softmax(x / T) from p = softmax(t / T): T^2 sum of p (log p - log q). With d = log q - log p it
// is a sum of p (exp(d) - 1 - d), because p and q each sum to 1: no term is negative, and none cancels.
#pragma once

#include "core/distribution_pairs.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct kl_div_with_logits {
  double temperature;

  CUDALOSS_INLINE explicit kl_div_with_logits(const Numbers& numbers) : temperature(numbers.third) {}

  // The term of a class in the sum; and q - p, which is the gradient without its factors T and the incoming gradient.
  template <class F>
  struct Term {
    F divergence, excess;
  };
  // For a small d, differences of q and p would cancel.
  template <class T, class F = Scalar<T>>
  CUDALOSS_INLINE static Term<F> term(F q, F p, F d) {
    const F tail = d * d * exp_tail(d), difference = q - p;
    const bool is_small = absolute(d) < F(0.34);
    return {select(is_small, p * tail, select(p == F(0), q, fused(-p, d, difference))),
            select(is_small, p * (d + tail), difference)};
  }
  // The same of pairs: exp(d) - 1 = 2^k (exp(r) - 1) + (2^k - 1), and with k = 0 where exp(d) - 1 - d would cancel.
  struct PairedTerm {
    WithRest<float> divergence, p;
    float excess;
  };
  template <bool kIsFar>
  CUDALOSS_INLINE static PairedTerm paired_term(const PairedClass& of) {
    using Parts = ExpParts<float>;
    constexpr float kOne = kIsFar ? PairedLogits::kUnlift : 1.0f,
                    magic = Parts::magic_half + (kIsFar ? 1 - PairedLogits::kLift : 1);
    const WithRest<float> p = of.p, d = of.d;
    if (kIsFar && !of.has_p) {
      const float q = rounded(p) * kOne;
      return {{q, 0.0f}, {0.0f, 0.0f}, q};
    }
    const bool is_low = kIsFar && !(d.value >= PairedLogits::kLowest);
    const float taken = is_low ? PairedLogits::kLowest : d.value;
    const bool is_small = absolute(taken) < 0.6f;
    const float shifted = is_small ? magic : fused(taken, Parts::log2_e, magic), k = shifted - magic;
    const float power = bit_cast<float>(bit_cast<uint32_t>(shifted) << Parts::kMantissa);
    const float r = fused(k, -Parts::ln2, taken), rest = fused(k, -Parts::ln2_rest, is_low ? 0.0f : d.rest);
    // exp(r) - 1 - r and its rest; exp(r) - 1, with the rests; and the same for d.
    const float half = 0.5f * r, square = half * r, tail = growth_tail(r), small = fused(square, tail, square);
    const float small_rest = fused(square, tail, fused(half, r, -small));
    const float growth = r + small, growth_rest = ((r - growth) + small) + fused(rest, 1.0f + growth, small_rest);
    const float grown = fused(power, growth, power - kOne);
    const float grown_rest = fused(power, growth_rest, fused(power, growth, (power - kOne) - grown));
    const float excess = fused(p.value, grown, fused(p.value, grown_rest, p.rest * grown));
    const float minus_d = d.value * -kOne, more = fmaxf(grown, minus_d),
                less = fminf(grown, minus_d);  // |more| > |less|
    const float above = more + less, above_rest = ((more - above) + less) + fused(d.rest, -kOne, grown_rest);
    const float e = is_small ? small * kOne : above,
                e_rest = is_small ? fused(growth, rest, small_rest) * kOne : above_rest;
    const float divergence = fused(p.value, e, 0.0f);
    const float lost = fused(p.value, e, -divergence) + fused(p.value, e_rest, p.rest * e);
    return {{divergence, lost}, scaled(p, kOne), excess};
  }
  CUDALOSS_INLINE double loss(double divergence) const { return temperature * temperature * divergence; }

  // Corrects a row whose q, p and d are slightly off, because the sums of exp were coarse and q and p do not sum to 1.
  // From the sums of its terms, of q - p and of p: the divergence, the factors for q and p, and what to subtract from
  // d.
  struct Corrected {
    double divergence, of_q, of_p, lowered;
  };
  CUDALOSS_INLINE static Corrected corrected(double divergence, double excess, double p) {
    const double more = excess / p, square = more * more * fused(more, fused(more, 0.25, -1.0 / 3), 0.5);
    const double found = divergence / p - square;                      // square: more - log(1 + more)
    const double kept = select(found < 0x1p-16 * square, 0.0, found);  // below this, only the rounding of the terms
    return {kept, 1.0 / (p + excess), 1.0 / p, more - square};
  }

  struct PairedCorrected {
    WithRest<float> divergence, of_q, of_p;
    float more, lowered;
  };
  CUDALOSS_INLINE static PairedCorrected corrected(WithRest<float> divergence, WithRest<float> excess,
                                                   WithRest<float> p) {
    const WithRest<float> one = {1.0f, 0.0f}, q = normalized(sum_of(p, excess));
    const float of_p = reciprocal_of(p.value), more = rounded(quotient_of(excess, p, of_p));
    const float square = more * more * fused(more, fused(more, 0.25f, -1.0f / 3), 0.5f);
    const WithRest<float> raw = quotient_of(divergence, p, of_p);
    WithRest<float> found = normalized(difference_of(raw, WithRest<float>{square, 0.0f}));
    if (found.value < 0x1p-16f * square) found = {0.0f, 0.0f};
    if (!(divergence.value <= largest(0.0f))) found = {divergence.value, 0.0f};  // its rest is NaN
    return {found, quotient_of(one, q, reciprocal_of(q.value)), quotient_of(one, p, of_p), more, more - square};
  }

  // Without the factors T and the incoming gradient. If p is 0, d may be NaN.
  template <class F>
  CUDALOSS_INLINE static F grad_target(F p, F d, F divergence) {
    return select(p == F(0), F(0), p * (-d - divergence));
  }
  // With the factors. `above` is the divergence less what is to be subtracted from d.
  template <bool kIsFar>
  CUDALOSS_INLINE static float paired_grad_target(const PairedClass& of, WithRest<float> above,
                                                  WithRest<float> factor) {
    const WithRest<float> d = difference_in<WithRest<float>>(-of.d.value, above.value);
    WithRest<float> slope = factor * WithRest<float>{d.value, d.rest - (of.d.rest + above.rest)};
    const float unlift = kIsFar ? PairedLogits::kUnlift : 1.0f, before = absolute(slope.value) > 1.0f ? unlift : 1.0f;
    if (kIsFar) slope = scaled(slope, before);  // a large one could overflow beside a lifted p
    const float plain = of.p.value * slope.value;
    const float exact = fused(of.p.value, slope.value, fused(of.p.value, slope.rest, of.p.rest * slope.value));
    const float gradient = select(absolute(plain) <= largest(0.0f), exact, plain);
    return kIsFar ? select(of.has_p, gradient * (unlift / before), 0.0f) : gradient;
  }
};

}  // namespace cudaloss::losses
