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
  __device__ __forceinline__ bool is_whole(int32_t j) const { return j >= 0 && j <= classes - kVector; }
  __device__ __forceinline__ bool is_part(int32_t j) const { return !is_whole(j) && j > -kVector && j < classes; }
  // The vectors from class j on, `step` classes apart; -inf outside the row. All loads start before the first is used.
  template <int kVectors>
  __device__ __forceinline__ void load(int32_t j, int32_t step, V (&v)[kVectors]) const {
    if (is_whole(j) && is_whole(j + (kVectors - 1) * step)) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) v[i] = *reinterpret_cast<const V*>(input + j + i * step);
      return;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) v[i].element[k] = kMinusInfinity<E>;
      if (is_whole(j + i * step)) v[i] = *reinterpret_cast<const V*>(input + j + i * step);
    }
    if (!ragged) return;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (!is_part(j + i * step)) continue;
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (has(j + i * step + k)) v[i].element[k] = input[j + i * step + k];
      }
    }
  }
  // kStreams: nothing reads it soon, so that logits that must be read again stay in the L2.
  template <bool kStreams>
  __device__ __forceinline__ void store_whole(int32_t j, const V& v) const {
    uint4* const to = reinterpret_cast<uint4*>(gradient + j);
    if (kStreams) {
      __stcs(to, bit_cast<uint4>(v));
    } else {
      *to = bit_cast<uint4>(v);
    }
  }
  template <bool kStreams>
  __device__ __forceinline__ void store(int32_t j, const V& v) const {
    if (is_whole(j)) {
      store_whole<kStreams>(j, v);
    } else if (ragged && is_part(j)) {
#pragma unroll
      for (int k = 0; k < kVector; ++k) {
        if (has(j + k)) gradient[j + k] = v.element[k];
      }
    }
  }
};

template <class E, class P>
__device__ __forceinline__ RowSpan<E> span_of(const RowParameters<P>& p, const RowPlace& at, bool ragged) {
  E* const gradient = static_cast<E*>(p.grad_input.data);
  return {static_cast<const E*>(p.input.data) + offset(p, at, kInput),
          gradient ? gradient + offset(p, at, kFirst) : nullptr, p.classes, ragged};
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
template <int kVectors>
__device__ __forceinline__ float max_in(const Vector<float, 4> (&v)[kVectors], float max) {
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
#pragma unroll
    for (int k = 0; k < 4; ++k) max = max_or_nan(max, v[i].element[k]);
  }
  return max;
}
template <class E, int kVectors>
__device__ __forceinline__ float max_in(const Vector<E, 8> (&v)[kVectors], float max) {
  uint32_t pair = bit_cast<uint4>(v[0]).x;
#pragma unroll
  for (int i = 0; i < kVectors; ++i) {
    const uint4 words = bit_cast<uint4>(v[i]);
    pair = max_of_pairs<E>(max_of_pairs<E>(pair, words.x), words.y);
    pair = max_of_pairs<E>(max_of_pairs<E>(pair, words.z), words.w);
  }
  const E low = {static_cast<uint16_t>(pair)}, high = {static_cast<uint16_t>(pair >> 16)};
  return max_or_nan(max, max_or_nan(widen<float>(low), widen<float>(high)));
}

}  // namespace cudaloss::cuda
