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

// A thread's vector, the elements [begin, begin + length): whole where all N of them are there and aligned.
template <int N>
struct Span {
  int64_t begin;
  int length;
  bool whole;
};

// Of the N elements from `begin`, those below `count`.
template <int N>
__device__ __forceinline__ Span<N> span_of(bool aligned, int64_t begin, int64_t count) {
  const int64_t left = count - begin;
  return {begin, static_cast<int>(left < N ? left : N), aligned && left >= N};
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
__device__ __forceinline__ Vector<Element, N> load(const Span<N>& span, Source<Element> source) {
  return span.whole ? source.template load<N>(span.begin) : source.template load_each<N>(span.begin, span.length);
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

// One branch around both loads: a branch at each would have the second wait for the first.
template <int N, class A, class B>
__device__ __forceinline__ Vectors<A, B, N> load(const Span<N>& span, Source<A> input, Source<B> target) {
  if (span.whole) return {input.template load<N>(span.begin), target.template load<N>(span.begin)};
  return {input.template load_each<N>(span.begin, span.length), target.template load_each<N>(span.begin, span.length)};
}

template <class Element>
struct Sink {
  Element* data;  // null: not wanted

  CUDALOSS_INLINE explicit Sink(const Result& result) : data(static_cast<Element*>(result.data)) {}

  template <class F, int N>
  __device__ __forceinline__ void store(const Span<N>& span, const F (&value)[N]) const {
    if (!data) return;
    Vector<Element, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.element[i] = narrow<Element>(value[i]);
    // Where not all is aligned it is the operands that are not: a fresh result is.
    if (span.whole || (span.length == N && reinterpret_cast<uintptr_t>(data + span.begin) % kVectorBytes == 0)) {
      *reinterpret_cast<Vector<Element, N>*>(data + span.begin) = out;
      return;
    }
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < span.length) data[span.begin + i] = out.element[i];
    }
  }
};

}  // namespace cudaloss::cuda
