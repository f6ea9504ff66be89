// How a thread reads and writes its vector of consecutive elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

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

// How many of a thread's N elements from `begin` lie below `count`.
template <int N>
__device__ __forceinline__ int vector_length(int64_t begin, int64_t count) {
  const int64_t left = count - begin;
  return left >= N ? N : left > 0 ? static_cast<int>(left) : 0;
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

// The two operands of one thread's vector.
template <class A, class B, int N>
struct Vectors {
  Vector<A, N> a;
  Vector<B, N> b;

  Vectors() = default;
  // `whole`: all N elements are there, and aligned.
  __device__ __forceinline__ Vectors(Source<A> input, Source<B> target, bool whole, int64_t begin, int length)
      : a(whole ? input.template load<N>(begin) : input.template load_each<N>(begin, length)),
        b(whole ? target.template load<N>(begin) : target.template load_each<N>(begin, length)) {}

  template <class T>
  __device__ __forceinline__ T difference(int i) const {
    return Difference<T>::of(a.element[i], b.element[i]);
  }
};

template <class Element>
struct Sink {
  Element* data;  // null: not wanted

  CUDALOSS_INLINE explicit Sink(const Result& result) : data(static_cast<Element*>(result.data)) {}

  template <class F, int N>
  __device__ __forceinline__ void store(int64_t begin, const F (&value)[N]) const {
    Vector<Element, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.element[i] = narrow<Element>(value[i]);
    *reinterpret_cast<Vector<Element, N>*>(data + begin) = out;
  }

  template <class F, int N>
  __device__ __forceinline__ void store_each(int64_t begin, int length, const F (&value)[N]) const {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < length) data[begin + i] = narrow<Element>(value[i]);
    }
  }

  template <class F, int N>
  __device__ __forceinline__ void store_wanted(bool whole, int64_t begin, int length, const F (&value)[N]) const {
    if (!data) return;
    whole ? store(begin, value) : store_each(begin, length, value);
  }
};

}  // namespace cudaloss::cuda
