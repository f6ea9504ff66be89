// The arithmetic types that the loss functors are templates over.
//
//   float       large reductions: rounding errors of single elements average out
//   double      fp64 operands; fp32 operands on the CPU, where it costs no time at memory speed
//   FastFloat   halves on the GPU: so many arrive at once that arithmetic would be the limit. It is float with plain
//               constants. Its 2^-23 is far below a half's last place; a parameter that float cannot represent shifts a
//               sum of many by up to 2^-24.
//   FastDouble  double for results with float's digits: its exp is good to 2^-32.
//   FloatFloat  fp32 operands on the GPU: an unevaluated sum hi + lo of two floats, about 2^-45 relative.
//               Single results (gradients, reduction="none", small reductions) are correctly rounded. Unlike double it
//               is as fast on GPUs whose fp64 rate is a 64th of fp32's.
//
// The products and differences are the classic error-free transforms (Dekker 1971; Ogita, Rump, Oishi 2005).
#pragma once

#include <cfloat>
#include <cmath>

#include "core/dtype.h"

namespace cudaloss {

struct FloatFloat {
  float hi, lo;
};
struct FastFloat {
  float value;
};
struct FastDouble {
  double value;
};

// A number fixed for the whole launch (beta, 1 / beta, the gradient's scale). `lo` is its rounding error: without it
// every element would have the same error, which does not average out.
template <class F>
struct Constant {
  F hi, lo;
};

template <class T>
struct ArithTraits {
  using Scalar = T;
};
template <>
struct ArithTraits<FloatFloat> {
  using Scalar = float;
};
template <>
struct ArithTraits<FastFloat> {
  using Scalar = float;
};
template <>
struct ArithTraits<FastDouble> {
  using Scalar = double;
};
template <class T>
using Scalar = typename ArithTraits<T>::Scalar;

// Computes both sides and takes one: a loop over it vectorises, and a warp does not diverge.
template <class T>
CUDALOSS_INLINE T select(bool condition, T yes, T no) {
  return condition ? yes : no;
}

// From a double on the host, or from an element's own F, on either side.
CUDALOSS_INLINE Constant<double> constant_of(double x, double) { return {x, 0.0}; }
CUDALOSS_INLINE Constant<float> constant_of(double x, float) {
  const float hi = static_cast<float>(x);
  return {hi, std::isfinite(hi) ? static_cast<float>(x - hi) : 0.0f};
}
CUDALOSS_INLINE Constant<float> constant_of(float x, float) { return {x, 0.0f}; }
// 1 - x
template <class F>
CUDALOSS_INLINE Constant<F> complement_of(F x, F) {
  const F hi = F(1) - x, subtracted = F(1) - hi;
  return {hi, (subtracted - x) + (F(1) - (hi + subtracted))};
}
CUDALOSS_INLINE Constant<float> complement_of(double x, float) { return constant_of(1.0 - x, 0.0f); }
// Host only: numerator / denominator, clamped to the finite range so that 0 * (1 / tiny) stays 0.
inline Constant<double> ratio(double numerator, double denominator, double) {
  const double hi = std::fmin(numerator / denominator, DBL_MAX);
  const double lo = hi < DBL_MAX && hi > DBL_MIN ? std::fma(-hi, denominator, numerator) / denominator : 0.0;
  return {hi, lo};
}
inline Constant<float> ratio(double numerator, double denominator, float) {
  return constant_of(std::fmin(numerator / denominator, static_cast<double>(FLT_MAX)), 0.0f);
}

// ---- float and double --------------------------------------------------------------------------------------
CUDALOSS_INLINE float absolute(float x) { return fabsf(x); }
CUDALOSS_INLINE double absolute(double x) { return fabs(x); }
CUDALOSS_INLINE float least(float) { return FLT_MIN; }  // the smallest normal number
CUDALOSS_INLINE double least(double) { return DBL_MIN; }
CUDALOSS_INLINE float largest(float) { return FLT_MAX; }
CUDALOSS_INLINE double largest(double) { return DBL_MAX; }
CUDALOSS_INLINE float fused(float a, float b, float c) { return fmaf(a, b, c); }
CUDALOSS_INLINE double fused(double a, double b, double c) { return fma(a, b, c); }

template <class F>
CUDALOSS_INLINE F operator*(F x, Constant<F> c) {
  const F plain = x * c.hi;
  // If that overflows, lo is no longer a small correction: it is 0 or may have the other sign.
  return select(absolute(plain) <= largest(F()), fused(x, c.hi, x * c.lo), plain);
}
template <class F>
CUDALOSS_INLINE F operator-(F x, Constant<F> c) {
  return (x - c.hi) - c.lo;
}
template <class F>
CUDALOSS_INLINE bool operator<(F x, Constant<F> c) {
  return x < c.hi;
}
template <class F>
CUDALOSS_INLINE bool operator>=(F x, Constant<F> c) {
  return x >= c.hi;
}

template <class F>
CUDALOSS_INLINE F twice(F x) {
  return x + x;
}

// ---- FloatFloat --------------------------------------------------------------------------------------------
CUDALOSS_INLINE FloatFloat absolute(FloatFloat x) { return x.hi < 0.0f ? FloatFloat{-x.hi, -x.lo} : x; }
CUDALOSS_INLINE FloatFloat twice(FloatFloat x) { return {x.hi + x.hi, x.lo + x.lo}; }

CUDALOSS_INLINE FloatFloat two_difference(float a, float b) {
  const float difference = a - b;
  const float subtracted = a - difference;
  return {difference, (subtracted - b) + (a - (difference + subtracted))};
}
CUDALOSS_INLINE FloatFloat product(float a_hi, float a_lo, float b_hi, float b_lo) {
  const float hi = a_hi * b_hi;
  const float error = fmaf(a_hi, b_hi, -hi);
  return {hi, fmaf(a_hi, b_lo, fmaf(a_lo, b_hi, error))};
}
CUDALOSS_INLINE FloatFloat operator*(FloatFloat a, FloatFloat b) { return product(a.hi, a.lo, b.hi, b.lo); }
CUDALOSS_INLINE FloatFloat operator*(FloatFloat a, Constant<float> c) { return product(a.hi, a.lo, c.hi, c.lo); }
CUDALOSS_INLINE FloatFloat operator-(FloatFloat a, Constant<float> c) {
  const FloatFloat difference = two_difference(a.hi, c.hi);
  return {difference.hi, difference.lo + (a.lo - c.lo)};
}
CUDALOSS_INLINE bool operator<(FloatFloat a, Constant<float> c) { return a.hi < c.hi || (a.hi == c.hi && a.lo < c.lo); }
CUDALOSS_INLINE bool operator>=(FloatFloat a, Constant<float> c) {
  return a.hi > c.hi || (a.hi == c.hi && a.lo >= c.lo);
}

// ---- FastFloat ---------------------------------------------------------------------------------------------
CUDALOSS_INLINE FastFloat absolute(FastFloat x) { return {absolute(x.value)}; }
CUDALOSS_INLINE FastFloat twice(FastFloat x) { return {x.value + x.value}; }
CUDALOSS_INLINE FastFloat operator*(FastFloat a, FastFloat b) { return {a.value * b.value}; }
CUDALOSS_INLINE FastFloat operator*(FastFloat x, Constant<float> c) { return {x.value * c.hi}; }
CUDALOSS_INLINE FastFloat operator-(FastFloat x, Constant<float> c) { return {x.value - c.hi}; }
CUDALOSS_INLINE bool operator<(FastFloat x, Constant<float> c) { return x.value < c.hi; }
CUDALOSS_INLINE bool operator>=(FastFloat x, Constant<float> c) { return x.value >= c.hi; }

// ---- products with constants -------------------------------------------------------------------------------
template <class F>
CUDALOSS_INLINE Constant<F> times(Constant<F> a, Constant<F> b) {
  const F hi = a.hi * b.hi, lo = fused(a.hi, b.lo, fused(a.lo, b.hi, fused(a.hi, b.hi, -hi)));
  return {hi, select(absolute(hi) <= largest(F()), lo, F(0))};  // lo is NaN if hi is infinite
}

// x * c for a finite x, or if the caller does not use the product.
CUDALOSS_INLINE float finite_product(float x, Constant<float> c) { return fused(x, c.hi, x * c.lo); }
CUDALOSS_INLINE double finite_product(double x, Constant<double> c) { return fused(x, c.hi, x * c.lo); }
CUDALOSS_INLINE FastFloat finite_product(FastFloat x, Constant<float> c) { return x * c; }
CUDALOSS_INLINE FloatFloat finite_product(FloatFloat x, Constant<float> c) { return x * c; }

// x * c as a gradient is stored. FloatFloat rounds once. The rounding of the other types is below what the result
// shows, or, in fp64, as good as possible.
CUDALOSS_INLINE float rounded_product(float x, Constant<float> c) { return x * c.hi; }
CUDALOSS_INLINE double rounded_product(double x, Constant<double> c) { return x * c.hi; }
CUDALOSS_INLINE float rounded_product(FastFloat x, Constant<float> c) { return x.value * c.hi; }
// The same for a finite x, or if the caller does not use the product.
template <class T, class F>
CUDALOSS_INLINE F rounded_finite_product(T x, Constant<F> c) {
  return rounded_product(x, c);
}
CUDALOSS_INLINE float rounded_finite_product(FloatFloat x, Constant<float> c) {
  const float finite = select(absolute(c.hi) <= FLT_MAX, c.hi, 0.0f);  // x.hi alone decides if c is infinite
  return fmaf(x.hi, c.hi, fmaf(x.hi, c.lo, x.lo * finite));
}
CUDALOSS_INLINE float rounded_product(FloatFloat x, Constant<float> c) {
  const float result = rounded_finite_product(x, c);
  return select(result == result, result, x.hi * c.hi);  // lo is NaN if hi is infinite
}
// A constant as a power of two and a fraction of about 1: the fraction times another constant keeps its digits if the
// whole would leave the range of F.
template <class F>
struct Split {
  F power;
  Constant<F> fraction;
};
// 1 / x, clamped in the same way; NaN for NaN.
template <class F>
CUDALOSS_INLINE Constant<F> exact_inverse(F x, F least) {
  const F inverse = F(1) / x, hi = select(inverse > largest(F()), largest(F()), inverse);
  return {hi, select(hi < largest(F()) && hi > least, fused(-hi, x, F(1)) * hi, F(0))};
}
CUDALOSS_INLINE Constant<double> inverse_of(double x, double) { return exact_inverse(x, DBL_MIN); }
CUDALOSS_INLINE Constant<float> inverse_of(float x, float) { return exact_inverse(x, FLT_MIN); }
CUDALOSS_INLINE Constant<float> inverse_of(double x, float) {
  const double inverse = 1.0 / x;
  return constant_of(select(inverse > FLT_MAX, static_cast<double>(FLT_MAX), inverse), 0.0f);
}

// About 1 / x for x >= 0: a power of two that F can represent.
CUDALOSS_INLINE float inverse_power(float x) {
  const int32_t bits = 0x7f000000 - static_cast<int32_t>(bit_cast<uint32_t>(x) & 0x7f800000u);
  return bit_cast<float>(select(bits < 0x00800000, 0x00800000, bits));
}
CUDALOSS_INLINE double inverse_power(double x) {
  const int64_t least = 0x0010000000000000, exponent = bit_cast<uint64_t>(x) & 0x7ff0000000000000u;
  const int64_t bits = 0x7fe0000000000000 - exponent;
  return bit_cast<double>(select(bits < least, least, bits));
}
template <class P, class F>
CUDALOSS_INLINE Split<F> split_inverse(P x, F) {
  const P power = inverse_power(x), most = largest(F()) / 2;
  const P taken = select(power > most, P(inverse_power(F(0))), power);
  return {static_cast<F>(taken), inverse_of(x * taken, F())};
}

CUDALOSS_INLINE float scaled_by(float x, float power) { return x * power; }
CUDALOSS_INLINE double scaled_by(double x, double power) { return x * power; }
CUDALOSS_INLINE FastFloat scaled_by(FastFloat x, float power) { return {x.value * power}; }
CUDALOSS_INLINE FloatFloat scaled_by(FloatFloat x, float power) { return {x.hi * power, x.lo * power}; }

// The sign of `sign` times x.
CUDALOSS_INLINE float signed_by(float sign, float x) {
  return bit_cast<float>(bit_cast<uint32_t>(x) ^ (bit_cast<uint32_t>(sign) & 0x80000000u));
}
CUDALOSS_INLINE double signed_by(double sign, double x) {
  return bit_cast<double>(bit_cast<uint64_t>(x) ^ (bit_cast<uint64_t>(sign) & 0x8000000000000000u));
}

// c with the sign of x. If x is 0 or NaN, x * c.
template <class F>
CUDALOSS_INLINE F sign_times(F x, Constant<F> c) {
  const F size = c.hi + c.lo;
  return select(absolute(x) > F(0), signed_by(x, size), x * size);
}
CUDALOSS_INLINE float sign_times(FastFloat x, Constant<float> c) { return sign_times(x.value, c); }
CUDALOSS_INLINE float sign_times(FloatFloat x, Constant<float> c) { return sign_times(x.hi, c); }

// ---- in and out --------------------------------------------------------------------------------------------
// a - b in their own dtypes, without rounding before the subtraction.
template <class T>
struct Difference {
  template <class A, class B>
  CUDALOSS_INLINE static T of(A a, B b) {
    return widen<T>(a) - widen<T>(b);
  }
};
template <>
struct Difference<FloatFloat> {
  template <class A, class B>
  CUDALOSS_INLINE static FloatFloat of(A a, B b) {
    return two_difference(widen<float>(a), widen<float>(b));
  }
};

template <>
struct Difference<FastFloat> {
  template <class A, class B>
  CUDALOSS_INLINE static FastFloat of(A a, B b) {
    return {widen<float>(a) - widen<float>(b)};
  }
};

CUDALOSS_INLINE float rounded(float x) { return x; }
CUDALOSS_INLINE float rounded(FastFloat x) { return x.value; }
CUDALOSS_INLINE double rounded(double x) { return x; }
// lo is Inf - Inf if hi is infinite, and is then left out. A finite hi has a finite lo.
CUDALOSS_INLINE float rounded(FloatFloat x) {
  const float sum = x.hi + x.lo;
  return select(sum == sum, sum, x.hi);
}

CUDALOSS_INLINE double as_double(float x) { return x; }
CUDALOSS_INLINE double as_double(double x) { return x; }
CUDALOSS_INLINE double as_double(FastFloat x) { return x.value; }
CUDALOSS_INLINE double as_double(FloatFloat x) {
  const double hi = x.hi, sum = hi + static_cast<double>(x.lo);
  return select(sum == sum, sum, hi);
}

template <class Out>
CUDALOSS_INLINE Out narrow(float x) {
  return Narrow<Out>::from(x);
}
template <class Out>
CUDALOSS_INLINE Out narrow(double x) {
  return Narrow<Out>::from(static_cast<float>(x));
}
template <>
CUDALOSS_INLINE double narrow<double>(double x) {
  return x;
}

}  // namespace cudaloss
