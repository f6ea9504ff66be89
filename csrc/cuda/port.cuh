// How a thread of a general pass reads and writes N elements along a stride.
#pragma once

#include <cstdint>

#include "core/arith.h"
#include "core/pass.h"
#include "cuda/grid.h"
#include "cuda/memory.cuh"

namespace cudaloss::cuda {

// An element type known at run time only, read as F.
template <class F>
struct Any {};

template <class Element>
struct LoadedAs {
  using type = Element;
};
template <class F>
struct LoadedAs<Any<F>> {
  using type = F;
};
template <class Element>
using Loaded = typename LoadedAs<Element>::type;

template <int N, class Element>
__device__ __forceinline__ Vector<Element, N> load_each(const Element* data, int64_t stride, int length) {
  Vector<Element, N> out = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < length) out.element[i] = data[i * stride];
  }
  return out;
}

template <class Element>
struct Port {
  Element* data;  // null: not there
  Spacing spacing;

  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_whole(int64_t offset) const {
    return *reinterpret_cast<const Vector<Element, N>*>(data + offset);
  }
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load(int64_t offset, int length) const {
    if (spacing.whole && length == N) return load_whole<N>(offset);
    return load_each<N>(data + offset, spacing.stride, length);
  }
  template <int N, class F>
  __device__ __forceinline__ void store_whole(int64_t offset, const F (&value)[N]) const {
    if constexpr (!std::is_integral_v<Element>) {  // which have no gradient
      Vector<Element, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = narrow<Element>(value[i]);
      *reinterpret_cast<Vector<Element, N>*>(data + offset) = out;
    }
  }
  template <int N, class F>
  __device__ __forceinline__ void store(int64_t offset, int length, const F (&value)[N]) const {
    if (spacing.whole && length == N) return store_whole(offset, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (!std::is_integral_v<Element>) {
        if (i < length) data[offset + i * spacing.stride] = narrow<Element>(value[i]);
      }
    }
  }
};

template <class F>
struct Port<Any<F>> {
  void* data;
  Spacing spacing;
  DType dtype;

  template <int N>
  __device__ __forceinline__ Vector<F, N> load_whole(int64_t offset) const {
    return load<N>(offset, N);
  }
  template <int N>
  __device__ __forceinline__ Vector<F, N> load(int64_t offset, int length) const {
    Vector<F, N> out = {};
    dispatch_any(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      const auto read = load_each<N>(static_cast<const Element*>(data) + offset, spacing.stride, length);
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = widen<F>(read.element[i]);
    });
    return out;
  }
  template <int N, class Value>
  __device__ __forceinline__ void store_whole(int64_t offset, const Value (&value)[N]) const {
    store(offset, N, value);
  }
  template <int N, class Value>
  __device__ __forceinline__ void store(int64_t offset, int length, const Value (&value)[N]) const {
    dispatch(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      Port<Element>{static_cast<Element*>(data), spacing}.store(offset, length, value);
    });
  }
};

// Weights: of any floating dtype, and mostly the same for a whole vector, or for a whole launch.
template <class F>
struct Weights {
  const void* data;
  int64_t stride;
  DType dtype;

  template <int N>
  __device__ __forceinline__ void load(int64_t offset, int length, F (&out)[N]) const {
    dispatch(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      const Element* const from = static_cast<const Element*>(data) + offset;
      // Of one weight for all, the first is it: copies would have to wait for it.
      const auto each = load_each<N>(from, stride, stride == 0 ? 1 : length);
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] = widen<F>(each.element[i]);
    });
  }
};

// Bit i tells whether byte i selects its element.
template <int N>
__device__ __forceinline__ unsigned bits_of(const Vector<uint8_t, N>& bytes) {
  unsigned bits = 0;
#pragma unroll
  for (int i = 0; i < N; ++i) bits |= static_cast<unsigned>(bytes.element[i] != 0) << i;
  return bits;
}

// The bytes of a mask as they are; of one for all, the first.
template <int N>
__device__ __forceinline__ Vector<uint8_t, N> load_mask(const Port<uint8_t>& mask, int64_t offset, int length) {
  return mask.template load<N>(offset, mask.spacing.stride == 0 ? 1 : length);
}

// What they select of `length` elements.
template <int N>
__device__ __forceinline__ unsigned selected_by(const Port<uint8_t>& mask, const Vector<uint8_t, N>& bytes,
                                                int length) {
  const unsigned all = (1u << length) - 1;
  if (mask.spacing.stride == 0) return bytes.element[0] != 0 ? all : 0;
  return bits_of(bytes) & all;
}

}  // namespace cudaloss::cuda
