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

  __device__ __forceinline__ float exp(float x) const {
    const ExpApart<float> apart = exp_apart(magic, max_or_nan(x, least));
    return fused(apart.power, exp_minus_1(apart.r), apart.power);
  }
  __device__ __forceinline__ WithRest<float> own_exp(float x) const { return exp_by(magic, max_or_nan(x, least)); }
  // What lies between the reference and x, in logarithms.
  __device__ __forceinline__ static WithRest<float> above(float x, Reference reference) {
    WithRest<float> power = product_of(reference.power, ExpParts<float>::ln2);
    power.rest = fused(reference.power, ExpParts<float>::ln2_rest, power.rest);
    return difference_of(power, difference_of(x, reference.shift));
  }

  // Starts beyond every term, so that four additions keep all that is rounded away.
  struct Sum {
    static constexpr float kStart = 0x1.8p41f;
    float sum = kStart, rest = 0.0f;
    __device__ __forceinline__ void add(float e) {
      const float next = sum + e;
      rest += e - (next - sum);
      sum = next;
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
    __device__ __forceinline__ void add(float e) { sum += e; }
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

// Of the classes but the target's.
template <class E>
struct Others {
  float max;
  RowNumber<E> sum;  // in the reference of max
};

__device__ __forceinline__ WithRest<float> times_power(WithRest<float> x, float power) { return scaled(x, power); }
__device__ __forceinline__ float times_power(float x, float power) { return x * power; }

// log(x) of an x about 1 or more; of 1 + x where `of_more`, of an x in [0, 1].
__device__ __forceinline__ WithRest<float> log_of_sum(WithRest<float> x, bool of_more) {
  const WithRest<float> more = sum_of(WithRest<float>{1.0f, 0.0f}, x);
  return log_of(select(of_more, more, x));
}
__device__ __forceinline__ float log_of_sum(float x, bool of_more) {
  return fast_log(select(of_more, 1.0f + x, x), select(of_more, x, x - 1.0f));
}

// A row against its target's logit, which may be any.
template <class E>
struct RowSoftmax {
  using N = RowNumber<E>;
  N loss;              // log of all, less the target's logit
  float log_all, own;  // log of all; the target's logit
  N of_one, of_rest;   // the part of a class whose exp is 1 in the reference of the others, not lifted; of all others
  bool is_nan;

  __device__ __forceinline__ RowSoftmax(const Others<E>& others, float target) : own(target) {
    const float max = max_or_nan(others.max, target);
    is_nan = !(fabsf(max) <= FLT_MAX);
    const Reference reference = reference_of(max), of_others = reference_of(others.max);
    const float ratio = ratio_of(of_others, reference);
    const N rest = times_power(others.sum, ratio), e = Elements<E>(reference).own_exp(target - reference.shift);
    const bool is_more = value_of(rest) > value_of(e);
    const N larger = select(is_more, rest, e), smaller = select(is_more, e, rest), all = sum_of(larger, smaller);
    const float inverse = reciprocal_of(value_of(all));
    const N quotient = quotient_of(smaller, larger, reciprocal_of(value_of(larger)));
    const N log = log_of_sum(select(is_more, times_power(all, Elements<E>::kBack), quotient), !is_more);
    const N above = Elements<E>::above(target, reference);
    const bool is_above = value_of(above) > value_of(log);
    const N both = sum_of(select(is_above, above, log), select(is_above, log, above));
    loss = select(is_more, both, log);
    // The value of a logarithm alone is coarse.
    log_all =
        is_more ? fused(reference.power, ExpParts<float>::ln2, reference.shift) + rounded(log) : target + rounded(log);
    of_rest = quotient_of(rest, all, inverse);
    of_one = times_power(quotient_of(number_of<N>({1.0f / Elements<E>::kBack, 0.0f}), all, inverse), ratio);
  }
};

// What a row's gradients are made of: exp(x), as it stands in registers, and this.
struct Gain {
  float hi, lo, share, at_target;
  bool unlifts;  // exp(x) is first brought back to what it is: products with `hi` would leave the range

  __device__ __forceinline__ float times(float e) const { return fused(e, hi, fused(e, lo, -share)); }
};
template <class E>
__device__ __forceinline__ Gain gain_of(WithRest<float> of_exp, float share, float at_target) {
  const bool unlifts = absolute(of_exp.value) < 0x1p-60f;
  const float by = select(unlifts, 1.0f, Elements<E>::kBack);
  return {of_exp.value * by, of_exp.rest * by, share, at_target, unlifts};
}
template <class E>
__device__ __forceinline__ Gain gain_of(float of_exp, float share, float at_target) {
  return {of_exp, 0.0f, share, at_target, false};
}

template <class E>
struct RowResult {
  RowNumber<E> loss;
  Gain gain;
};

// The row's loss, and its gradients times `factor`. below: the sum of the target's logit, or 0 where that is -inf, less
// each of the row; wanted where the loss says so.
template <class E, class Loss>
__device__ __forceinline__ RowResult<E> finished(const typename Loss::InFloat& loss, const Others<E>& others,
                                                 float target, float below, float class_weight,
                                                 Constant<float> factor) {
  using N = RowNumber<E>;
  const RowSoftmax<E> softmax(others, target);
  const auto row = loss.factors(softmax.loss, softmax.log_all, target, below, class_weight);
  const N scaled_all = number_of<N>(factor) * row.of_all;
  const float from_all = rounded(scaled_all * softmax.of_rest);
  const float nan = select(softmax.is_nan, NAN, 0.0f);
  RowResult<E> result = {row.loss, gain_of<E>(scaled_all * softmax.of_one, factor.hi * row.share,
                                              fused(factor.hi, row.at_target, nan - from_all))};
  if (softmax.is_nan) {
    result.gain.hi = NAN;
    result.loss = number_of<N>({NAN, 0.0f});
  }
  return result;
}

// A row that does not count, or whose target is no class.
template <class E>
__device__ __forceinline__ RowResult<E> finished_without(bool counts) {
  const float nothing = counts ? NAN : 0.0f;
  return {number_of<RowNumber<E>>({nothing, 0.0f}), {nothing, 0.0f, 0.0f, nothing, false}};
}

__device__ __forceinline__ double as_double(WithRest<float> x) {
  return cudaloss::as_double(FloatFloat{x.value, x.rest});
}
__device__ __forceinline__ double as_double(float x) { return x; }

// ---- reading and writing a row of classes that lie side by side ---------------------------------------------

template <class E>
struct RowSpan {
  static constexpr int kVector = kVectorBytes / sizeof(E);
  const E* input;
  E* gradient;  // null: not wanted
  int32_t classes;

  // The elements of the row's first 16 bytes that are not its own.
  __device__ __forceinline__ int32_t skew() const {
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(input) % kVectorBytes / sizeof(E));
  }
  __device__ __forceinline__ bool is_whole(int32_t j) const {
    return static_cast<uint32_t>(j) <= static_cast<uint32_t>(classes - kVector) && classes >= kVector;
  }
  // The vector from class j on; -inf beyond the row.
  __device__ __forceinline__ void load(int32_t j, float (&x)[kVector]) const {
    if (is_whole(j)) {
      const auto read = *reinterpret_cast<const Vector<E, kVector>*>(input + j);
#pragma unroll
      for (int k = 0; k < kVector; ++k) x[k] = widen<float>(read.element[k]);
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        const bool is_there = static_cast<uint32_t>(j + k) < static_cast<uint32_t>(classes);
        x[k] = is_there ? widen<float>(input[j + k]) : -INFINITY;
      }
    }
  }
  // Vectors `step` classes apart. All loads are begun before the first is looked at: those beyond the row read a vector
  // that is there, and then what is left of the row.
  template <int kVectors>
  __device__ __forceinline__ void load_all(int32_t from, int32_t step, float (&x)[kVectors][kVector]) const {
    if (classes < 2 * kVector) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) load(from + i * step, x[i]);
      return;
    }
    const int32_t first = (kVector - skew()) % kVector;
    Vector<E, kVector> read[kVectors];
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + i * step;
      read[i] = *reinterpret_cast<const Vector<E, kVector>*>(input + (is_whole(j) ? j : first));
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + i * step;
#pragma unroll
      for (int k = 0; k < kVector; ++k) x[i][k] = widen<float>(read[i].element[k]);
      if (!is_whole(j)) load(j, x[i]);
    }
  }
  template <bool kStreams>
  __device__ __forceinline__ void store(int32_t j, const float (&x)[kVector]) const {
    if (is_whole(j)) {
      Vector<E, kVector> out;
#pragma unroll
      for (int k = 0; k < kVector; ++k) out.element[k] = narrow<E>(x[k]);
      uint4* const to = reinterpret_cast<uint4*>(gradient + j);
      if (kStreams) {
        __stcs(to, bit_cast<uint4>(out));
      } else {
        *to = bit_cast<uint4>(out);
      }
    } else {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (static_cast<uint32_t>(j + k) < static_cast<uint32_t>(classes)) gradient[j + k] = narrow<E>(x[k]);
      }
    }
  }
};

template <class E, class P>
__device__ __forceinline__ RowSpan<E> span_of(const RowParameters<P>& p, const RowPlace& at) {
  E* const gradient = static_cast<E*>(p.grad_input.data);
  return {static_cast<const E*>(p.input.data) + offset(p, at, kInput),
          gradient ? gradient + offset(p, at, kFirst) : nullptr, p.classes};
}

// Element `at` of a vector, if it is there.
template <int N>
__device__ __forceinline__ void patch(float (&x)[N], int32_t at, float value) {
  if (static_cast<uint32_t>(at) >= N) return;
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = select(k == at, value, x[k]);
}

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
