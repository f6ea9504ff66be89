// A row of contiguous classes, as vectors of 16 bytes.
#pragma once

#include "cuda/row_parameters.cuh"
#include "cuda/row_softmax.cuh"

namespace cudaloss::cuda {

template <class E>
constexpr E kMinusInfinity = -INFINITY;
template <>
constexpr Half kMinusInfinity<Half> = {0xfc00};
template <>
constexpr BFloat16 kMinusInfinity<BFloat16> = {0xff80};
template <class E>
using BitsOf = std::conditional_t<sizeof(E) == 4, uint32_t, uint16_t>;

CUDALOSS_INLINE constexpr int log2_of(int power_of_two) {
  return power_of_two <= 1 ? 0 : 1 + log2_of(power_of_two / 2);
}

// Calls visit(i) for i = which, between kBegin and kEnd: registers have no index at run time.
template <int kBegin, int kEnd, class Visit>
__device__ __forceinline__ void visit_at(int which, const Visit& visit) {
  if constexpr (kEnd - kBegin == 1) {
    visit(kBegin);
  } else {
    constexpr int kMiddle = (kBegin + kEnd) / 2;
    if (which < kMiddle) {
      visit_at<kBegin, kMiddle>(which, visit);
    } else {
      visit_at<kMiddle, kEnd>(which, visit);
    }
  }
}
// v becomes `found` if it takes it. For each of several vectors, in place of an index at run time.
template <class V>
__device__ __forceinline__ void take_if(bool takes, const V& found, V& v) {
  const uint4 a = bit_cast<uint4>(found), b = bit_cast<uint4>(v);
  v = bit_cast<V>(
      uint4{select(takes, a.x, b.x), select(takes, a.y, b.y), select(takes, a.z, b.z), select(takes, a.w, b.w)});
}

template <class E>
struct RowSpan {
  static constexpr int kVector = kVectorBytes / sizeof(E);
  using V = Vector<E, kVector>;
  const E* input;
  E* gradient;  // null: not wanted
  int32_t classes;
  bool ragged;  // a vector can have elements of other rows

  // How many elements of the row's first 16 bytes are not its own.
  __device__ __forceinline__ int32_t skew() const {
    if (!ragged) return 0;
    return static_cast<int32_t>(reinterpret_cast<uintptr_t>(input) % kVectorBytes / sizeof(E));
  }
  __device__ __forceinline__ bool has(int32_t j) const {
    return static_cast<uint32_t>(j) < static_cast<uint32_t>(classes);
  }
  // Functions of CUDA load and store vectors: the compiler makes four accesses of some assignments under a condition.
  __device__ __forceinline__ V vector_at(int32_t j) const {
    return bit_cast<V>(__ldca(reinterpret_cast<const uint4*>(input + j)));
  }
  // How many classes follow the vector that begins at j; negative: it is not whole.
  __device__ __forceinline__ int32_t room(int32_t j) const { return classes - kVector - j; }
  // Whether vector i of those from class j on, 2^shift apart, is the row's alone.
  __device__ __forceinline__ bool is_whole(int i, int32_t j, int shift) const {
    return (i > 0 || j >= 0) && room(j) >= i << shift;
  }
  // Which of kVectors such vectors has the row's last classes without being whole; -1: none.
  template <int kVectors>
  __device__ __forceinline__ int32_t last_part(int32_t j, int shift) const {
    const int32_t end = classes - 1 - j, last = end >> shift;
    const bool is_part = end >= 0 && last < kVectors && (last > 0 || j >= 0) && room(j) < last << shift;
    return ragged && is_part ? last : -1;
  }
  // Whether vector 0 of these has something before the row.
  __device__ __forceinline__ bool is_first_part(int32_t j) const { return ragged && j < 0; }
  // Visits the vectors of a row's two ends that are not whole, in a copy of code for each.
  template <int kVectors, class Visit>
  __device__ __forceinline__ void each_part(int32_t j, int shift, const Visit& visit) const {
    if (!ragged) return;
    if (is_first_part(j)) visit(0);
    const int32_t last = last_part<kVectors>(j, shift);
    if (last >= 0) visit_at<0, kVectors>(last, visit);
  }
  // The vector at j, with `outside` for elements that are not the row's.
  __device__ __forceinline__ V part_at(int32_t j, E outside) const {
    V part;
#pragma unroll
    for (int k = 0; k < kVector; ++k) part.element[k] = has(j + k) ? input[j + k] : outside;
    return part;
  }
  // Whether all of these vectors from class j on, 2^shift classes apart, are the row's alone.
  template <int kVectors>
  __device__ __forceinline__ bool has_all(int32_t j, int shift) const {
    return j >= 0 && room(j) >= (kVectors - 1) << shift;
  }
  // All loads start before the first is used.
  template <int kVectors>
  __device__ __forceinline__ void load_all(int32_t j, int shift, V (&v)[kVectors]) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = vector_at(j + (i << shift));
  }
  // The same with `outside` outside the row.
  template <int kVectors>
  __device__ __forceinline__ void load_some(int32_t j, int shift, V (&v)[kVectors], E outside) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) v[i].element[k] = outside;
      if (is_whole(i, j, shift)) v[i] = vector_at(j + (i << shift));
    }
    if (is_first_part(j)) v[0] = part_at(j, outside);
    const int32_t last = last_part<kVectors>(j, shift);
    if (last < 0) return;
    const V part = part_at(j + (last << shift), outside);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) take_if(i == last, part, v[i]);
  }
  template <int kVectors>
  __device__ __forceinline__ void load(int32_t j, int shift, V (&v)[kVectors]) const {
    if (has_all<kVectors>(j, shift)) {
      load_all(j, shift, v);
    } else {
      load_some(j, shift, v, kMinusInfinity<E>);
    }
  }
  // kStreams: nothing reads it soon, so that logits that must be read again stay in the L2.
  template <bool kStreams>
  __device__ __forceinline__ void put(int32_t j, const V& v) const {
    uint4* const to = reinterpret_cast<uint4*>(gradient + j);
    if (kStreams) {
      __stcs(to, bit_cast<uint4>(v));
    } else {
      __stwb(to, bit_cast<uint4>(v));
    }
  }
  __device__ __forceinline__ void put_part(int32_t j, const V& v) const {
#pragma unroll
    for (int k = 0; k < kVector; ++k) {
      if (has(j + k)) gradient[j + k] = v.element[k];
    }
  }
};

template <class E, class P>
__device__ __forceinline__ RowSpan<E> span_of(const RowParameters<P>& p, const RowPlace& at, bool ragged) {
  E* const gradient = static_cast<E*>(p.grad_input.data);
  return {static_cast<const E*>(p.input.data) + offset(p, at, kInput),
          gradient ? gradient + offset(p, at, kResult) : nullptr, p.classes, ragged};
}

// The largest, or NaN; halves two at a time.
template <class E>
__device__ __forceinline__ uint32_t max_of_pairs(uint32_t a, uint32_t b) {
  uint32_t result = 0;
#if __CUDA_ARCH__ >= 800
  if constexpr (std::is_same_v<E, Half>) {
    asm("max.NaN.f16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  } else {
    asm("max.NaN.bf16x2 %0, %1, %2;" : "=r"(result) : "r"(a), "r"(b));
  }
#else
  for (int half = 0; half < 32; half += 16) {
    const E x = {static_cast<uint16_t>(a >> half)}, y = {static_cast<uint16_t>(b >> half)};
    const float large = widen<float>(x), other = widen<float>(y);
    result |= static_cast<uint32_t>((max_or_nan(large, other) == large || large != large ? x : y).bits) << half;
  }
#endif
  return result;
}
// The absolute values of a vector.
template <class V>
__device__ __forceinline__ V size_of(const V& v) {
  constexpr uint32_t kMask = sizeof(v.element[0]) == sizeof(float) ? 0x7fffffffu : 0x7fff7fffu;
  const uint4 words = bit_cast<uint4>(v);
  return bit_cast<V>(uint4{words.x & kMask, words.y & kMask, words.z & kMask, words.w & kMask});
}
// The larger ones of two vectors, and the largest in one.
__device__ __forceinline__ Vector<float, 4> max_of(const Vector<float, 4>& a, const Vector<float, 4>& b) {
  Vector<float, 4> max;
#pragma unroll
  for (int k = 0; k < 4; ++k) max.element[k] = max_or_nan(a.element[k], b.element[k]);
  return max;
}
template <class E>
__device__ __forceinline__ Vector<E, 8> max_of(const Vector<E, 8>& a, const Vector<E, 8>& b) {
  const uint4 x = bit_cast<uint4>(a), y = bit_cast<uint4>(b);
  return bit_cast<Vector<E, 8>>(uint4{max_of_pairs<E>(x.x, y.x), max_of_pairs<E>(x.y, y.y), max_of_pairs<E>(x.z, y.z),
                                      max_of_pairs<E>(x.w, y.w)});
}
__device__ __forceinline__ float max_in(const Vector<float, 4>& v, float max) {
#pragma unroll
  for (int k = 0; k < 4; ++k) max = max_or_nan(max, v.element[k]);
  return max;
}
template <class E>
__device__ __forceinline__ float max_in(const Vector<E, 8>& v, float max) {
  const uint4 words = bit_cast<uint4>(v);
  const uint32_t pair = max_of_pairs<E>(max_of_pairs<E>(words.x, words.y), max_of_pairs<E>(words.z, words.w));
  const E low = {static_cast<uint16_t>(pair)}, high = {static_cast<uint16_t>(pair >> 16)};
  return max_or_nan(max, max_or_nan(widen<float>(low), widen<float>(high)));
}

}  // namespace cudaloss::cuda
