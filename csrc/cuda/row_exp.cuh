// The exponentials of a row in float arithmetic, and their sums.
//
// exp(x) is computed as exp(x - shift) / 2^power, so that the largest is about 1. Usually the shift is 0: then x - k
// log(2) is exact, while x - max would be rounded, and sums with different powers are joined exactly.
#pragma once

#include "core/softmax.h"
#include "cuda/accessor.cuh"
#include "cuda/row_lanes.cuh"

namespace cudaloss::cuda {

// Above this, floats are at least 1/8 apart. The shift is then the maximum, and no difference that matters is rounded.
constexpr float kUsualLogit = 0x1p20f;

struct Reference {
  float shift, power;
};
__device__ __forceinline__ Reference reference_of(float max) {
  const bool is_usual = fabsf(max) <= kUsualLogit || max == -INFINITY;
  const float taken = select(is_usual, fmaxf(max, -kUsualLogit), 0.0f);
  return {select(is_usual, 0.0f, max), rintf(taken * ExpParts<float>::log2_e)};
}

// How a row's elements are turned into exponentials.
template <class E>
struct Elements;

// exp is lifted by 2^40: it is exact to about an ulp down to exp(-115).
template <>
struct Elements<float> {
  using T = FloatFloat;
  using Parts = ExpParts<float>;
  static constexpr float kBack = Parts::small, kLift = 40.0f;  // kBack = 2^-kLift

  float magic, least;
  __device__ __forceinline__ explicit Elements(float power)
      : magic(Parts::magic - 127.0f - power), least((power - 165.0f) * Parts::ln2) {}

  // exp(x) = 2^k exp(r), with k in the lowest bits of `shifted`.
  struct Apart {
    float shifted, k, whole, r;
  };
  __device__ __forceinline__ Apart apart(float x) const {
    const float taken = fmaxf(x, least), shifted = fused(taken, Parts::log2_e, magic), k = shifted - magic;
    const float whole = fused(k, -Parts::ln2, taken);
    return {shifted, k, whole, fused(k, -Parts::ln2_rest, whole)};
  }
  // exp(r) = 1 + r u, within 1.23 ulp. With the rounding of the row's sum and its own, a gradient stays within the
  // allowed 2 ulp. For NaN the result is any number: the row's maximum notices it.
  struct Exp {
    float near, u;
    Apart at;
    __device__ __forceinline__ float value() const { return times_power(near); }
    // The rounding error of 1 + r u.
    __device__ __forceinline__ float rest() const { return fused(at.r, u, 1.0f - near); }
    __device__ __forceinline__ float times_power(float x) const {
      return bit_cast<float>(bit_cast<uint32_t>(x) + (bit_cast<uint32_t>(at.shifted) << Parts::kMantissa));
    }
  };
  __device__ __forceinline__ Exp parts(float x) const {
    const Apart at = apart(x);
    const float u = fused(at.r, exp_tail(at.r), 1.0f);
    return {fused(at.r, u, 1.0f), u, at};
  }
  __device__ __forceinline__ float exp(float x) const { return parts(x).value(); }
  // With its rest: 1 + r is split in two.
  __device__ __forceinline__ WithRest<float> own_exp(float x) const {
    const Apart at = apart(x);
    const float near = 1.0f + at.whole, lost = fused(at.k, -Parts::ln2_rest, at.whole - (near - 1.0f));
    const float power = bit_cast<float>((bit_cast<uint32_t>(at.shifted) + 127u) << Parts::kMantissa);
    const float tail = fused(at.r * at.r, exp_tail(at.r), lost), head = power * near, value = fused(power, tail, head);
    return {value, fused(power, tail, head - value)};
  }
  // Adds to a sum what its term exp(x) lacks: in a row that is nearly one class, this is all of its rounding error.
  __device__ __forceinline__ WithRest<float> mended(WithRest<float> sum, float x) const {
    const Exp e = parts(x);
    const WithRest<float> exact = own_exp(x);
    sum.rest += (exact.value - e.value()) + fused(e.times_power(-1.0f), e.rest(), exact.rest);
    return sum;
  }
  // The reference minus x, in logarithms.
  __device__ __forceinline__ static WithRest<float> above(float x, Reference reference) {
    WithRest<float> power = product_of(reference.power, Parts::ln2);
    power.rest = fused(reference.power, Parts::ln2_rest, power.rest);
    return difference_of(power, difference_of(x, reference.shift));
  }

  // Starts above every term, so that two more operations find the rounding error of an addition.
  struct Sum {
    static constexpr float kStart = 0x1.8p41f;
    float sum = kStart, rest = 0.0f;
    // Adds exp(x) and returns it. add_own: nearly exact, so that the sum needs no mending. Without the rests of exp
    // gradients were up to 2.07 ulp off.
    __device__ __forceinline__ float add_own(const Elements& elements, float x) {
      const WithRest<float> e = elements.own_exp(x);
      rest += e.rest;
      add_term(e.value);
      return e.value;
    }
    __device__ __forceinline__ float add(const Elements& elements, float x) {
      const Exp e = elements.parts(x);
      rest = fused(e.times_power(1.0f), e.rest(), rest);
      add_term(e.value());
      return e.value();
    }
    __device__ __forceinline__ void add_term(float e) {
      const float next = sum + e, added = next - sum;
      rest += e - added;
      sum = next;
    }
    __device__ __forceinline__ void scale(float by) {
      const float scaled = (sum - kStart) * by, next = kStart + scaled;
      rest = fused(rest, by, scaled - (next - kStart));
      sum = next;
    }
    __device__ __forceinline__ WithRest<float> total() const { return {sum - kStart, rest}; }
  };
};

template <class E>
struct HalfElements {
  using T = FastFloat;
  static constexpr float kBack = 1.0f;

  float minus_power;
  __device__ __forceinline__ explicit HalfElements(float power) : minus_power(-power) {}

  __device__ __forceinline__ float exp(float x) const {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fused(x, ExpParts<float>::log2_e, minus_power)));
    return e;
  }
  __device__ __forceinline__ float own_exp(float x) const { return exp(x); }
  __device__ __forceinline__ float mended(float sum, float) const { return sum; }
  // Rounded as in exp.
  __device__ __forceinline__ static float above(float x, Reference reference) {
    return fused(x - reference.shift, ExpParts<float>::log2_e, -reference.power) * -0x1.62e430p-1f;
  }

  struct Sum {
    float sum = 0.0f;
    __device__ __forceinline__ float add(const HalfElements& elements, float x) {
      const float e = elements.exp(x);
      sum += e;
      return e;
    }
    __device__ __forceinline__ float add_own(const HalfElements& elements, float x) { return add(elements, x); }
    __device__ __forceinline__ void add_term(float e) { sum += e; }
    __device__ __forceinline__ void scale(float by) { sum *= by; }
    __device__ __forceinline__ float total() const { return sum; }
  };
};
template <>
struct Elements<Half> : HalfElements<Half> {
  using HalfElements<Half>::HalfElements;
};
template <>
struct Elements<BFloat16> : HalfElements<BFloat16> {
  using HalfElements<BFloat16>::HalfElements;
};

__device__ __forceinline__ float far_ratio(Reference from, Reference to) {
  using Parts = ExpParts<float>;
  if (from.power < -kUsualLogit) return 0.0f;  // only if all are -inf
  const WithRest<float> shift = difference_of(from.shift, to.shift);
  const float power = from.power - to.power, rest = fused(power, Parts::ln2_rest, shift.rest);
  return Elements<float>(0.0f).exp(fused(power, Parts::ln2, shift.value) + rest) * Parts::small;
}
// The factor that brings a sum to a reference that is not below its own; down to 2^-149, which is subnormal.
__device__ __forceinline__ float ratio_of(Reference from, Reference to) {
  if (from.shift != to.shift) return far_ratio(from, to);
  constexpr float kMagic = 0x1.8p23f + 127.0f + 64.0f;
  return bit_cast<float>(bit_cast<uint32_t>(fmaxf(from.power - to.power, -127.0f - 64.0f) + kMagic) << 23) * 0x1p-64f;
}

template <class E>
using RowNumber = Number<typename Elements<E>::T>;

}  // namespace cudaloss::cuda
