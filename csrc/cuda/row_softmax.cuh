// The exponentials of a row in float arithmetic, their sums, and what comes of these.
//
// exp(x) is taken as exp(x - shift) / 2^power, so that the largest is about 1. There is no shift as a rule: x - k
// log(2) is exact then, where x - max would be rounded, and sums that differ in their powers alone are brought together
// exactly.
#pragma once

#include "core/softmax.h"
#include "cuda/accessor.cuh"

namespace cudaloss::cuda {

// Beyond it floats are 1/8 apart: the shift is the maximum, beside which no difference that matters is rounded.
constexpr float kUsualLogit = 0x1p20f;

__device__ __forceinline__ float max_or_nan(float a, float b) {
#if __CUDA_ARCH__ >= 800
  float result;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(result) : "f"(a), "f"(b));
  return result;
#else
  return a != a ? a : b > a || b != b ? b : a;
#endif
}

struct Reference {
  float shift, power;
};
__device__ __forceinline__ Reference reference_of(float max) {
  const bool is_usual = fabsf(max) <= kUsualLogit || max == -INFINITY;
  const float taken = select(is_usual, fmaxf(max, -kUsualLogit), 0.0f);
  return {select(is_usual, 0.0f, max), rintf(taken * ExpParts<float>::log2_e)};
}
static __device__ __noinline__ float far_ratio(Reference from, Reference to) {
  if (from.power < -kUsualLogit) return 0.0f;  // of -inf alone
  return static_cast<float>(
      exp((double{from.shift} - to.shift) + (double{from.power} - to.power) * 0x1.62e42fefa39efp-1));
}
// What a sum is multiplied by for a reference that is not below its own.
__device__ __forceinline__ float ratio_of(Reference from, Reference to) {
  if (from.shift != to.shift) return far_ratio(from, to);
  const float k = from.power - to.power;
  return select(k < -126.0f, 0.0f, bit_cast<float>((static_cast<int32_t>(k) + 127) << 23));
}

__device__ __forceinline__ float plus(float a, float b) { return a + b; }
__device__ __forceinline__ WithRest<float> plus(WithRest<float> a, WithRest<float> b) {
  const float sum = a.value + b.value, added = sum - a.value;
  return {sum, (a.rest + b.rest) + ((a.value - (sum - added)) + (b.value - added))};
}

// ---- elements ----------------------------------------------------------------------------------------------

// How a row's elements are read and made exponentials.
template <class E>
struct Elements;

// exp is lifted by 2^40: it is exact to about an ulp down to exp(-115).
template <>
struct Elements<float> {
  using T = FloatFloat;
  static constexpr float kBack = ExpParts<float>::small;

  float magic, least;
  __device__ __forceinline__ explicit Elements(Reference reference)
      : magic(ExpParts<float>::magic - reference.power), least((reference.power - 165.0f) * ExpParts<float>::ln2) {}

  // exp(x) = power * tail + head. 1 + r is split in two, so that the sum is the one rounding that counts: a gradient
  // has those of its exp, of the row's sum and its own, and 2 ulp are allowed.
  struct Exp {
    float power, tail, head;
    __device__ __forceinline__ float value() const { return fused(power, tail, head); }
  };
  __device__ __forceinline__ Exp parts(float x) const {
    using Parts = ExpParts<float>;
    const float taken = max_or_nan(x, least), shifted = fused(taken, Parts::log2_e, magic), k = shifted - magic;
    const float whole = fused(k, -Parts::ln2, taken), r = fused(k, -Parts::ln2_rest, whole), near = 1.0f + whole;
    const float lost = fused(k, -Parts::ln2_rest, whole - (near - 1.0f));
    const float power = bit_cast<float>(bit_cast<uint32_t>(shifted) << Parts::kMantissa);
    return {power, fused(r * r, exp_tail(r), lost), power * near};
  }
  __device__ __forceinline__ float exp(float x) const { return parts(x).value(); }
  __device__ __forceinline__ WithRest<float> own_exp(float x) const {
    const Exp e = parts(x);
    const float value = e.value();
    return {value, fused(e.power, e.tail, e.head - value)};
  }
  // What lies between the reference and x, in logarithms.
  __device__ __forceinline__ static WithRest<float> above(float x, Reference reference) {
    WithRest<float> power = product_of(reference.power, ExpParts<float>::ln2);
    power.rest = fused(reference.power, ExpParts<float>::ln2_rest, power.rest);
    return difference_of(power, difference_of(x, reference.shift));
  }

  // Starts beyond every term, so that four additions keep all that is rounded away, of exp(x) too.
  struct Sum {
    static constexpr float kStart = 0x1.8p41f;
    float sum = kStart, rest = 0.0f;
    // exp(x), which is added, or 0 in its place.
    __device__ __forceinline__ float add(const Elements& elements, float x) {
      const Exp e = elements.parts(x);
      const float value = e.value(), next = sum + value, added = next - sum;
      rest += fused(e.power, e.tail, e.head - added);
      sum = next;
      return value;
    }
    __device__ __forceinline__ void scale(float by) {
      sum = kStart + (sum - kStart) * by;
      rest *= by;
    }
    __device__ __forceinline__ WithRest<float> total() const { return {sum - kStart, rest}; }
  };
};

template <class E>
struct HalfElements {
  using T = FastFloat;
  static constexpr float kBack = 1.0f;

  float minus_power;
  __device__ __forceinline__ explicit HalfElements(Reference reference) : minus_power(-reference.power) {}

  __device__ __forceinline__ float exp(float x) const {
    float e;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(e) : "f"(fused(x, ExpParts<float>::log2_e, minus_power)));
    return e;
  }
  __device__ __forceinline__ float own_exp(float x) const { return exp(x); }
  // As rounded as in exp.
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

template <class E>
using RowNumber = Number<typename Elements<E>::T>;

// ---- a row -------------------------------------------------------------------------------------------------

// Of the classes but the target's the maximum, and the sum of exp(x) in the reference of that; of all what a smoothing
// sums up. Beside a maximum that is the target's the others could be too small for the sum to keep their digits.
template <class E>
struct RowSums {
  float max;
  RowNumber<E> others;
  float below;
};

__device__ __forceinline__ WithRest<float> times_power(WithRest<float> x, float power) { return scaled(x, power); }
__device__ __forceinline__ float times_power(float x, float power) { return x * power; }

// log(x) of an x between 1/4 and the largest number.
__device__ __forceinline__ WithRest<float> log_of_usual(WithRest<float> x) {
  const Apart<float> a = apart(x.value);
  return log_of(a.k, fused(x.rest, a.power, a.f));
}
__device__ __forceinline__ WithRest<float> log_of_sum(bool of_more, WithRest<float> all, WithRest<float> quotient) {
  return log_of_usual(select(of_more, sum_of(WithRest<float>{1.0f, 0.0f}, quotient), all));
}
__device__ __forceinline__ float log_of_sum(bool of_more, float all, float quotient) {
  return fast_log(select(of_more, 1.0f + quotient, all), select(of_more, quotient, all - 1.0f));
}

// A row against its target's logit, which may be any.
template <class E>
struct RowSoftmax {
  using N = RowNumber<E>;
  Reference reference;  // of all
  float ratio;          // of the others' reference to it
  N others, own, all;   // sums of exp, lifted
  float target, inverse;
  bool is_nan;

  __device__ __forceinline__ RowSoftmax(const RowSums<E>& sums, Reference of_others, float target) : target(target) {
    const float max = max_or_nan(sums.max, target);
    is_nan = !(fabsf(max) <= FLT_MAX);
    reference = reference_of(max);
    ratio = ratio_of(of_others, reference);
    others = times_power(sums.others, ratio);
    own = Elements<E>(reference).own_exp(target - reference.shift);
    const bool is_more = value_of(others) > value_of(own);
    all = sum_of(select(is_more, others, own), select(is_more, own, others));
    inverse = reciprocal_of(value_of(all));
  }

  // The loss: log(all) less the target's logit; and log(all).
  __device__ __forceinline__ void take_logarithms(N& loss, float& log_all) const {
    const bool is_more = value_of(others) > value_of(own);
    const N quotient = quotient_of(others, own, reciprocal_of(value_of(own)));
    const N log = log_of_sum(!is_more, times_power(all, Elements<E>::kBack), quotient);
    const N above = Elements<E>::above(target, reference);
    const bool is_above = value_of(above) > value_of(log);
    const N both = sum_of(select(is_above, above, log), select(is_above, log, above));
    loss = select(is_more, both, log);
    // The value of a logarithm alone is coarse.
    log_all =
        is_more ? fused(reference.power, ExpParts<float>::ln2, reference.shift) + rounded(log) : target + rounded(log);
  }
};

// What a row's gradients are made of: exp(x), as it stands in registers, and this.
struct Gain {
  float hi, lo, share, at_target;
  float before;  // what exp(x) is multiplied by first, a power of two: products with `hi` would leave the range

  __device__ __forceinline__ float times(float e) const { return fused(e, hi, fused(e, lo, -share)); }
  // For an exp(x) in another reference, so many times larger.
  __device__ __forceinline__ Gain in_reference(float ratio) const {
    Gain gain = *this;
    const bool is_far = ratio < 0x1p-20f;
    gain.before *= select(is_far, ratio, 1.0f);
    gain.hi *= select(is_far, 1.0f, ratio);
    gain.lo *= select(is_far, 1.0f, ratio);
    return gain;
  }
};
template <class E>
__device__ __forceinline__ Gain gain_of(WithRest<float> of_exp, float share, float at_target) {
  const bool is_small = absolute(of_exp.value) < 0x1p-80f;
  const float by = select(is_small, 1.0f / Elements<E>::kBack, 1.0f);
  return {of_exp.value * by, of_exp.rest * by, share, at_target, select(is_small, Elements<E>::kBack, 1.0f)};
}
template <class E>
__device__ __forceinline__ Gain gain_of(float of_exp, float share, float at_target) {
  return {of_exp, 0.0f, share, at_target, 1.0f};
}

template <class E>
struct RowResult {
  RowNumber<E> loss;
  Gain gain;
};

// The row's loss, where it or its logarithm is wanted, and its gradients times `factor`. Of the sums `below` is that of
// the target's logit, or 0 where that is -inf, less each of the row; wanted where the loss says so.
template <class E, class Loss>
__device__ __forceinline__ RowResult<E> finished(const typename Loss::InFloat& loss, const RowSums<E>& sums,
                                                 Reference of_others, float target, float class_weight,
                                                 Constant<float> factor, bool wants_loss) {
  using N = RowNumber<E>;
  const RowSoftmax<E> softmax(sums, of_others, target);
  N plain = {};
  float log_all = 0.0f;
  if (wants_loss || loss.z_loss != 0.0f) softmax.take_logarithms(plain, log_all);
  const auto row = loss.factors(plain, log_all, target, sums.below, class_weight);
  const N of_exp = quotient_of(number_of<N>(factor) * row.of_all, softmax.all, softmax.inverse);
  const float from_others = rounded(of_exp * softmax.others);
  if (softmax.is_nan) return {number_of<N>({NAN, 0.0f}), {NAN, 0.0f, 0.0f, NAN, 1.0f}};
  const Gain gain = gain_of<E>(of_exp, factor.hi * row.share, fused(factor.hi, row.at_target, -from_others));
  return {row.loss, gain.in_reference(softmax.ratio)};
}

// A row that does not count, or whose target is no class.
template <class E>
__device__ __forceinline__ RowResult<E> finished_without(bool counts) {
  const float nothing = counts ? NAN : 0.0f;
  return {number_of<RowNumber<E>>({nothing, 0.0f}), {nothing, 0.0f, 0.0f, nothing, 1.0f}};
}

__device__ __forceinline__ double as_double(WithRest<float> x) {
  return cudaloss::as_double(FloatFloat{x.value, x.rest});
}
__device__ __forceinline__ double as_double(float x) { return x; }

// ---- sums over the lanes of a row ---------------------------------------------------------------------------

template <int kLanes>
__device__ __forceinline__ float max_over(float x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    x = max_or_nan(x, __shfl_xor_sync(~0u, x, distance));
  }
  return x;
}
__device__ __forceinline__ float shuffled(float x, int distance) { return __shfl_xor_sync(~0u, x, distance); }
__device__ __forceinline__ WithRest<float> shuffled(WithRest<float> x, int distance) {
  return {shuffled(x.value, distance), shuffled(x.rest, distance)};
}
template <int kLanes, class N>
__device__ __forceinline__ N sum_over(N x) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) x = plus(x, shuffled(x, distance));
  return x;
}

}  // namespace cudaloss::cuda
