// A thread's part of a row of contiguous classes, in registers: its largest logit, exponentials, sums, gradients.
#pragma once

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

constexpr int kRowVectors = 8;  // of a thread, if it has one tile

// How many lanes have a row: kLanes, all of a block if that is more than a warp; or, if kLanes is 0, a part of a warp
// that the host chooses.
template <int kLanes>
struct RowLanes {
  int shift;  // the log2 of the number, if kLanes is 0

  CUDALOSS_INLINE int log2() const { return kLanes ? log2_of(kLanes) : shift; }
  CUDALOSS_INLINE int count() const { return 1 << log2(); }
  CUDALOSS_INLINE int of_warp() const { return min(count(), 32); }
};

// The sums of a thread's classes, in the reference of their own maximum; then those of a row's threads.
template <class E>
struct PartSums {
  float max, below;
  RowNumber<E> others;
};

// The classes' own shares of a row, read as vectors beside the logits.
template <class E>
struct ShareReader {
  static constexpr int n = RowSpan<E>::kVector;
  using N = RowNumber<E>;
  const E* target;  // its probabilities; null: an index
  const float* weight;
  ShareOfClass of_class;

  __device__ __forceinline__ void read(int32_t j, N (&share)[n]) const {
    if (target) {
      const auto q = bit_cast<Vector<E, n>>(__ldca(reinterpret_cast<const uint4*>(target + j)));
#pragma unroll
      for (int k = 0; k < n; ++k) share[k] = of_class.of<N>(widen<float>(q.element[k]));
    } else {
#pragma unroll
      for (int k = 0; k < n; ++k) share[k] = of_class.of_index<N>();
    }
    if (!weight) return;
#pragma unroll
    for (int k = 0; k < n; k += 4) {
      const auto w = bit_cast<Vector<float, 4>>(__ldca(reinterpret_cast<const uint4*>(weight + j + k)));
#pragma unroll
      for (int i = 0; i < 4; ++i) share[k + i] = share[k + i] * number_of<N>({w.element[i], 0.0f});
    }
  }
};

// A thread's vectors of a tile: n classes each, as many vectors apart as the row has lanes.
template <class E, int kLanes, int kVectors>
struct RowTile {
  static constexpr int n = RowSpan<E>::kVector;
  static constexpr bool kKeepsExp = sizeof(E) == sizeof(float);  // halves compute exp again, which is cheap
  // The largest fp16 number is below kUsualLogit. So its shift is +inf or NaN, and the row's results are NaN whatever
  // exp is.
  static constexpr bool kCanShift = !std::is_same_v<E, Half>;
  static_assert(kCanShift || kUsualLogit >= 65504.0f);
  using V = typename RowSpan<E>::V;
  using N = RowNumber<E>;
  V v[kVectors];
  int shift;  // the log2 of the classes from one vector to the next

  __device__ __forceinline__ explicit RowTile(const RowLanes<kLanes>& lanes) : shift(lanes.log2() + log2_of(n)) {}
  __device__ __forceinline__ int32_t step() const { return 1 << shift; }
  __device__ __forceinline__ int32_t size() const { return kVectors * step(); }

  template <bool kStreams>
  __device__ __forceinline__ void store(const RowSpan<E>& span, int32_t from) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (span.is_whole(i, from, shift)) span.template put<kStreams>(from + (i << shift), v[i]);
    }
    span.template each_part<kVectors>(from, shift, [&](int i) { span.put_part(from + (i << shift), v[i]); });
  }
  // `count`: how many vectors have classes, in some thread of the row.
  template <class Visit>
  __device__ __forceinline__ void each(int count, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i > 0 && i >= count) break;
#pragma unroll
      for (int k = 0; k < n; ++k) visit(i * step() + k, v[i].element[k]);
    }
  }
  __device__ __forceinline__ float max(int count, float max) const {
    auto of_vectors = max_of(v[0], v[0]);
#pragma unroll
    for (int i = 1; i < kVectors; ++i) {
      if (i >= count) break;
      of_vectors = max_of(of_vectors, v[i]);
    }
    return max_in(of_vectors, max);
  }
  // A logit and its slope, as the row has them.
  __device__ __forceinline__ static float logit(E x) { return widen<float>(x); }
  __device__ __forceinline__ static float slope_at(int32_t) { return 1.0f; }
  __device__ __forceinline__ static float rest_at(int32_t) { return 0.0f; }
  // The class `at` places after the thread's first becomes -inf, if the thread has it.
  __device__ __forceinline__ void hide(int32_t at) {
    if (static_cast<uint32_t>(at) >= static_cast<uint32_t>(size()) || (at & (step() - 1)) >= n) return;
    constexpr bool kPair = sizeof(E) < 4;
    const uint32_t slot = at % n, word = kPair ? slot / 2 : slot;
    constexpr E kHidden = kMinusInfinity<E>;
    const uint32_t bits = bit_cast<BitsOf<E>>(kHidden);
    const uint32_t put = kPair && slot % 2 ? bits << 16 : bits, kept = !kPair ? 0 : slot % 2 ? 0xffffu : 0xffff0000u;
    visit_at<0, kVectors>(at >> shift, [&](int i) {
      uint4 words = bit_cast<uint4>(v[i]);
      words.x = select(word == 0, words.x & kept | put, words.x);
      words.y = select(word == 1, words.y & kept | put, words.y);
      words.z = select(word == 2, words.z & kept | put, words.z);
      words.w = select(word == 3, words.w & kept | put, words.w);
      v[i] = bit_cast<V>(words);
    });
  }

  // Brings the sums to the reference of a larger maximum.
  __device__ __forceinline__ static void raise(float max, bool is_first, PartSums<E>& part, Reference& own,
                                               typename Elements<E>::Sum& of_exp) {
    if (!is_first && max <= part.max) return;
    const Reference higher = reference_of(max);
    if (!is_first) of_exp.scale(ratio_of(own, higher));
    part.max = max;
    own = higher;
  }
  // The sum of (base - x) over the classes, which lie from `from` on.
  __device__ __forceinline__ float below(int count, const RowSpan<E>& span, int32_t from, float base) {
    float sum = 0.0f;
    each(count, [&](int j, E x) { sum += select(span.has(from + j), base - logit(x), 0.0f); });
    return sum;
  }
  // Adds the classes to the sums. keeps: exp replaces the logits, for gradients, and the sum is as precise. Otherwise
  // its terms lack their rests, except each thread's largest, in 4 instructions a class in place of 8.
  __device__ __forceinline__ void take(int count, bool is_first, bool keeps, PartSums<E>& part, Reference& own,
                                       typename Elements<E>::Sum& of_exp) {
    raise(this->max(count, part.max), is_first, part, own, of_exp);
    const Elements<E> elements(own.power);
    if (kCanShift && own.shift != 0.0f) {
      each(count, [&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x) - own.shift)); });
    } else if (kKeepsExp && !keeps) {
      each(count, [&](int, E& x) { of_exp.add_term(elements.exp(widen<float>(x))); });
    } else {
      each(count, [&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x))); });
    }
  }
  // The sum of all tiles. `mended` expects the rest of the thread's largest term in it.
  __device__ __forceinline__ static RowNumber<E> total(bool keeps, float max, Reference own,
                                                       const typename Elements<E>::Sum& of_exp) {
    RowNumber<E> sum = of_exp.total();
    if constexpr (kKeepsExp) {
      const auto e = Elements<E>(own.power).parts(max);
      if (!keeps && own.shift == 0.0f) sum.rest = fused(e.times_power(1.0f), e.rest(), sum.rest);
    }
    return sum;
  }
  __device__ __forceinline__ static void keep(float& x, float e) { x = e; }
  template <class Half>
  __device__ __forceinline__ static void keep(Half&, float) {}

  // The first class of a row with its largest logit; the row's first, if that is NaN.
  template <int kThreads>
  __device__ __forceinline__ int32_t largest(int count, int32_t from, int32_t classes, int lanes) {
    const float most =
        together<kThreads>(max(count, -INFINITY), lanes, [](float a, float b) { return max_or_nan(a, b); });
    int32_t at = classes;
    each(count, [&](int j, E x) { at = widen<float>(x) == most ? min(at, from + j) : at; });
    at = together<kThreads>(at, lanes, [](int32_t a, int32_t b) { return min(a, b); });
    return at < classes ? at : 0;
  }
  // Visits the thread's classes, from `from` on, with their shares: visit(j, element, share).
  template <class Visit>
  __device__ __forceinline__ void each_share(int count, const ShareReader<E>& reader, int32_t from, int32_t classes,
                                             const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + (i << shift);
      if (i >= count || j >= classes) break;
      N share[n];
      reader.read(j, share);
#pragma unroll
      for (int k = 0; k < n; ++k) visit(j + k, v[i].element[k], share[k]);
    }
  }
  __device__ __forceinline__ SharesOfRow<N> shares(int count, const ShareReader<E>& reader, int32_t from,
                                                   int32_t classes, int32_t target, float logit) {
    const float base = select(logit == -INFINITY, 0.0f, logit);
    SharesOfRow<N> sum = {};
    each_share(count, reader, from, classes, [&](int32_t j, E x, N share) {
      sum.below = plus(sum.below, share * number_of<N>({base - widen<float>(x), 0.0f}));
      sum.others = plus(sum.others, select(j == target, N{}, share));
      sum.own = select(j == target, rounded(share), sum.own);
    });
    return sum;
  }
  // Turns exp(x), or a half's logits, into gradients.
  __device__ __forceinline__ void to_gradients_with_shares(int count, const Gain& gain, Constant<float> factor,
                                                           Reference reference, const ShareReader<E>& reader,
                                                           int32_t from, int32_t classes) {
    const Elements<E> elements(reference.power);
    each_share(count, reader, from, classes, [&](int32_t, E& x, N share) {
      Gain own = gain;
      own.share = rounded_finite_product(share, factor);
      const float e = kKeepsExp ? widen<float>(x) : elements.exp(widen<float>(x) - reference.shift);
      x = narrow<E>(own.template times<E>(e * gain.before));
    });
  }

  // Turns logits into gradients; with kOfExp the tile holds exp(x) already.
  template <bool kOfExp>
  __device__ __forceinline__ void to_gradients(int count, const Gain& gain, Reference reference) {
    const Elements<E> elements(reference.power);
    if constexpr (kKeepsExp) {
      if (!kOfExp) each(count, [&](int, E& x) { x = elements.exp(x - reference.shift); });
      if (gain.before != 1.0f) each(count, [&](int, E& x) { x *= gain.before; });
      each(count, [&](int, E& x) { x = gain.template times<E>(x); });
    } else if (gain.before != 1.0f || (kCanShift && reference.shift != 0.0f)) {
      each(count, [&](int, E& x) {
        const float e = elements.exp(widen<float>(x) - reference.shift);
        x = narrow<E>(gain.template times<E>(e * gain.before));
      });
    } else {
      each(count, [&](int, E& x) { x = narrow<E>(gain.template times<E>(elements.exp(widen<float>(x)))); });
    }
  }
};

}  // namespace cudaloss::cuda
