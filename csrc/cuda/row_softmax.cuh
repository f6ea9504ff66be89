// A row's loss and the factors of its gradients, from the sums of its exponentials (row_exp.cuh).
#pragma once

#include "core/vocabulary_part.h"
#include "cuda/row_exp.cuh"

namespace cudaloss::cuda {

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

// Adds to the sum the error of its largest term.
template <class E, class Sums>
__device__ __forceinline__ void mend(Sums& sums) {
  const Reference reference = reference_of(sums.max);
  sums.others = Elements<E>(reference.power).mended(sums.others, sums.max - reference.shift);
}

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
    others = times_power(sums.others, ratio);
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

// log(1 + x) for x from 0 to 2^90.
__device__ __forceinline__ WithRest<float> log_of_one_plus(WithRest<float> x) {
  const WithRest<float> sum = plus(WithRest<float>{1.0f, 0.0f}, x);
  const Apart<float> a = apart_in_range(sum.value);
  return log_of(a.k, fused(sum.rest, a.power, a.f));
}
__device__ __forceinline__ float log_of_one_plus(float x) { return fast_log(1.0f + x, x); }

// A row without options, seen from its others' maximum: a usual logit, no more than kApart from the target's. So no sum
// leaves the range, and nothing must be guarded: a third of the instructions of RowSoftmax, for the same digits.
template <class E>
struct NearRow {
  using N = RowNumber<E>;
  static constexpr float kApart = 48.0f, kLeast = sizeof(E) < sizeof(float) ? 0.0f : 0x1p-118f;
  N others, own;  // sums of exp, in the others' reference

  __device__ __forceinline__ static bool is(float max, float target) {
    return fabsf(max) <= kUsualLogit && fabsf(target - max) <= kApart;  // and no NaN
  }
  __device__ __forceinline__ static Elements<E> elements(float max) {
    return Elements<E>(rintf(max * ExpParts<float>::log2_e));
  }
  __device__ __forceinline__ NearRow(const Elements<E>& elements, N others, float target)
      : others(others), own(elements.own_exp(target)) {}

  // False: the factors of the gradients are too small for products with exp.
  __device__ __forceinline__ bool take_gain(N factor, Gain& gain) const {
    const N all = plus(others, own), of_exp = quotient_of(factor, all, reciprocal_of(value_of(all)));
    gain = {value_of(of_exp), rest_of(of_exp), 0.0f, -rounded_finite(of_exp * others), 1.0f};
    return fabsf(gain.hi) >= kLeast;
  }
  __device__ __forceinline__ N loss() const {
    return log_of_one_plus(quotient_of(others, own, reciprocal_of(value_of(own))));
  }
};

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
// Its loss.
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
      : reference(reference_of(sums.max)), max(sums.max), others(sums.others) {}
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

// ---- any row -----------------------------------------------------------------------------------------------

// A row's loss, and the factors of its gradients for an incoming gradient of `factor`, where they are wanted.
template <class E, class Loss, class Sums>
__device__ __forceinline__ double finish_row(const Loss& loss, const Sums& sums, float target, float class_weight,
                                             Constant<float> factor, bool wants_loss, bool wants_gain, Gain& gain) {
  if constexpr (!kHasShares<Sums>) {
    if (loss.is_plain && NearRow<E>::is(sums.max, target)) {
      const NearRow<E> near(NearRow<E>::elements(sums.max), sums.others, target);
      const auto weight = number_of<RowNumber<E>>({class_weight, 0.0f});
      if (!wants_gain || near.take_gain(number_of<RowNumber<E>>(factor) * weight, gain)) {
        return wants_loss ? as_double(weight * near.loss()) : 0.0;
      }
    }
  }
  const auto softmax = softmax_of_row<E>(loss, sums, target);
  if (wants_gain) gain = gain_of_row<E>(loss, sums, softmax, class_weight, factor);
  return wants_loss ? loss_of_row<E>(loss, sums, softmax, class_weight) : 0.0;
}

// The result of a row that does not count, or whose target is not a class.
__device__ __forceinline__ float without_target(bool counts) { return counts ? NAN : 0.0f; }

// ---- sums over the lanes of a row ---------------------------------------------------------------------------

__device__ __forceinline__ float shuffled(float x, int distance) { return __shfl_xor_sync(~0u, x, distance); }
__device__ __forceinline__ WithRest<float> shuffled(WithRest<float> x, int distance) {
  return {shuffled(x.value, distance), shuffled(x.rest, distance)};
}
}  // namespace cudaloss::cuda
