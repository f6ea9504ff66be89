// Two distributions of a row in floats with their rests, for fp32 on GPUs: some compute fp64 at a 64th of fp32's rate.
#pragma once

#include "core/distributions.h"

namespace cudaloss {

template <class N>
struct Two {
  N input, target;
};

// 2 (exp(r) - 1 - r) / r^2 - 1 for |r| <= 0.6: 2^-27 of what 1 + it is multiplied by.
CUDALOSS_INLINE float growth_tail(float r) {
  return r * polynomial(r, 0x1.555558p-2f, 0x1.555558p-4f, 0x1.110e34p-6f, 0x1.6c1168p-9f, 0x1.a3e95ep-12f,
                        0x1.a5315cp-15f);
}

// p, which is lifted if the class is far, and d = log q - log p. A class without p has q in its place, and d = 0.
struct PairedClass {
  WithRest<float> p, d;
  bool has_p;
};

// What the classes of a row have in common. p is exp((t - shift) / T) times a number that brings the sum of all p to
// between 0.7 and 2.9; the row's end divides by that sum. The number is chosen so that p (exp(d) - 1) has the
// significand of the gradient that it becomes: then its rounding, too, is half a unit in the gradient's last place, and
// not up to one.
struct PairedLogits {
  using Parts = ExpParts<float>;
  static constexpr float kLowest = -64.0f;  // for a lower d, exp(d) is nothing beside 1
  static constexpr int kLift = 34;          // p of far classes is multiplied by 2^34, and exp(d) by 2^-34
  static constexpr float kUnlift = 0x1p-34f;

  Constant<float> inverse;  // of the temperature
  WithRest<float> apart;    // what x - t exceeds T d by
  float shift, power;
  uint32_t fraction;
  bool scales;          // if not, the shift is 0 and the temperature 1
  float least, lowest;  // a class with a t or T d below it is far
  float least_far;      // below it p is 0

  // From the maxima, and from coarse sums of exp without the maximum's 1. The scale is the gradient's.
  CUDALOSS_INLINE static PairedLogits of(Constant<float> inverse, float temperature, const Two<float>& max,
                                         const Two<float>& others, float scale) {
    PairedLogits row;
    row.inverse = inverse;
    // Between larger logits the differences that matter are exact.
    const bool is_usual = absolute(max.target) <= 1024.0f * select(temperature < 1.0f, temperature, 1.0f);
    row.shift = select(is_usual, 0.0f, max.target);
    row.scales = temperature != 1.0f || !is_usual;
    const float log2_of_sum = fused((max.target - row.shift) * inverse.hi, Parts::log2_e, log2f(1.0f + others.target));
    row.power = rintf(log2_of_sum);
    const auto significand = [](float x) { return bit_cast<uint32_t>(x) & 0x7fffffu; };
    const float of_scale = bit_cast<float>(0x3f800000u + significand(scale));
    row.fraction = significand(fast_exp2(row.power - log2_of_sum) * of_scale);
    row.least = row.logit_of(-125.5f, temperature);
    row.least_far = row.logit_of(-125.5f - kLift, temperature);
    row.lowest = kLowest * temperature;
    row.apart = apart_of(max, log_of_sums(others.input, others.target) * temperature);
    return row;
  }
  CUDALOSS_INLINE float logit_of(float exponent, float temperature) const {
    return fused((power + exponent) * Parts::ln2, temperature, shift);
  }
  // The rest has so few digits that no difference from it is rounded. What this changes is common to all classes.
  CUDALOSS_INLINE static WithRest<float> apart_of(const Two<float>& max, float log) {
    const WithRest<float> of_max = difference_of(max.input, max.target), both = difference_of(of_max.value, -log);
    const WithRest<float> apart = normalized(WithRest<float>{both.value, both.rest + of_max.rest});
    const float share = absolute(apart.value) * 0x1.8p-24f, magic = select(share < 1.5f, share, 1.5f);
    return {apart.value, (apart.rest + magic) - magic};
  }

  // T d. If it is infinite, its rest is NaN.
  CUDALOSS_INLINE WithRest<float> distance(float x, float t) const {
    const WithRest<float> logits = difference_in<WithRest<float>>(x, t);
    const WithRest<float> d = difference_in<WithRest<float>>(logits.value, apart.value);
    return {d.value, d.rest + (logits.rest - apart.rest)};
  }
  template <bool kScales>
  CUDALOSS_INLINE WithRest<float> divided(WithRest<float> x) const {
    if constexpr (!kScales) {
      return x;
    } else {
      const float value = fused(x.value, inverse.hi, 0.0f);
      return {value, fused(x.value, inverse.hi, -value) + fused(x.value, inverse.lo, x.rest * inverse.hi)};
    }
  }
  template <bool kScales>
  CUDALOSS_INLINE WithRest<float> exponent(float t) const {
    return divided<kScales>(WithRest<float>{kScales ? t - shift : t, 0.0f});
  }
  // 2^-27 of p. The exponent has a rest only if kScales.
  template <bool kScales, bool kIsFar>
  CUDALOSS_INLINE WithRest<float> p_of(WithRest<float> x) const {
    const float magic = Parts::magic_half + (kIsFar ? kLift + 1.0f : 1.0f) - power;
    const float shifted = fused(x.value, Parts::log2_e, magic), k = shifted - magic;
    const float r = fused(k, -Parts::ln2, x.value), small = fused(k, -Parts::ln2_rest, kScales ? x.rest : 0.0f);
    const float square = r * r, tail = exp_tail(r), growth = fused(square, tail, r);
    const float scale = bit_cast<float>((bit_cast<uint32_t>(shifted) << Parts::kMantissa) + fraction);
    const float p = fused(scale, growth, scale), rest = fused(scale, growth, scale - p);
    return {p, fused(p, small, fused(scale, fused(square, tail, r - growth), rest))};
  }

  template <bool kScales>
  CUDALOSS_INLINE PairedClass near_class(float t, WithRest<float> distance) const {
    return {p_of<kScales, false>(exponent<kScales>(t)), divided<kScales>(normalized(distance)), true};
  }
  // With logits of any size, of which some are infinite.
  CUDALOSS_INLINE PairedClass far_class(float x, float t) const {
    const bool has_p = t >= least_far;
    WithRest<float> d = sound(divided<true>(sound(normalized(sound(distance(x, select(has_p, t, shift)))))));
    WithRest<float> at = select(has_p, exponent<true>(t), d);
    const float lowest_exponent = (power - 125.5f - kLift) * Parts::ln2;
    if (at.value < lowest_exponent) at = {lowest_exponent, 0.0f};
    return {p_of<true, true>(at), select(has_p, d, WithRest<float>{0.0f, 0.0f}), has_p};
  }
};

}  // namespace cudaloss
