// exp(-z), 1 / (1 + exp(-z)) and log1p(exp(-z)) for z >= 0. One reciprocal, no branch and no call, so that a loop over
// them vectorises. Few instructions, because on a GPU they limit such a loss, not memory.
//
// The coefficients are weighted minimax polynomials by Remez exchange in 60 digits, rounded. The comments give the
// error that each leaves in its result.
#pragma once

#include <type_traits>

#include "core/flag.h"
#include "core/numbers.h"

namespace cudaloss {

// c0 + c1 x + c2 x^2 + ...
template <class F>
CUDALOSS_INLINE F polynomial(F, F c0) {
  return c0;
}
template <class F, class... Rest>
CUDALOSS_INLINE F polynomial(F x, F c0, Rest... rest) {
  return fused(polynomial(x, rest...), x, c0);
}

// (exp(r) - 1 - r) / r^2 for |r| <= log(2) / 2: 2^-28 and 2^-58 of exp(r).
CUDALOSS_INLINE float exp_tail(float r) {
  return polynomial(r, 0x1.000000p-1f, 0x1.55548ep-3f, 0x1.55545ep-5f, 0x1.123b90p-7f, 0x1.6db488p-10f);
}
CUDALOSS_INLINE double exp_tail(double r) {
  return polynomial(r, 0x1.000000000000cp-1, 0x1.5555555555561p-3, 0x1.5555555550002p-5, 0x1.111111110d5a5p-7,
                    0x1.6c16c185b2afcp-10, 0x1.a01a01bb1988bp-13, 0x1.a0199671de7cap-16, 0x1.71dddf495146ap-19,
                    0x1.28b06ad746366p-22, 0x1.af865cfcf62bap-26);
}
template <class F>
CUDALOSS_INLINE F exp_minus_1(F r) {
  return fused(r * r, exp_tail(r), r);
}

// Constants that split exp into 2^k exp(r). Adding `magic` to a number rounds it to an integer and leaves k in the
// lowest bits, biased as the exponent of 2^k / small. So exp keeps its digits if it is subnormal itself, and a product
// with it is rounded once, at its end.
template <class F>
struct ExpParts;
template <>
struct ExpParts<float> {
  using Bits = uint32_t;
  static constexpr int kMantissa = 23;
  static constexpr float limit = 115.0f;  // exp(-115) is 0, even times 2^16
  static constexpr float log2_e = 0x1.715476p+0f;
  static constexpr float ln2 = 0x1.62e430p-1f, ln2_rest = -0x1.05c610p-29f;  // log(2), and its rounding error in float
  static constexpr float magic = 0x1.8p23f + (127 + 40), small = 0x1p-40f, big = 0x1p40f;
  static constexpr float magic_half = 0x1.8p23f + (127 - 1), limit_half = 80.0f, top = 89.0f, lifted_below = -30.0f;
};
template <>
struct ExpParts<double> {
  using Bits = uint64_t;
  static constexpr int kMantissa = 52;
  static constexpr double limit = 777.0;  // exp(-777) is 0, even times 2^46
  static constexpr double log2_e = 0x1.71547652b82fep+0;
  static constexpr double ln2 = 0x1.62e42fefa39efp-1, ln2_rest = 0x1.abc9e3b39803fp-56;
  static constexpr double magic = 0x1.8p52 + (1023 + 100), small = 0x1p-100, big = 0x1p100;
  static constexpr double magic_half = 0x1.8p52 + (1023 - 1), limit_half = 700.0, top = 710.0, lifted_below = -70.0;
};

// The smaller one; NaN if x is NaN.
CUDALOSS_INLINE float clamped_to(float limit, float x) {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 800
  float result;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(x), "f"(limit));
  return result;
#else
  return select(x > limit, limit, x);
#endif
}
CUDALOSS_INLINE double clamped_to(double limit, double x) { return select(x > limit, limit, x); }

// exp(x) = power exp(r). `magic` sets the scale of the power; x must keep it in range.
template <class F>
struct ExpApart {
  F power, r;
};
template <class F>
CUDALOSS_INLINE ExpApart<F> exp_apart(F magic, F x) {
  using Parts = ExpParts<F>;
  const F shifted = fused(x, F(Parts::log2_e), magic), k = shifted - magic;
  const F r = fused(k, -Parts::ln2, x);  // exact: both are multiples of ln2's last place or of half of it
  const F power = bit_cast<F>(bit_cast<typename Parts::Bits>(shifted) << Parts::kMantissa);
  return {power, fused(k, -Parts::ln2_rest, r)};
}
// What is rounded away of exp(-z): up to 1/2 ulp of it, which a power of it would multiply. Minus this is a `rest` of
// exp_of_minus. In r it is up to 1/4 ulp; in exp(r) as much, in fp64 only: without it a varifocal loss was up to 1.95
// ulp off below x = -2, with it 1.08 (in fp32 1.85 without).
template <class F>
CUDALOSS_INLINE F lost_of_minus(F z) {
  using Parts = ExpParts<F>;
  const F x = -clamped_to(F(Parts::limit), z), k = fused(x, F(Parts::log2_e), F(Parts::magic)) - F(Parts::magic);
  const F whole = fused(k, -Parts::ln2, x), r = fused(k, -Parts::ln2_rest, whole);
  const F of_r = fused(k, -Parts::ln2_rest, whole - r);
  if constexpr (sizeof(F) == sizeof(float)) return of_r;
  const F square = r * r, tail = exp_tail(r), growth = fused(square, tail, r);
  const F of_growth = fused(square, tail, r - growth) + fused(r, r, -square) * tail;
  return fused(of_growth, F(1) - growth, of_r);  // 1 / exp(r) is about 1 - growth
}
template <class F>
CUDALOSS_INLINE WithRest<F> exp_by(F magic, F x) {
  const ExpApart<F> apart = exp_apart(magic, x);
  const F growth = exp_minus_1(apart.r), e = fused(apart.power, growth, apart.power);
  return {e, fused(apart.power, growth, apart.power - e)};
}

// For z >= 0: exp(-z), and w = (1 - exp(-z)) / 2 without cancellation and with its rest.
template <class F>
struct ExpBelowOne {
  F exp;
  WithRest<F> w;
};
template <class F>
CUDALOSS_INLINE ExpBelowOne<F> exp_below_one(F z) {
  const ExpApart<F> apart = exp_apart(F(ExpParts<F>::magic_half), -clamped_to(ExpParts<F>::limit_half, z));
  const F growth = exp_minus_1(apart.r), whole = F(0.5) - apart.power, w = fused(-apart.power, growth, whole);
  return {twice(fused(apart.power, growth, apart.power)), {w, fused(-apart.power, growth, whole - w)}};
}

// exp(-z - rest) / small for z >= 0 and a rest below z's last place, which must be 0 if z is above `limit`. The rest
// goes to the result's rest: beside z in the exponent it would be rounded away.
template <class F>
CUDALOSS_INLINE WithRest<F> exp_of_minus(F z, F rest = F(0)) {
  constexpr F limit = ExpParts<F>::limit;
  const WithRest<F> e = exp_by(F(ExpParts<F>::magic), -clamped_to(limit, z));
  return {e.value, fused(e.value, -rest, e.rest)};
}

// exp(x): 0 below -limit and Inf above `top`. If `lifted` (only for x below `lifted_below`), subnormal results keep
// their digits. Otherwise the result is halved, because 2^128 is not representable, and constant below -limit_half.
template <class F>
CUDALOSS_INLINE Lifted<F> exp_of(F x, bool lifted) {
  using Parts = ExpParts<F>;
  const F limit = select(lifted, F(Parts::limit), F(Parts::limit_half)), top = Parts::top;
  const F taken = -clamped_to(limit, -select(x > top, top, x));
  WithRest<F> e = exp_by(select(lifted, F(Parts::magic), F(Parts::magic_half)), taken);
  e.value = select(x > top, F(INFINITY), select(x < -F(Parts::limit), F(0), e.value));
  return {e, select(lifted, F(Parts::small), F(2))};
}
template <class F>
CUDALOSS_INLINE bool is_lifted(F x) {
  return x < F(ExpParts<F>::lifted_below);
}

// With L = log1p(e), q = e / (1 + e): sinh(L) = (e + q) / 2 and sinh(L / 2)^2 = e q / 4, so that L / sinh(L) is G(e q)
// = asinh(v) / (v sqrt(1 + v^2)) with v^2 = e q / 4. Because e q is at most 1/2 and the next singularity is at -4, a
// polynomial in e q gains 5 bits a term; one in e gains half as much. This is G(m) - 1 for 0 <= m <= 1/2: 2^-30 and
// 2^-56 of L.
CUDALOSS_INLINE float log_tail(float m) {
  return m * polynomial(m, -0x1.555550p-3f, 0x1.110e50p-5f, -0x1.d34ebcp-8f, 0x1.92af80p-10f, -0x1.114410p-12f);
}
CUDALOSS_INLINE double log_tail(double m) {
  return m * polynomial(m, -0x1.55555555554fdp-3, 0x1.11111111089bap-5, -0x1.d41d41cb27832p-8, 0x1.a019ff4553e8fp-10,
                        -0x1.7a45d4bc9d349p-12, 0x1.5d2481dafbb3dp-14, -0x1.45609d6af5539p-16, 0x1.2d7ddecfc0f13p-18,
                        -0x1.0116e6c328e68p-20, 0x1.281b5525b6772p-23);
}

// slope * other * scale, for a slope to be multiplied by `back`. `other` takes that factor if the product could
// overflow.
template <class F>
CUDALOSS_INLINE F chained_back(WithRest<F> slope, WithRest<F> other, Constant<F> scale, F back) {
  const bool is_large = absolute(other.value) > F(ExpParts<F>::big * 0x1p-16);
  const F taken = select(is_large, back, F(1));
  return chained(slope, WithRest<F>{other.value * taken, other.rest * taken}, scale) * select(is_large, F(1), back);
}
template <class F>
CUDALOSS_INLINE F chained_back(F slope, F other, Constant<F> scale) {
  constexpr F small = ExpParts<F>::small;
  const bool is_large = absolute(other) > F(ExpParts<F>::big * 0x1p-16);
  const WithRest<F> product = sound(product_in<WithRest<F>>(slope, select(is_large, other * small, other)));
  return rounded_product(product, scale) * select(is_large, F(1), small);
}

// (log(cosh(z)) / h - 1) / h with h = z^2 / 2, for h up to near_half_square (in fp64 interpolated at Chebyshev's
// nodes): 2^-28 and 2^-56 of log(cosh(z)).
CUDALOSS_INLINE float near_half_square(float) { return 0.25f; }
CUDALOSS_INLINE double near_half_square(double) { return 0.5; }
CUDALOSS_INLINE float log_cosh_tail(float h) {
  return polynomial(h, -0x1.555536p-2f, 0x1.6c086ap-3f, -0x1.b7fa36p-4f, 0x1.0c92c6p-4f, -0x1.e0aedcp-6f);
}
CUDALOSS_INLINE double log_cosh_tail(double h) {
  return polynomial(h, -0x1.5555555555555p-2, 0x1.6c16c16c16b21p-3, -0x1.ba1ba1ba09a16p-4, 0x1.1ea5d397a0770p-4,
                    -0x1.833d9b79192fcp-5, 0x1.0d0b3f8ca0cdcp-5, -0x1.7da187717a8cfp-6, 0x1.12e912c66a9d6p-6,
                    -0x1.906e7ed5ed8e2p-7, 0x1.2440217d803f8p-7, -0x1.a1307ba3b2516p-8, 0x1.1319bfc4f54a1p-8,
                    -0x1.2e63935c5c381p-9, 0x1.d553b8d753753p-11, -0x1.7199d3332b32fp-13);
}

// log1p(e) + rest for e = exp(-2 z), with h above near_half_square. Float: a polynomial too, 2^-30 of log(cosh(z));
// fp64: as log1p below.
CUDALOSS_INLINE float log1p_far(float e, float rest) {
  return fused(
      e,
      polynomial(e, 0x1.fffff8p-1f, -0x1.fffbe6p-2f, 0x1.54f522p-2f, -0x1.f76f16p-3f, 0x1.655610p-3f, -0x1.51ca90p-4f),
      rest);
}
CUDALOSS_INLINE double log1p_far(double e, double rest) {
  const double q = e / (1.0 + e), log = 0.5 * (e + q);
  return fused(log, log_tail(q * e), log) + rest;
}

// For z >= 0, all divided by `small`: sigmoid(-z), and softplus(-z) = log1p(exp(-z)) in two parts.
template <class F>
struct Logistic {
  F sigmoid, log, log_rest, sigmoid_rest;
};

// From exp(-z) / small.
template <class F>
CUDALOSS_INLINE Logistic<F> logistic_of(WithRest<F> exp, F small) {
  const F e = exp.value * small, r = reciprocal_of(F(1) + e);
  const F about = fused(exp.value, r, F(0));  // a plain product could be contracted with the next line in one kernel,
                                              // and not in another
  const F missing = fused(-about, e, exp.value - about);  // e - about (1 + e)
  const F correction = fused(exp.rest, r, missing), sigmoid = fused(correction, r, about);
  const F q = sigmoid * small, tail = log_tail(q * e);  // L = (e + q) / 2 (1 + tail), q = e (1 - q)
  return {sigmoid, exp.value, fused(exp.value, fused(q, fused(tail, F(-0.5), F(-0.5)), tail), exp.rest),
          fused(correction, r, about - sigmoid)};
}
template <class F>
CUDALOSS_INLINE Logistic<F> logistic(F z, F rest = F(0)) {
  return logistic_of(exp_of_minus(z, rest), F(ExpParts<F>::small));
}

// log1p(e) for a sum of many, from e times 2^kUp and q = e / (1 + e): 2^-26 of it. The constants undo 2^kUp.
template <int kUp = 0>
CUDALOSS_INLINE float log1p_in_sum(float e, float q) {
  constexpr float back = 1.0f / (1 << kUp), back2 = back * back;
  const float sum = kUp == 0 ? e + q : fused(e, back, q);
  return sum * polynomial(e * q, 0x1.000000p-1f, -0x1.555476p-4f * back, 0x1.10d888p-6f * back2,
                          -0x1.c9edaap-9f * back2 * back, 0x1.3d23aep-11f * back2 * back2);
}

// sigmoid(-z) with its rest, and log1p(exp(-z)), for z from 0 to 80 (fp64: 700). For larger z they stay constant.
template <class F>
struct PlainLogistic {
  F sigmoid, log, sigmoid_rest;
};
template <class F>
CUDALOSS_INLINE PlainLogistic<F> plain_logistic(F z) {
  const WithRest<F> half = exp_by(F(ExpParts<F>::magic_half), -clamped_to(ExpParts<F>::limit_half, z));
  const Logistic<F> of = logistic_of(twice(half), F(1));
  return {of.sigmoid, of.log + of.log_rest, of.sigmoid_rest};
}

// exp(log * gamma) for a log that is negative or near 0.
template <class F>
CUDALOSS_INLINE Lifted<F> power_of(WithRest<F> log, WithRest<F> gamma) {
  const WithRest<F> taken = normalized(log), of_values = product_of(taken.value, gamma.value);
  const F rest = of_values.rest + fused(taken.value, gamma.rest, taken.rest * gamma.value);
  Lifted<F> power = exp_of(of_values.value, is_lifted(of_values.value));
  power.number.rest = fused(power.number.value, rest, power.number.rest);
  return power;
}

// 2^x and exp(x) for results with 11 bits. On a GPU a result below 2^-126 is 0.
CUDALOSS_INLINE float fast_exp2(float x) {
#if defined(__CUDA_ARCH__)
  float e;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(x));
  return e;
#else
  const float log = x * ExpParts<float>::ln2;
  const Lifted<float> e = exp_of(log, is_lifted(log));
  return e.number.value * e.back;
#endif
}
CUDALOSS_INLINE float fast_exp(float x) {
#if defined(__CUDA_ARCH__)
  return fast_exp2(x * ExpParts<float>::log2_e);
#else
  const Lifted<float> e = exp_of(x, is_lifted(x));
  return e.number.value * e.back;
#endif
}

// sigmoid(-z) and softplus(-z) for z >= 0 and for results with 11 bits. On a GPU exp is computed times 2^kUp: with 8
// bfloat16's subnormal numbers keep their digits, with 23 float's.
template <int kUp = 8>
CUDALOSS_INLINE PlainLogistic<float> fast_logistic(float z) {
#if defined(__CUDA_ARCH__)
  constexpr int up = kUp;
  const float e = fast_exp2(fused(z, -ExpParts<float>::log2_e, static_cast<float>(up)));
#else
  constexpr int up = 0;
  const float e = fast_exp(-z);
#endif
  const float q = e * reciprocal_of(static_cast<float>(1 << up) + e);
  return {q, log1p_in_sum<up>(e, q), 0.0f};
}

template <class T>
CUDALOSS_INLINE PlainLogistic<Scalar<T>> plain_logistic_as(Scalar<T> z) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return fast_logistic(z);
  } else {
    return plain_logistic(z);
  }
}

// exp(x) with the precision of T's results.
template <class T>
CUDALOSS_INLINE Lifted<Scalar<T>> exp_as(Scalar<T> x, bool lifted) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return {{fast_exp(x), 0.0f}, 1.0f};
  } else {
    return exp_of(x, lifted);
  }
}

// slope * other * scale, with the precision of T's results.
template <class T, class F>
CUDALOSS_INLINE F product_as(Lifted<F> slope, WithRest<F> other, Constant<F> scale) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return select(slope.number.value == 0.0f, 0.0f, slope.number.value * other.value * scale.hi);
  } else {
    return chained_back(slope.number, other, scale, slope.back);
  }
}

// a / b * scale. A lifted a is small, but if b is small too, the quotient is not: a.back is then applied before the
// scale.
template <class T, class F>
CUDALOSS_INLINE F divided_as(Lifted<F> a, F b, Constant<F> scale) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return a.number.value / b * scale.hi;
  } else {
    Inverted<F> by = inverted(WithRest<F>{b, F(0)});
    const bool is_small = by.power > F(0x1p24);
    by.power *= select(is_small, a.back, F(1));
    const F quotient = rounded_product(quotient_of(a.number, by), scale) * select(is_small, F(1), a.back);
    return select(b > largest(F()), F(0), quotient);
  }
}

}  // namespace cudaloss
