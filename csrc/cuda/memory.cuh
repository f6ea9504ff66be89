// How a thread reads and writes its vector of consecutive elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>
#include <type_traits>

#include "core/arith.h"
#include "core/request.h"

namespace cudaloss::cuda {

constexpr int kVectorBytes = 16;

// Whether every operand allows whole vectors (a null pointer is no operand).
inline bool vector_aligned(std::initializer_list<const void*> pointers) {
  return std::all_of(pointers.begin(), pointers.end(),
                     [](const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % kVectorBytes == 0; });
}

// One 16-byte access for every 16 bytes; a shorter vector is one access of its own size.
template <class Element, int N>
struct alignas(N * sizeof(Element) < kVectorBytes ? N * sizeof(Element) : kVectorBytes) Vector {
  Element element[N];
};

// A thread's vector that is all there and aligned, and any other.
using Whole = std::true_type;
using InPieces = std::false_type;

// Calls body(Whole() or InPieces(), length) for the elements [begin, begin + N) below `count`; not at all where there
// are none. One branch around everything: a branch at each load would have it wait for the one before.
template <int N, class Body>
__device__ __forceinline__ void with_vector(bool aligned, int64_t begin, int64_t count, const Body& body) {
  const int64_t left = count - begin;
  if (aligned && left >= N) {
    body(Whole(), N);
  } else if (left > 0) {
    body(InPieces(), left < N ? static_cast<int>(left) : N);
  }
}

// An operand whose element type the kernel knows.
template <class Element>
struct Source {
  const Element* data;

  explicit Source(const Operand& operand) : data(static_cast<const Element*>(operand.data)) {}
  CUDALOSS_INLINE explicit Source(const Element* elements) : data(elements) {}

  template <int N>
  __device__ __forceinline__ Vector<Element, N> load(int64_t begin) const {
    return *reinterpret_cast<const Vector<Element, N>*>(data + begin);
  }

  // The same past the L1, which has no use for what each thread reads once.
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_past_l1(int64_t begin) const {
    constexpr int kParts = N * sizeof(Element) / kVectorBytes;  // operands fill whole accesses
    Vector<Element, N> out;
#pragma unroll
    for (int i = 0; i < kParts; ++i) {
      reinterpret_cast<uint4*>(&out)[i] = __ldcg(reinterpret_cast<const uint4*>(data + begin) + i);
    }
    return out;
  }

  // For the end of the data, and for a misaligned slice (x[1:]), whose narrow accesses share their cache lines with
  // those of the neighbouring lanes.
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_each(int64_t begin, int length) const {
    Vector<Element, N> out = {};
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < length) out.element[i] = data[begin + i];
    }
    return out;
  }
};

template <int N, class Element>
__device__ __forceinline__ Vector<Element, N> load(Whole, Source<Element> source, int64_t begin, int) {
  return source.template load<N>(begin);
}
template <int N, class Element>
__device__ __forceinline__ Vector<Element, N> load(InPieces, Source<Element> source, int64_t begin, int length) {
  return source.template load_each<N>(begin, length);
}

// The two operands of one thread's vector.
template <class A, class B, int N>
struct Vectors {
  Vector<A, N> a;
  Vector<B, N> b;

  template <class T>
  __device__ __forceinline__ T difference(int i) const {
    return Difference<T>::of(a.element[i], b.element[i]);
  }
};

template <int N, class A, class B>
__device__ __forceinline__ Vectors<A, B, N> load(Whole, Source<A> input, Source<B> target, int64_t begin, int) {
  return {input.template load<N>(begin), target.template load<N>(begin)};
}
template <int N, class A, class B>
__device__ __forceinline__ Vectors<A, B, N> load(InPieces, Source<A> input, Source<B> target, int64_t begin,
                                                 int length) {
  return {input.template load_each<N>(begin, length), target.template load_each<N>(begin, length)};
}

template <class Element>
struct Sink {
  Element* data;  // null: not wanted

  CUDALOSS_INLINE explicit Sink(const Result& result) : data(static_cast<Element*>(result.data)) {}

  template <class F, int N>
  __device__ __forceinline__ void store(Whole, int64_t begin, int, const F (&value)[N]) const {
    if (!data) return;
    Vector<Element, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.element[i] = narrow<Element>(value[i]);
    *reinterpret_cast<Vector<Element, N>*>(data + begin) = out;
  }

  template <class F, int N>
  __device__ __forceinline__ void store(InPieces, int64_t begin, int length, const F (&value)[N]) const {
    if (!data) return;
    // It was the operands that were not aligned: a fresh result is.
    if (length == N && reinterpret_cast<uintptr_t>(data + begin) % kVectorBytes == 0) {
      return store(Whole(), begin, length, value);
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < length) data[begin + i] = narrow<Element>(value[i]);
    }
  }
};

}  // namespace cudaloss::cuda
