// The exponentials of a row in float arithmetic, their sums, and the results from these.
//
// exp(x) is computed as exp(x - shift) / 2^power, so that the largest is about 1. Usually the shift is 0: then x - k
// log(2) is exact, while x - max would be rounded, and sums with different powers are joined exactly.
#pragma once

#include "core/softmax.h"
#include "core/vocabulary_part.h"
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

// ---- elements ----------------------------------------------------------------------------------------------

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
    // Adds exp(x) and returns it.
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
// The factor that brings a sum to a reference that is not below its own.
__device__ __forceinline__ float ratio_of(Reference from, Reference to) {
  if (from.shift != to.shift) return far_ratio(from, to);
  constexpr float kMagic = 0x1.8p23f + 127.0f;
  return bit_cast<float>(bit_cast<uint32_t>(fmaxf(from.power - to.power, -127.0f) + kMagic) << 23);
}

template <class E>
using RowNumber = Number<typename Elements<E>::T>;

// ---- a row -------------------------------------------------------------------------------------------------

// Over the classes except the target's: their maximum, and the sum of exp(x) in its reference. Over all classes, if the
// loss smooths: the sum of (the target's logit - x), with 0 in place of a target's logit of -inf. The reference
// excludes the target: beside a target that is the maximum, the others could be too small for the sum to keep their
// digits.
template <class E>
struct RowSums {
  float max;
  RowNumber<E> others;
  float below;
};

// The same with a share of each class's own: class weights with label smoothing, or probabilities.
template <class E>
struct SumsWithShares : RowSums<E> {
  SharesOfRow<RowNumber<E>> shares;
};

__device__ __forceinline__ WithRest<float> times_power(WithRest<float> x, float power) { return scaled(x, power); }
__device__ __forceinline__ float times_power(float x, float power) { return x * power; }

// log(x) for x between 1/4 and the largest number.
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

// A row and its target's logit, which can be any number.
template <class E>
struct RowSoftmax {
  using N = RowNumber<E>;
  Reference reference;  // of all classes
  float ratio;          // from the others' reference to it
  N others, own, all;   // sums of exp, lifted
  float target, inverse;
  bool is_nan;

  __device__ __forceinline__ RowSoftmax(const RowSums<E>& sums, float target) : target(target) {
    const float max = max_or_nan(sums.max, target);
    is_nan = !(fabsf(max) <= FLT_MAX);
    reference = reference_of(max);
    const Reference of_others = reference_of(sums.max);
    ratio = ratio_of(of_others, reference);
    others = Elements<E>(of_others.power).mended(sums.others, sums.max - of_others.shift);
    others = times_power(others, ratio);
    own = Elements<E>(reference.power).own_exp(target - reference.shift);
    const bool is_more = value_of(others) > value_of(own);
    all = sum_of(select(is_more, others, own), select(is_more, own, others));
    inverse = reciprocal_of(value_of(all));
  }

  // The loss: log(all) minus the target's logit; and log(all).
  __device__ __forceinline__ void take_logarithms(N& loss, float& log_all) const {
    const bool is_more = value_of(others) > value_of(own);
    const N quotient = quotient_of(others, own, reciprocal_of(value_of(own)));
    const N log = log_of_sum(!is_more, times_power(all, Elements<E>::kBack), quotient);
    const N above = Elements<E>::above(target, reference);
    const bool is_above = value_of(above) > value_of(log);
    const N both = sum_of(select(is_above, above, log), select(is_above, log, above));
    loss = select(is_more, both, log);
    // The value of a logarithm without its rest is coarse.
    const float from = fused(reference.power, ExpParts<float>::ln2, reference.shift);
    log_all = select(is_more, from, target) + rounded(log);
  }
};

// How to make a row's gradients from the exp(x) in registers.
struct Gain {
  float hi, lo, share, at_target;
  float before;  // a power of two, applied to exp(x) first if products with `hi` would leave the range

  // For halves `lo` is 0.
  template <class E>
  __device__ __forceinline__ float times(float e) const {
    return fused(e, hi, sizeof(E) < sizeof(float) ? -share : fused(e, lo, -share));
  }
  // For an exp(x) in another reference, larger by 1 / ratio.
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

template <class Sums>
constexpr bool kHasShares = false;
template <class E>
constexpr bool kHasShares<SumsWithShares<E>> = true;

template <class E, class Loss>
__device__ __forceinline__ RowSoftmax<E> softmax_of_row(const Loss&, const RowSums<E>& sums, float target) {
  return {sums, target};
}
// The factors of a row's gradients, for an incoming gradient of `factor`.
template <class E, class Loss, class Sums>
__device__ __forceinline__ Gain gain_of_row(const Loss& loss, const Sums& sums, const RowSoftmax<E>& softmax,
                                            float class_weight, Constant<float> factor) {
  using N = RowNumber<E>;
  float log_all = 0.0f;
  if (loss.z_loss != 0.0f) {
    N plain;
    softmax.take_logarithms(plain, log_all);
  }
  const auto row = [&] {
    if constexpr (kHasShares<Sums>) {
      return loss.factors(log_all, class_weight, sums.shares);
    } else {
      return loss.template factors<N>(log_all, class_weight);
    }
  }();
  const N of_exp = quotient_of(number_of<N>(factor) * row.of_all, softmax.all, softmax.inverse);
  const N from_others = of_exp * softmax.others;
  float at_target;
  if constexpr (kHasShares<Sums>) {  // the shares are as large as what they are added to
    at_target = rounded(gap_between(number_of<N>(factor) * row.at_target, from_others));
  } else {
    at_target = fused(factor.hi, rounded(row.at_target), -rounded(from_others));
  }
  const Gain gain = gain_of<E>(of_exp, factor.hi * row.share, at_target);
  const Gain not_a_number = {NAN, 0.0f, 0.0f, NAN, 1.0f};
  return softmax.is_nan ? not_a_number : gain.in_reference(softmax.ratio);
}
// Its loss. It is finished apart, when nothing waits for it.
template <class E, class Loss, class Sums>
__device__ __forceinline__ double loss_of_row(const Loss& loss, const Sums& sums, const RowSoftmax<E>& softmax,
                                              float class_weight) {
  RowNumber<E> plain;
  float log_all;
  softmax.take_logarithms(plain, log_all);
  RowNumber<E> found;
  if constexpr (kHasShares<Sums>) {
    found = loss.loss(plain, log_all, softmax.target, sums.shares, class_weight);
  } else {
    found = loss.loss(plain, log_all, softmax.target, sums.below, class_weight);
  }
  return softmax.is_nan ? double{NAN} : as_double(found);
}

// The same for a part of the classes: its loss depends on the others, and the target gets `grad_target`.
template <class E>
struct PartSoftmax {
  Reference reference;
  float max;
  RowNumber<E> others;

  __device__ __forceinline__ explicit PartSoftmax(const RowSums<E>& sums)
      : reference(reference_of(sums.max)),
        max(sums.max),
        others(Elements<E>(reference.power).mended(sums.others, sums.max - reference.shift)) {}
};
template <class E>
__device__ __forceinline__ PartSoftmax<E> softmax_of_row(const vocabulary_part::InFloat&, const RowSums<E>& sums,
                                                         float) {
  return PartSoftmax<E>(sums);
}
template <class E>
__device__ __forceinline__ Gain gain_of_row(const vocabulary_part::InFloat&, const RowSums<E>&,
                                            const PartSoftmax<E>& part, float grad_target, Constant<float> factor) {
  using N = RowNumber<E>;
  const N of_exp = quotient_of(number_of<N>(factor), part.others, reciprocal_of(value_of(part.others)));
  const Gain gain = gain_of<E>(of_exp, 0.0f, grad_target), zero = {0.0f, 0.0f, 0.0f, grad_target, 1.0f},
             not_a_number = {NAN, 0.0f, 0.0f, NAN, 1.0f};
  const bool is_nan = !(part.max <= FLT_MAX);
  return is_nan ? not_a_number : part.max == -INFINITY ? zero : gain;
}
template <class E>
__device__ __forceinline__ double loss_of_row(const vocabulary_part::InFloat&, const RowSums<E>&,
                                              const PartSoftmax<E>& part, float) {
  if (part.max == -INFINITY) return part.max;  // the sum of exp is then tiny, not 0
  if (!(part.max <= FLT_MAX)) return NAN;
  const double sum = as_double(part.others) * Elements<E>::kBack;
  return fused(double{part.reference.power}, ExpParts<double>::ln2, double{part.reference.shift}) +
         rounded(log_of(sum));
}

// The result of a row that does not count, or whose target is not a class.
__device__ __forceinline__ float without_target(bool counts) { return counts ? NAN : 0.0f; }

// ---- sums over the lanes of a row ---------------------------------------------------------------------------

__device__ __forceinline__ float shuffled(float x, int distance) { return __shfl_xor_sync(~0u, x, distance); }
__device__ __forceinline__ WithRest<float> shuffled(WithRest<float> x, int distance) {
  return {shuffled(x.value, distance), shuffled(x.rest, distance)};
}
}  // namespace cudaloss::cuda
