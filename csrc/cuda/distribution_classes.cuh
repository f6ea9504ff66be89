// The classes of a row of two distributions: what is summed over them, how their probabilities are made from the
// logits, and how the input's gradient is made from what is kept of a class.
#pragma once

#include "core/distributions.h"
#include "cuda/row_lanes.cuh"

namespace cudaloss::cuda {

template <class N>
struct Two {
  N input, target;
};
// A sum over a row's classes. In fp64 its rounding would show.
template <class T>
using SumOf = std::conditional_t<std::is_same_v<T, double>, Sum, Scalar<T>>;

// The sum of exp below the maximum, and how many classes are at the maximum.
template <class N>
struct ExpSum {
  N below;
  int32_t at_max;

  __device__ __forceinline__ ExpSum operator+(const ExpSum& other) const {
    return {below + other.below, at_max + other.at_max};
  }
};

// Sums of the loss's terms.
template <class T>
struct Terms {
  SumOf<T> divergence, slope, base;

  __device__ __forceinline__ Terms operator+(const Terms& other) const {
    return {divergence + other.divergence, slope + other.slope, base + other.base};
  }
};

// At least about -340, for x <= 0: its exp is 0 for results with float's digits, but a normal number. One integer
// minimum of the upper halves; a comparison and two selects would be four instructions.
__device__ __forceinline__ double not_too_far(double x) {
  const uint32_t least = 0xc0754000u, upper = static_cast<uint32_t>(__double2hiint(x));
  return __hiloint2double(static_cast<int>(min(upper, least)), __double2loint(x));
}

// How a distribution's classes are read, given their maximum.
template <class T, class Read>
struct SeenLogits {
  using F = Scalar<T>;
  F inverse;  // of the temperature
  Read max, least;

  __device__ __forceinline__ static SeenLogits of(F inverse, Read max, double farthest) {
    return {inverse, max, max_or_nan(-largest(Read()), static_cast<Read>(max - farthest))};
  }
  __device__ __forceinline__ F below_max(Read x) const { return (F(x) - F(max)) * inverse; }
  __device__ __forceinline__ F exp(Read x, F below) const {
    const F e = exp_of_below<T>(below);
    return std::is_same_v<T, FastFloat> ? e : select(x < least, F(0), e);  // FastFloat's exp is 0 there
  }
};

// How a row's classes are read, given the values that all classes share.
template <class T, class Read>
struct SeenClasses {
  using F = Scalar<T>;
  Two<SeenLogits<T, Read>> logits;
  Two<F> of_exp;
  F lower;

  struct Class {
    F q, p, d;
  };
  __device__ __forceinline__ Class of(Read x, Read t) const {
    const F of_x = logits.input.below_max(x), of_t = logits.target.below_max(t);
    return {logits.input.exp(x, of_x) * of_exp.input, logits.target.exp(t, of_t) * of_exp.target,
            (of_x - of_t) - lower};
  }
  // The smaller probability is the larger one times exp(-|d|). A mixture's terms need that number too: so a class has
  // two exponentials, not three.
  __device__ __forceinline__ Class of_ratio(Read x, Read t) const {
    const double of_x = not_too_far(logits.input.below_max(x)), of_t = not_too_far(logits.target.below_max(t));
    const double d = (of_x - of_t) - lower;
    const bool is_q = d > 0.0;
    const double more = exp_of_below<T>(select(is_q, of_x, of_t)) * select(is_q, of_exp.input, of_exp.target);
    const double less = more * decay_of<T>(absolute(d)).rho;
    return {select(is_q, more, less), select(is_q, less, more), d};
  }
  // For results with 11 bits.
  __device__ __forceinline__ SeenClasses<FastFloat, Read> in_float() const {
    const auto narrowed = [](const SeenLogits<T, Read>& x) -> SeenLogits<FastFloat, Read> {
      return {static_cast<float>(x.inverse), x.max, x.least};
    };
    return {{narrowed(logits.input), narrowed(logits.target)},
            {static_cast<float>(of_exp.input), static_cast<float>(of_exp.target)},
            static_cast<float>(lower)};
  }
};

// What is kept of a class for the input's gradient: the term's slope and base; of a centred loss q f and q, multiplied
// by Lifts.
template <class Read>
struct KeptTerm {
  Read slope, base;
};
// What makes the gradient from these.
template <class Read>
struct OfKept {
  Constant<Read> slope;  // a factor; if centred, the mean of f
  Read base;             // a factor; if centred, of the difference
};
// `by`: the factor of the row's gradients. q is kept times |by| and a power of two, q f times one more, and the mean of
// f has that one too. So they have their digits where the gradient is subnormal, and are finite where |by| is large;
// and where f is subnormal, for |by| up to 2^38.
struct Lifts {
  double by, of_q, of_f;

  __device__ __forceinline__ explicit Lifts(double by) : by(by) {
    const bool is_large = fabs(by) > 0x1p38;
    of_q = is_large ? 0x1p110 * inverse_power(fabs(by)) : 0x1p40;
    of_f = is_large ? 1.0 : 0x1p40;
  }
  template <class N>
  __device__ __forceinline__ KeptTerm<N> factors() const {
    return {static_cast<N>(fabs(by) * of_q * of_f), static_cast<N>(fabs(by) * of_q)};
  }
  // by's sign, and what brings the gradient back; NaN if by is not finite.
  __device__ __forceinline__ double back() const { return signed_by(by, 1.0 / (of_q * of_f)) + (by - by); }
};

// A number from 0 to 2^128, as a float with one more binary digit in place of the sign; below 2^-126 it is 0. With f
// and q as floats gradients were up to 2.2 ulp off, with f and q in this form 2.01, with q f, a float, in place of
// f 1.2.
template <class Read>
struct Unsigned {
  __device__ __forceinline__ static Read pack(double x) { return x; }
  __device__ __forceinline__ static WithRest<Read> unpack(Read x) { return {x, Read(0)}; }
};
template <>
struct Unsigned<float> {
  __device__ __forceinline__ static float pack(double x) {
    const uint64_t bits = bit_cast<uint64_t>(x) + (uint64_t{1} << 27);
    const int upper = static_cast<int>(bits >> 32) - ((1023 - 127) << 20);  // the exponent as a float's
    const uint32_t packed = __funnelshift_l(static_cast<uint32_t>(bits), min(upper, 0x0fffffff), 4);
    return bit_cast<float>(upper < 1 << 20 ? 0u : packed);
  }
  __device__ __forceinline__ static WithRest<float> unpack(float x) {
    const uint32_t bits = bit_cast<uint32_t>(x), value = bits >> 1;
    const float half = bit_cast<float>(value & 0x7f800000u) * 0x1p-24f;  // of the last place
    return {bit_cast<float>(value), bits & 1 ? half : 0.0f};
  }
};

}  // namespace cudaloss::cuda
