// Number types for a loss that rounds once: numbers with rests, or plain ones in a sum of many, where roundings average
// out. The functions have the names of pairs.h for both, so that a loss is written once.
#pragma once

#include <type_traits>

#include "core/pairs.h"

namespace cudaloss {

// Asks a loss for the plain arithmetic of F: for sums of many terms, whose roundings average out.
template <class F>
struct Plain {};
template <class F>
struct ArithTraits<Plain<F>> {
  using Scalar = F;
};

// The number type of a loss that rounds once: F itself for plain arithmetic and for halves.
template <class T>
struct NumberIn {
  using type = WithRest<Scalar<T>>;
};
template <class F>
struct NumberIn<Plain<F>> {
  using type = F;
};
template <>
struct NumberIn<FastFloat> {
  using type = float;
};
template <class T>
using Number = typename NumberIn<T>::type;

template <class N>
struct ScalarIn {
  using type = N;
};
template <class F>
struct ScalarIn<WithRest<F>> {
  using type = F;
};
template <class N>
using ScalarOf = typename ScalarIn<N>::type;
template <class N>
constexpr bool kHasRest = !std::is_same_v<N, ScalarOf<N>>;

template <class N>
CUDALOSS_INLINE ScalarOf<N> value_of(N x) {
  if constexpr (kHasRest<N>) {
    return x.value;
  } else {
    return x;
  }
}
template <class N>
CUDALOSS_INLINE ScalarOf<N> rest_of(N x) {
  if constexpr (kHasRest<N>) {
    return x.rest;
  } else {
    return ScalarOf<N>(0);
  }
}
// Of a number that is finite.
template <class N>
CUDALOSS_INLINE ScalarOf<N> rounded_finite(N x) {
  return value_of(x) + rest_of(x);
}
template <class N>
CUDALOSS_INLINE double finite_in_double(N x) {
  return double{value_of(x)} + double{rest_of(x)};
}
template <class N>
CUDALOSS_INLINE N number_of(Constant<ScalarOf<N>> c) {
  if constexpr (kHasRest<N>) {
    return {c.hi, c.lo};
  } else {
    return c.hi;
  }
}

CUDALOSS_INLINE float scaled(float x, float power_of_two) { return x * power_of_two; }
CUDALOSS_INLINE double scaled(double x, double power_of_two) { return x * power_of_two; }

CUDALOSS_INLINE float sum_of(float a, float b) { return a + b; }
CUDALOSS_INLINE double sum_of(double a, double b) { return a + b; }

// a - b, exactly; if it is infinite, the rest is NaN.
template <class N, class F>
CUDALOSS_INLINE N difference_in(F a, F b) {
  const F value = a - b;
  if constexpr (kHasRest<N>) {
    const F subtracted = a - value;
    return {value, (subtracted - b) + (a - (value + subtracted))};
  } else {
    return value;
  }
}
// a b of two numbers; if it is infinite, the rest is NaN.
template <class N, class F>
CUDALOSS_INLINE N product_in(F a, F b) {
  const F value = fused(a, b, F(0));
  if constexpr (kHasRest<N>) {
    return {value, fused(a, b, -value)};
  } else {
    return value;
  }
}
// a - b of any two, in the form in which the value is rounded; if it is infinite, the rest is 0.
template <class F>
CUDALOSS_INLINE WithRest<F> gap_between(WithRest<F> a, WithRest<F> b) {
  const WithRest<F> d = difference_in<WithRest<F>>(a.value, b.value);
  const F rest = d.rest + (a.rest - b.rest), value = d.value + rest;
  const bool is_finite = absolute(d.value) <= largest(F());
  return {select(is_finite, value, d.value), select(is_finite, (d.value - value) + rest, F(0))};
}
CUDALOSS_INLINE float gap_between(float a, float b) { return a - b; }
CUDALOSS_INLINE double gap_between(double a, double b) { return a - b; }
// If the value is infinite, the rest is NaN: it becomes 0.
template <class F>
CUDALOSS_INLINE WithRest<F> sound(WithRest<F> x) {
  return {x.value, select(absolute(x.value) <= largest(F()), x.rest, F(0))};
}
CUDALOSS_INLINE float sound(float x) { return x; }
// x^2 + y, rounded in its value's last place.
template <class F>
CUDALOSS_INLINE WithRest<F> square_plus(WithRest<F> x, WithRest<F> y) {
  return {fused(x.value, x.value, y.value), fused(twice(x.value), x.rest, y.rest)};
}
CUDALOSS_INLINE float square_plus(float x, float y) { return fused(x, x, y); }
CUDALOSS_INLINE double square_plus(double x, double y) { return fused(x, x, y); }
template <class F>
CUDALOSS_INLINE F quotient_of(F a, F b, F inverse) {
  const F value = fused(a, inverse, F(0));
  return fused(fused(-value, b, a), inverse, value);
}
template <class F>
CUDALOSS_INLINE F chained(F slope, F other, Constant<F> scale) {
  return slope * select(slope == F(0), F(0), other) * scale.hi;
}

// The root of a square, from about its inverse.
template <class F>
CUDALOSS_INLINE F root_of(F square, F inverse) {
  const F root = square * inverse;
  return fused(fused(-root, root, square), F(0.5) * inverse, root);
}
template <class F>
CUDALOSS_INLINE WithRest<F> root_of(WithRest<F> square, F inverse) {
  const F root = fused(square.value, inverse, F(0));
  return {root, (fused(-root, root, square.value) + square.rest) * (F(0.5) * inverse)};
}

// A constant c > 0 that goes into sqrt(d^2 + c^2) for many d. All are multiplied by the power of two that makes c about
// 1, so that d^2 + c^2 does not underflow, nor overflow for any d beside which c still counts.
template <class N>
struct Leg {
  using F = ScalarOf<N>;
  F power, back;  // 1 / power
  N c, square;    // c times the power, and its square

  CUDALOSS_INLINE explicit Leg(Constant<F> constant) {
    const F most = inverse_power(least(F())), found = inverse_power(constant.hi);
    power = select(found > most, most, found);
    back = inverse_power(power);
    c = scaled(number_of<N>(constant), power);
    square = c * c;
  }
};

// The root of d^2 + c^2, times the leg's power, with about its inverse. If `is_far` (d is more than 2^60 c), the root
// is |d|, and the numbers here mean nothing.
template <class N>
struct Hypotenuse {
  using F = ScalarOf<N>;
  bool is_far;
  N d, root;
  F inverse;

  CUDALOSS_INLINE Hypotenuse(N distance, const Leg<N>& leg) : d(scaled(distance, leg.power)) {
    is_far = absolute(value_of(d)) > F(0x1p60);
    const N square = square_plus(d, leg.square);
    inverse = inverse_root_of(value_of(square));
    root = root_of(square, inverse);
  }
};

}  // namespace cudaloss
