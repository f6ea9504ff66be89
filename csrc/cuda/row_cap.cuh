// A tile of logits with a softcap: cap tanh(logit / cap) in place of each.
#pragma once

#include "cuda/row_tile.cuh"

namespace cudaloss::cuda {

// (tanh(v) / v - 1) / v^2 with m = v^2 up to 9/16, as minimax polynomials by Remez exchange: 2^-24.7 of it, for halves
// 2^-16. For -inf the last term makes the bent logit -inf too: so the tile's hidden class stays hidden.
template <class E>
__device__ __forceinline__ float tanh_tail(float m) {
  if constexpr (sizeof(E) < sizeof(float)) {
    return polynomial(m, -0x1.555424p-2f, 0x1.108886p-3f, -0x1.a667d8p-5f, 0x1.d64b5cp-7f);
  } else {
    return polynomial(m, -0x1.555554p-2f, 0x1.111042p-3f, -0x1.b9d7bap-5f, 0x1.6225a4p-6f, -0x1.03fb4ap-7f,
                      0x1.f49a16p-10f);
  }
}
__device__ __forceinline__ float fast_log2(float x) {
  float log;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(log) : "f"(x));
  return log;
}

// Usual logits are within 3/4 of the cap. So they need no exponential and no quotient, but 12 instructions (7 for
// halves) that round a small difference from the logit.
template <class E>
struct RowCap {
  float cap, inverse;

  __device__ __forceinline__ explicit RowCap(double softcap) : cap(static_cast<float>(softcap)), inverse(1.0f / cap) {}
  __device__ __forceinline__ bool is_usual(float size) const { return size <= 0.75f * cap; }
  // With its rest, which exp would turn into many last places; for halves 0. (A hidden class has no NaN as its rest.)
  __device__ __forceinline__ WithRest<float> usual(float x) const {
    const float v = x * inverse, m = v * v, tail = tanh_tail<E>(m), bent = fused(x * m, tail, x);
    return {bent, sizeof(E) < sizeof(float) ? 0.0f : fmaxf(fused(x * m, tail, x - bent), -1.0f)};
  }
  __device__ __forceinline__ float usual_slope(float bent) const {
    const float tanh = bent * inverse;
    return fused(-tanh, tanh, 1.0f);
  }
  // Of any logit.
  __device__ __forceinline__ Capped<float> of(float x) const {
    if (is_usual(absolute(x))) {
      const WithRest<float> bent = usual(x);
      return {bent.value, bent.rest, usual_slope(bent.value)};
    }
    const Capped<float> bent = capped(x, cap);
    const WithRest<float> taken = normalized(WithRest<float>{bent.value, bent.rest});
    return {taken.value, taken.rest, bent.slope};
  }
};
// With a larger cap exp makes the polynomial's error too large (34 ulp of a loss with 43); with a smaller one the slope
// from the logarithm of exp would be coarse.
constexpr double kLeastCap = 4.0, kMostCap = 36.0;

// Gradients must not overwrite logits: the target's, and those of far threads, are read again after others are stored.
template <class E, int kLanes, int kVectors>
struct CappedTile : RowTile<E, kLanes, kVectors> {
  using Base = RowTile<E, kLanes, kVectors>;
  using Base::each, Base::n, Base::shift, Base::v;
  RowCap<E> cap;
  RowSpan<E> span;
  int32_t begin, target;  // the tile's first class of the thread, and the row's target
  bool is_far = false;    // a logit is not usual: its thread then goes on alone, one class after another

  __device__ __forceinline__ CappedTile(const RowLanes<kLanes>& lanes, const RowCap<E>& cap) : Base(lanes), cap(cap) {}
  // Looks at a loaded tile.
  __device__ __forceinline__ void look(int count, const RowSpan<E>& of, int32_t from, int32_t target_class) {
    span = of;
    begin = from;
    target = target_class;
    float size = 0.0f;
    const int32_t room = span.room(begin);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i >= count || room < i << shift) break;
      if (i > 0 || begin >= 0) size = max_in(size_of(v[i]), size);
    }
    span.template each_part<kVectors>(begin, shift, [&](int i) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        if (span.has(begin + (i << shift) + k)) size = max_or_nan(size, absolute(widen<float>(v[i].element[k])));
      }
    });
    is_far = !cap.is_usual(size);
  }
  __device__ __forceinline__ float logit(E x) const { return cap.of(widen<float>(x)).value; }
  __device__ __forceinline__ float rest_at(int32_t j) const { return cap.of(widen<float>(span.input[j])).rest; }
  __device__ __forceinline__ float slope_at(int32_t j) const { return cap.of(widen<float>(span.input[j])).slope; }
  __device__ __forceinline__ static float exp(const Elements<E>& elements, WithRest<float> bent) {
    const float e = elements.exp(bent.value);
    return sizeof(E) < sizeof(float) ? e : fused(e, bent.rest, e);
  }

  // Of the logits that `look` has seen.
  __device__ __forceinline__ float below(int count, const RowSpan<E>&, int32_t, float base) {
    float sum = 0.0f;
    if (is_far) {
      each_alone(count, [&](int32_t, Capped<float> x) { sum += base - x.value; });
    } else {
      each(count,
           [&](int j, E x) { sum += select(span.has(begin + j), base - cap.usual(widen<float>(x)).value, 0.0f); });
    }
    return sum;
  }
  // Adds the classes to the sums.
  __device__ __forceinline__ void take(int count, bool is_first, bool, PartSums<E>& part, Reference& own,
                                       typename Elements<E>::Sum& of_exp) {
    float max = cap.usual(this->max(count, -INFINITY)).value;
    if (is_far) {
      max = -INFINITY;
      each_alone(count, [&](int32_t j, Capped<float> x) { max = j == target ? max : max_or_nan(max, x.value); });
    }
    this->raise(max_or_nan(part.max, max), is_first, part, own, of_exp);
    const Elements<E> elements(own.power);
    if (is_far) {
      each_alone(count, [&](int32_t j, Capped<float> x) {
        if (j != target) of_exp.add_term(exp(elements, {x.value, x.rest}));
      });
    } else {
      each(count, [&](int, E& x) {
        const float e = exp(elements, cap.usual(widen<float>(x)));
        of_exp.add_term(e);
        this->keep(x, e);
      });
    }
  }

  // Turns logits into gradients; with kOfExp the tile holds exp, from which the bent logit is found again. Its error is
  // lg2.approx's as it was measured on an H100 and an H200; PTX promises less.
  template <bool kOfExp>
  __device__ __forceinline__ void to_gradients(int count, const Gain& gain, Reference reference) {
    const Elements<E> elements(reference.power);
    if (is_far) {
      each_alone(count, [&](int32_t j, Capped<float> x) {
        const float e = exp(elements, {x.value, x.rest});
        span.gradient[j] = narrow<E>(gain.template times<E>(e * gain.before) * x.slope);
      });
    } else if constexpr (kOfExp) {
      const float of_log = cap.inverse * ExpParts<float>::ln2, power = (reference.power - Elements<E>::kLift) * of_log;
      each(count, [&](int, E& x) {
        const float tanh = fused(fast_log2(x), of_log, power);
        x = gain.template times<E>(x * gain.before) * fused(-tanh, tanh, 1.0f);
      });
    } else {
      each(count, [&](int, E& x) {
        const WithRest<float> bent = cap.usual(widen<float>(x));
        const float e = exp(elements, bent) * gain.before;
        x = narrow<E>(gain.template times<E>(e) * cap.usual_slope(bent.value));
      });
    }
  }
  template <bool kStreams>
  __device__ __forceinline__ void store(const RowSpan<E>& of, int32_t from) const {
    if (!is_far) Base::template store<kStreams>(of, from);
  }

 private:
  template <class Visit>
  __device__ __forceinline__ void each_alone(int count, const Visit& visit) const {
#pragma unroll 1
    for (int i = 0; i < count * n; ++i) {
      const int32_t j = begin + (i / n << shift) + i % n;
      if (span.has(j)) visit(j, cap.of(widen<float>(span.input[j])));
    }
  }
};

}  // namespace cudaloss::cuda
