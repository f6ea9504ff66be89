// log(x) for any x, in two parts: no branch and no call, so that a loop over it vectorises. For the coefficients see
// exp_log.h.
#pragma once

#include "core/exp_log.h"

namespace cudaloss {

// Constants that split x into 2^k (1 + f) with 1 + f between sqrt(1/2) and sqrt(2). The bits of x times 1 / sqrt(1/2)
// have the exponent of k, biased; as a mantissa below `magic` this exponent is a number.
template <class F>
struct LogParts;
template <>
struct LogParts<float> {
  static constexpr uint32_t root_half = 0x3f3504f3, one = 0x3f800000, mantissa = 0x007fffff, magic_bits = 0x4b000000;
  static constexpr float magic = 0x1p23f + 127, up = 0x1p24f, bits_up = 24;
};
template <>
struct LogParts<double> {
  static constexpr uint64_t root_half = 0x3fe6a09e667f3bcd, one = 0x3ff0000000000000, mantissa = 0x000fffffffffffff,
                            magic_bits = 0x4330000000000000;
  static constexpr double magic = 0x1p52 + 1023, up = 0x1p54, bits_up = 54;
};

template <class F>
struct Apart {
  F k, f, power;  // x = 2^k (1 + f); power = 2^-k, or 0 if that is subnormal
  F normal;       // x, times a power of two if x is subnormal
};

template <class F>
CUDALOSS_INLINE Apart<F> apart(F x) {
  using Parts = LogParts<F>;
  using Bits = typename ExpParts<F>::Bits;
  constexpr int kMantissa = ExpParts<F>::kMantissa;
  constexpr Bits last = (2 * Parts::one) >> kMantissa;
  const bool is_tiny = x < least(F());
  const F normal = select(is_tiny, x * Parts::up, x);
  const Bits bits = bit_cast<Bits>(normal) + (Parts::one - Parts::root_half);
  const Bits exponent = bits >> kMantissa;
  const F k = bit_cast<F>(exponent | Parts::magic_bits) - select(is_tiny, Parts::magic + Parts::bits_up, Parts::magic);
  const F f = bit_cast<F>((bits & Parts::mantissa) + Parts::root_half) - F(1);
  return {k, f, bit_cast<F>(select(exponent < last, 2 * Parts::one - (exponent << kMantissa), Bits(0))), normal};
}
// The same for a normal x below 2^100, without guards.
template <class F>
CUDALOSS_INLINE Apart<F> apart_in_range(F x) {
  using Parts = LogParts<F>;
  using Bits = typename ExpParts<F>::Bits;
  constexpr int kMantissa = ExpParts<F>::kMantissa;
  const Bits bits = bit_cast<Bits>(x) + (Parts::one - Parts::root_half);
  const F f = bit_cast<F>((bits & Parts::mantissa) + Parts::root_half) - F(1);
  return {bit_cast<F>(bits >> kMantissa | Parts::magic_bits) - Parts::magic, f,
          bit_cast<F>(2 * Parts::one - (bits & ~Parts::mantissa)), x};
}

// log(1 + f) = f - f^2 / 2 + s (f^2 / 2 + s^2 L(s^2)) with s = f / (2 + f). This is s^2 L: 2^-30 and 2^-58 of the log.
CUDALOSS_INLINE float log_tail_of_square(float z) {
  return z * polynomial(z, 0x1.55557ap-1f, 0x1.995ebap-2f, 0x1.31e2f2p-2f);
}
CUDALOSS_INLINE double log_tail_of_square(double z) {
  return z * polynomial(z, 0x1.5555555555592p-1, 0x1.999999997fdb8p-2, 0x1.24924941f122fp-2, 0x1.c71c52095e287p-3,
                        0x1.74663ee84b9e0p-3, 0x1.39a1bab91add7p-3, 0x1.2f056381656d1p-3);
}

// log(2^k (1 + f)) to 2^-28 and 2^-57 of it. Keeps the rounding error of f - f^2 / 2; k ln2 - value is exact.
template <class F>
CUDALOSS_INLINE WithRest<F> log_of(F k, F f) {
  using Parts = ExpParts<F>;
  const F s = fused(f, reciprocal_of(F(2) + f), F(0)), minus_half = F(-0.5) * f,
          half_square = -fused(minus_half, f, F(0));
  const F most = fused(minus_half, f, f), lost = fused(minus_half, f, f - most);
  const F tail = fused(s, half_square + log_tail_of_square(fused(s, s, F(0))), fused(k, Parts::ln2_rest, lost));
  const F value = fused(k, Parts::ln2, most);
  return {value, (fused(k, Parts::ln2, -value) + most) + tail};
}

// -Inf for 0, Inf for Inf, NaN below 0; the rest stays finite.
template <class F>
CUDALOSS_INLINE WithRest<F> with_ends(F x, WithRest<F> log) {
  const F infinite = F(INFINITY), end = select(x == F(0), -infinite, fused(x, infinite, infinite));
  using Bits = typename ExpParts<F>::Bits;
  const Bits last = bit_cast<Bits>(largest(F()));
  return {select(bit_cast<Bits>(x) - 1 < last, log.value, end),
          log.rest};  // bits 1 to `last`: not 0, negative, Inf or NaN
}

template <class F>
CUDALOSS_INLINE WithRest<F> log_of(F x) {
  const Apart<F> a = apart(x);
  return with_ends(x, log_of(a.k, a.f));
}
// For a sum whose rest is below its value's last place: near 1 the rest is most of the log.
template <class F>
CUDALOSS_INLINE WithRest<F> log_of(WithRest<F> x) {
  const Apart<F> a = apart(x.value);
  return with_ends(x.value, log_of(a.k, fused(x.rest, a.power, a.f)));
}

// -Inf, Inf or NaN if the log of `a` is that, otherwise any finite number: on a GPU the hardware's log.
CUDALOSS_INLINE float end_of(const Apart<float>& a) {
#if defined(__CUDA_ARCH__)
  float end;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(end) : "f"(a.normal));
  return end;
#else
  return with_ends(a.normal, WithRest<float>{0.0f, 0.0f}).value;
#endif
}
CUDALOSS_INLINE float ended(float end, float log) { return select(absolute(end) <= largest(end), log, end); }

// log(x + rest) for a sum of many, to about its last place.
CUDALOSS_INLINE float log_in_sum(float x, float rest = 0.0f) {
  const Apart<float> a = apart(x);
  const float f = fused(rest, a.power, a.f), s = f * reciprocal_of(2.0f + f), half_square = 0.5f * f * f;
  const float tail = fused(s, half_square + log_tail_of_square(s * s), a.k * ExpParts<float>::ln2_rest);
  return ended(end_of(a), fused(a.k, ExpParts<float>::ln2, f - (half_square - tail)));
}
// log(a / b) in the same way, with one series: log(m / n) of the two fractions is 2 atanh(s) with s = (m - n) / (m +
// n), at most 1/3; 2^-27 of it.
CUDALOSS_INLINE float log_quotient_in_sum(float a, float b) {
  const Apart<float> x = apart(a), y = apart(b);
  const float s = (x.f - y.f) * reciprocal_of((2.0f + x.f) + y.f), z = s * s, k = x.k - y.k;
  const float tail = polynomial(z, 0x1.5555p-1f, 0x1.99d27cp-2f, 0x1.1eb612p-2f, 0x1.1ef870p-2f);
  const float log = fused(k, ExpParts<float>::ln2, fused(2.0f, s, fused(s * z, tail, k * ExpParts<float>::ln2_rest)));
  return ended(end_of(x) - end_of(y), log);
}

// For results with 11 bits; f is x - 1, with the rounding error of x.
CUDALOSS_INLINE float fast_log(float x, float f) {
#if defined(__CUDA_ARCH__)
  float log;
  asm("lg2.approx.f32 %0, %1;" : "=f"(log) : "f"(x));
  // Near 1 lg2 has no digits left; 2^-21 of the log.
  const float near = f * polynomial(f, 1.0f, -0x1.fffc9cp-2f, 0x1.55507ap-2f, -0x1.035ff0p-2f, 0x1.a05c92p-3f);
  return select(fabsf(f) < 0.125f, near, log * 0x1.62e430p-1f);
#else
  return rounded(log_of(WithRest<float>{x, f - (x - 1.0f)}));
#endif
}

// log(x) with the precision of T's results.
template <class T, class F>
CUDALOSS_INLINE WithRest<F> log_as(F x) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return {fast_log(x, x - 1.0f), 0.0f};
  } else {
    return log_of(x);
  }
}
template <class T, class F>
CUDALOSS_INLINE WithRest<F> log_as(WithRest<F> x) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return {fast_log(x.value, (x.value - 1.0f) + x.rest), 0.0f};
  } else {
    return log_of(x);
  }
}

// q^gamma for q in [0, 1]; from its logarithm if q leaves the range.
template <class T, class F>
CUDALOSS_INLINE Lifted<F> power_as(WithRest<F> q, bool by_log, WithRest<F> log_of_q, WithRest<F> gamma) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    const F log = select(by_log, log_of_q.value + log_of_q.rest, fast_log(q.value, q.value - F(1)));
    return {{fast_exp(gamma.value * select(log < -largest(F()), -largest(F()), log)), F(0)}, F(1)};
  } else {
    const WithRest<F> log = select(by_log, log_of_q, log_of(q));
    const WithRest<F> least = {-largest(F()), F(0)};  // for q = 0: 0 to the power of 0 is 1
    return power_of(select(log.value < least.value, least, log), gamma);
  }
}

CUDALOSS_INLINE WithRest<float> minus_log_2_pi(float) { return {-0x1.d67f1cp+0f, -0x1.0c97d6p-25f}; }
CUDALOSS_INLINE WithRest<double> minus_log_2_pi(double) { return {-0x1.d67f1c864beb5p+0, 0x1.65b5a1b7ff5dfp-54}; }

}  // namespace cudaloss
