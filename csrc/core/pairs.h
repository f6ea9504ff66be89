// Numbers with twice the digits of F (float or double): an F and its rounding error. For losses whose steps would each
// round. Products are written as fused ones: a compiler may contract a plain product into the next operation, in one
// kernel and not in another.
#pragma once

#include "core/arith.h"

namespace cudaloss {

template <class F>
struct WithRest {
  F value, rest;
};

// A number from the host.
template <class F>
WithRest<F> with_rest(double x, F) {
  const Constant<F> c = constant_of(x, F());
  return {c.hi, c.lo};
}

template <class F>
CUDALOSS_INLINE WithRest<F> select(bool condition, WithRest<F> yes, WithRest<F> no) {
  return {select(condition, yes.value, no.value), select(condition, yes.rest, no.rest)};
}

template <class F>
CUDALOSS_INLINE WithRest<F> absolute(WithRest<F> x) {
  return select(x.value < F(0), WithRest<F>{-x.value, -x.rest}, x);
}

template <class F>
CUDALOSS_INLINE WithRest<F> scaled(WithRest<F> x, F power_of_two) {
  return {x.value * power_of_two, x.rest * power_of_two};
}
// The sign of `sign` times x.
template <class F>
CUDALOSS_INLINE WithRest<F> signed_by(F sign, WithRest<F> x) {
  return {signed_by(sign, x.value), signed_by(sign, x.rest)};
}

template <class F>
CUDALOSS_INLINE WithRest<F> operator-(WithRest<F> x) {
  return {-x.value, -x.rest};
}
template <class F>
CUDALOSS_INLINE WithRest<F> twice(WithRest<F> x) {
  return {x.value + x.value, x.rest + x.rest};
}

// a - b, exactly; if it is infinite, the rest is 0.
template <class F>
CUDALOSS_INLINE WithRest<F> difference_of(F a, F b) {
  const F value = a - b, subtracted = a - value, rest = (subtracted - b) + (a - (value + subtracted));
  return {value, select(absolute(value) <= largest(F()), rest, F(0))};
}
template <class F>
CUDALOSS_INLINE WithRest<F> difference_of(WithRest<F> a, WithRest<F> b) {
  const WithRest<F> of_values = difference_of(a.value, b.value);
  return {of_values.value, of_values.rest + (a.rest - b.rest)};
}
// The same number with the smallest rest.
template <class F>
CUDALOSS_INLINE WithRest<F> normalized(WithRest<F> x) {
  const F value = x.value + x.rest;
  return {value, (x.value - value) + x.rest};
}
// 1 - x, exactly, for |x| <= 1.
template <class F>
CUDALOSS_INLINE WithRest<F> one_less(F x) {
  const F value = F(1) - x;
  return {value, (F(1) - value) - x};
}
// The rest is Inf - Inf if the value is infinite, and is then left out.
template <class F>
CUDALOSS_INLINE F rounded(WithRest<F> x) {
  const F sum = x.value + x.rest;
  return select(sum == sum, sum, x.value);
}
template <class F>
CUDALOSS_INLINE double as_double(WithRest<F> x) {
  const double value = static_cast<double>(x.value), sum = value + static_cast<double>(x.rest);
  return select(sum == sum, sum, value);
}
// a + b for |a| >= |b|.
template <class F>
CUDALOSS_INLINE WithRest<F> sum_of(WithRest<F> a, WithRest<F> b) {
  const F value = a.value + b.value;
  return {value, ((a.value - value) + b.value) + (a.rest + b.rest)};
}
template <class F>
CUDALOSS_INLINE WithRest<F> operator*(WithRest<F> a, WithRest<F> b) {
  const F value = fused(a.value, b.value, F(0));
  return {value, fused(a.value, b.value, -value) + fused(a.value, b.rest, a.rest * b.value)};
}
// a b of two numbers; if it is infinite, the rest is 0.
template <class F>
CUDALOSS_INLINE WithRest<F> product_of(F a, F b) {
  const F value = fused(a, b, F(0));
  return {value, select(absolute(value) <= largest(F()), fused(a, b, -value), F(0))};
}
// a / b, from about 1 / b.
template <class F>
CUDALOSS_INLINE WithRest<F> quotient_of(WithRest<F> a, WithRest<F> b, F inverse) {
  const F value = fused(a.value, inverse, F(0));
  return {value, (fused(-value, b.value, a.value) + fused(-value, b.rest, a.rest)) * inverse};
}
// a * c, rounded once. If the product or a factor is infinite, without the rests, which are then NaN.
template <class F>
CUDALOSS_INLINE F rounded_product(WithRest<F> a, Constant<F> c) {
  const F plain = a.value * c.hi, exact = fused(a.value, c.hi, fused(a.value, c.lo, a.rest * c.hi));
  return select(absolute(plain) <= largest(F()), exact, plain);
}
// The same for a finite a.
template <class F>
CUDALOSS_INLINE F rounded_finite_product(WithRest<F> a, Constant<F> c) {
  const F finite =
      select(absolute(c.hi) <= largest(F()), c.hi, F(0));  // costs nothing if c is the same for all elements
  return fused(a.value, c.hi, fused(a.value, c.lo, a.rest * finite));
}

// slope * other * scale, rounded once; 0 times an infinite other is 0.
template <class F>
CUDALOSS_INLINE F chained(WithRest<F> slope, WithRest<F> other, Constant<F> scale) {
  return rounded_product(slope * select(slope.value == F(0), WithRest<F>{F(0), F(0)}, other), scale);
}
template <class F>
CUDALOSS_INLINE F chained(WithRest<F> slope, F other, Constant<F> scale) {
  return rounded_product(slope * WithRest<F>{select(slope.value == F(0), F(0), other), F(0)}, scale);
}
// About 1 / h, for a normal h.
CUDALOSS_INLINE float reciprocal_of(float h) {
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(h));
  return inverse;
#else
  return 1.0f / h;
#endif
}
// To 40 bits.
CUDALOSS_INLINE double fast_reciprocal_of(double h) {
#if defined(__CUDA_ARCH__)
  double inverse;  // to 20 bits
  asm("rcp.approx.ftz.f64 %0, %1;" : "=d"(inverse) : "d"(h));
  return fused(inverse, fused(-h, inverse, 1.0), inverse);
#else
  return 1.0 / h;
#endif
}
CUDALOSS_INLINE double reciprocal_of(double h) {
#if defined(__CUDA_ARCH__)
  const double inverse = fast_reciprocal_of(h);
  return fused(inverse, fused(-h, inverse, 1.0), inverse);
#else
  return 1.0 / h;
#endif
}
template <class T>
CUDALOSS_INLINE Scalar<T> reciprocal_as(Scalar<T> h) {
  if constexpr (std::is_same_v<T, FastDouble>) {
    return fast_reciprocal_of(h);
  } else {
    return reciprocal_of(h);
  }
}

// About 1 / sqrt(h), for a normal h.
CUDALOSS_INLINE float inverse_root_of(float h) {
#if defined(__CUDA_ARCH__)
  float inverse;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(inverse) : "f"(h));
  return inverse;
#else
  return 1.0f / sqrtf(h);
#endif
}
CUDALOSS_INLINE double inverse_root_of(double h) { return 1.0 / sqrt(h); }

// A number times a power of two.
template <class F>
struct Lifted {
  WithRest<F> number;
  F back;
};
template <class F>
CUDALOSS_INLINE WithRest<F> in_place(Lifted<F> x) {
  return {x.number.value * x.back, x.number.rest * x.back};
}

// A divisor times a power of two that makes it about 1, and about the inverse of that product.
template <class F>
struct Inverted {
  WithRest<F> scaled;
  F inverse, power;
};

template <class F>
CUDALOSS_INLINE Inverted<F> inverted(WithRest<F> b) {
  const F power = inverse_power(b.value);
  const WithRest<F> scaled = {b.value * power, b.rest * power};
  return {scaled, reciprocal_of(scaled.value), power};
}

// a / b. b's power of two is applied first if it brings a nearer to 1, otherwise it stays in `back`.
template <class F>
CUDALOSS_INLINE Lifted<F> quotient_of(WithRest<F> a, const Inverted<F>& b) {
  const bool first = (absolute(a.value) > F(1)) == (b.power < F(1));
  const F before = select(first, b.power, F(1)), after = select(first, F(1), b.power);
  return {quotient_of(WithRest<F>{a.value * before, a.rest * before}, b.scaled, b.inverse), after};
}
// a * scale, rounded once.
template <class F>
CUDALOSS_INLINE F rounded_product(Lifted<F> a, Constant<F> scale) {
  return rounded_product(a.number, scale) * a.back;
}

}  // namespace cudaloss
