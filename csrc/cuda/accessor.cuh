// How a thread reads and writes its vector of N elements, side by side or along a stride. All kernels use it.
#pragma once

#include <cstdint>
#include <type_traits>

#include "core/arith.h"
#include "core/pass.h"
#include "cuda/partition.h"

namespace cudaloss {

// A half as it was read: it takes half a register until it is needed.
struct TaggedHalf {
  uint16_t bits;
  bool is_bfloat;
};
template <class F>
CUDALOSS_INLINE F widen(TaggedHalf x) {
  return select(x.is_bfloat, widen<F>(BFloat16{x.bits}), widen<F>(Half{x.bits}));
}

}  // namespace cudaloss

namespace cudaloss::cuda {

constexpr int kVectorBytes = 16;

// Hides from the compiler that an element is the same. It then computes results from it again, and does not keep the
// first ones in registers meanwhile.
template <class Element>
__device__ __forceinline__ Element anew(Element x) {
  if constexpr (sizeof(Element) == 8) {
    auto bits = bit_cast<unsigned long long>(x);
    asm volatile("" : "+l"(bits));
    return bit_cast<Element>(bits);
  } else if constexpr (sizeof(Element) == 4) {
    auto bits = bit_cast<unsigned>(x);
    asm volatile("" : "+r"(bits));
    return bit_cast<Element>(bits);
  } else if constexpr (sizeof(Element) == 2) {
    auto bits = bit_cast<unsigned short>(x);
    asm volatile("" : "+h"(bits));
    return bit_cast<Element>(bits);
  } else {
    return x;
  }
}
__device__ __forceinline__ TaggedHalf anew(TaggedHalf x) { return {anew(x.bits), x.is_bfloat}; }

// One 16-byte access for every 16 bytes; a shorter vector is one access of its own size.
template <class Element, int N>
struct alignas(N * sizeof(Element) < kVectorBytes ? N * sizeof(Element) : kVectorBytes) Vector {
  Element element[N];
};

// An element type that is known only at run time, read as F.
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

// The two operands of one thread's vector.
template <class A, class B, int N>
struct Vectors {
  Vector<Loaded<A>, N> a;
  Vector<Loaded<B>, N> b;
};

template <int N, class Element>
__device__ __forceinline__ Vector<Element, N> each_of(const Element* data, int64_t stride, int length) {
  Vector<Element, N> out = {};
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (i < length) out.element[i] = data[i * stride];
  }
  return out;
}

template <class Element>
struct Accessor {
  Element* data;  // null: not there
  Spacing spacing;

  __device__ __forceinline__ static float widened(Element x) { return widen<float>(x); }
  __device__ __forceinline__ static Element narrowed(float x) { return narrow<Element>(x); }
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_vector(int64_t offset) const {
    return *reinterpret_cast<const Vector<Element, N>*>(data + offset);
  }
  // The same, but not through the L1: each thread reads this data once, so the L1 is no use.
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_past_l1(int64_t offset) const {
    Vector<Element, N> out;
#pragma unroll
    for (int i = 0; i < static_cast<int>(sizeof out) / kVectorBytes; ++i) {
      reinterpret_cast<uint4*>(&out)[i] = __ldcg(reinterpret_cast<const uint4*>(data + offset) + i);
    }
    return out;
  }
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load(int64_t offset, int length) const {
    return spacing.vectorized && length == N ? load_vector<N>(offset) : load_each<N>(offset, length);
  }
  template <int N>
  __device__ __forceinline__ Vector<Element, N> load_each(int64_t offset, int length) const {
    return each_of<N>(data + offset, spacing.stride, length);
  }
  template <int N, class F>
  __device__ __forceinline__ void store_vector(int64_t offset, const F (&value)[N]) const {
    if constexpr (!std::is_integral_v<Element>) {  // integers have no gradient
      Vector<Element, N> out;
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = narrow<Element>(value[i]);
      *reinterpret_cast<Vector<Element, N>*>(data + offset) = out;
    }
  }
  template <int N, class F>
  __device__ __forceinline__ void store(int64_t offset, int length, const F (&value)[N]) const {
    if (spacing.vectorized && length == N) return store_vector(offset, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (!std::is_integral_v<Element>) {
        if (i < length) data[offset + i * spacing.stride] = narrow<Element>(value[i]);
      }
    }
  }
};

// fp16 or bfloat16, known only at run time. Having both conversions costs an instruction or two; separate kernels would
// be a fourth of the binary.
struct AnyHalf {
  uint16_t bits;
};
template <>
struct LoadedAs<AnyHalf> {
  using type = TaggedHalf;
};

template <>
struct Accessor<AnyHalf> {
  AnyHalf* data;
  Spacing spacing;
  bool is_bfloat;

  template <int N>
  __device__ __forceinline__ Vector<TaggedHalf, N> load_vector(int64_t offset) const {
    return tagged(words().template load_vector<N>(offset));
  }
  template <int N>
  __device__ __forceinline__ Vector<TaggedHalf, N> load_past_l1(int64_t offset) const {
    return tagged(words().template load_past_l1<N>(offset));
  }
  template <int N>
  __device__ __forceinline__ Vector<TaggedHalf, N> load(int64_t offset, int length) const {
    return tagged(words().template load<N>(offset, length));
  }
  template <int N>
  __device__ __forceinline__ Vector<TaggedHalf, N> load_each(int64_t offset, int length) const {
    return tagged(words().template load_each<N>(offset, length));
  }
  template <int N>
  __device__ __forceinline__ void store_vector(int64_t offset, const float (&value)[N]) const {
    Vector<AnyHalf, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.element[i] = narrowed(value[i]);
    *reinterpret_cast<Vector<AnyHalf, N>*>(data + offset) = out;
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t offset, int length, const float (&value)[N]) const {
    if (spacing.vectorized && length == N) return store_vector(offset, value);
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if (i < length) data[offset + i * spacing.stride] = narrowed(value[i]);
    }
  }

  __device__ __forceinline__ float widened(AnyHalf x) const { return widen<float>(TaggedHalf{x.bits, is_bfloat}); }
  __device__ __forceinline__ AnyHalf narrowed(float value) const {
    return {select(is_bfloat, narrow<BFloat16>(value).bits, narrow<Half>(value).bits)};
  }

 private:
  __device__ __forceinline__ Accessor<uint16_t> words() const { return {&data->bits, spacing}; }
  template <int N>
  __device__ __forceinline__ Vector<TaggedHalf, N> tagged(const Vector<uint16_t, N>& words) const {
    Vector<TaggedHalf, N> out;
#pragma unroll
    for (int i = 0; i < N; ++i) out.element[i] = {words.element[i], is_bfloat};
    return out;
  }
};

// A target in whole vectors beside a float or a half: float, half or uint8. Only for whole vectors, or one element for
// each. Until `decoded` turns it into floats, a vector's elements are its words in memory; a single element is a float
// at once.
struct Stored {};
template <>
struct LoadedAs<Stored> {
  using type = float;
};
// What its vectors are in memory. One: an element for all.
enum class StoredAs { Floats, Bytes, BFloats, Halves, One };
CUDALOSS_INLINE StoredAs stored_as(DType dtype, const Spacing& spacing) {
  if (spacing.stride == 0) return StoredAs::One;
  switch (dtype) {
    case DType::Float32:
      return StoredAs::Floats;
    case DType::UInt8:
      return StoredAs::Bytes;
    default:
      return dtype == DType::BFloat16 ? StoredAs::BFloats : StoredAs::Halves;
  }
}

template <>
struct Accessor<Stored> {
  void* data;
  Spacing spacing;
  DType dtype;
  StoredAs vectors;

  // Only the loads are inside branches: a conversion there would wait for its load, and every later load for the
  // conversion. Floats are tested first and one element last: with that first, fp32 weights took 1.02 to 1.05 times as
  // long.
  template <int N>
  __device__ __forceinline__ Vector<float, N> load_vector(int64_t offset) const {
    if constexpr (N == 1) {
      return {number_at<float>({data, dtype}, offset)};
    } else {
      Vector<float, N> words = {};
      if (vectors == StoredAs::Floats) {
        load_words<N>(offset, words);
      } else if (vectors == StoredAs::Bytes) {
        load_words<N / 4>(offset, words);
      } else if (vectors != StoredAs::One) {
        load_words<N / 2>(offset, words);
      } else {
        words.element[0] = number_at<float>({data, dtype}, offset);
      }
      return words;
    }
  }
  template <int N>
  __device__ __forceinline__ Vector<float, N> decoded(const Vector<float, N>& words) const {
    Vector<float, N> out = words;
    if (N == 1 || vectors == StoredAs::Floats) return out;
    const auto piece = [&](int i, int bits) {  // element i
      const int a_word = 32 / bits;
      return bit_cast<uint32_t>(words.element[i / a_word]) >> bits * (i % a_word);
    };
    if (vectors == StoredAs::Bytes) {
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = widen<float>(static_cast<uint8_t>(piece(i, 8)));
    } else if (vectors == StoredAs::BFloats) {
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = widen<float>(BFloat16{static_cast<uint16_t>(piece(i, 16))});
    } else if (vectors == StoredAs::Halves) {
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = widen<float>(Half{static_cast<uint16_t>(piece(i, 16))});
    } else {
#pragma unroll
      for (int i = 1; i < N; ++i) out.element[i] = words.element[0];
    }
    return out;
  }
  template <int N>
  __device__ __forceinline__ void store_vector(int64_t offset, const float (&value)[N]) const {
    if (dtype == DType::Float32) {
      Accessor<float>{static_cast<float*>(data), spacing}.store_vector(offset, value);
    } else if (dtype != DType::UInt8) {  // uint8 has no gradient
      Accessor<AnyHalf>{static_cast<AnyHalf*>(data), spacing, dtype == DType::BFloat16}.store_vector(offset, value);
    }
  }
  template <int N>
  __device__ __forceinline__ void store(int64_t offset, int, const float (&value)[N]) const {
    store_vector(offset, value);
  }

 private:
  template <int kWords, int N>
  __device__ __forceinline__ void load_words(int64_t offset, Vector<float, N>& words) const {
    const int64_t first = offset / (N / kWords);  // a whole vector begins at a word
    const auto read = *reinterpret_cast<const Vector<float, kWords>*>(static_cast<const float*>(data) + first);
#pragma unroll
    for (int i = 0; i < kWords; ++i) words.element[i] = read.element[i];
  }
};

template <class F>
struct Accessor<Any<F>> {
  void* data;
  Spacing spacing;
  DType dtype;

  template <int N>
  __device__ __forceinline__ Vector<F, N> load_vector(int64_t offset) const {
    return load<N>(offset, N);
  }
  template <int N>
  __device__ __forceinline__ Vector<F, N> load(int64_t offset, int length) const {
    Vector<F, N> out = {};
    dispatch_any(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      const auto read = each_of<N>(static_cast<const Element*>(data) + offset, spacing.stride, length);
#pragma unroll
      for (int i = 0; i < N; ++i) out.element[i] = widen<F>(read.element[i]);
    });
    return out;
  }
  template <int N, class Value>
  __device__ __forceinline__ void store_vector(int64_t offset, const Value (&value)[N]) const {
    store(offset, N, value);
  }
  template <int N, class Value>
  __device__ __forceinline__ void store(int64_t offset, int length, const Value (&value)[N]) const {
    dispatch(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      Accessor<Element>{static_cast<Element*>(data), spacing}.store(offset, length, value);
    });
  }
};

// Weights or third operands: of any floating dtype, and mostly the same for a whole vector or a whole launch.
template <class F>
struct Weights {
  const void* data;  // null: not there
  Spacing spacing;
  DType dtype;

  __device__ __forceinline__ bool are_alike() const { return spacing.stride == 0; }  // one for the whole vector
  template <int N>
  __device__ __forceinline__ F of(int i, const F (&loaded)[N]) const {
    return select(are_alike(), loaded[0], loaded[i]);  // loaded[alike ? 0 : i] would put the array in memory
  }

  template <int N>
  __device__ __forceinline__ void load(int64_t offset, int length, F (&out)[N]) const {
    dispatch(dtype, [&](auto type) {
      using Element = typename decltype(type)::type;
      const Accessor<Element> from = {const_cast<Element*>(static_cast<const Element*>(data)), spacing};
      // If all share one weight, loads only the first: copies would have to wait for it.
      const auto each = from.template load<N>(offset, are_alike() ? 1 : length);
#pragma unroll
      for (int i = 0; i < N; ++i) out[i] = widen<F>(each.element[i]);
    });
  }
  // The same of F's own dtype.
  template <int N>
  __device__ __forceinline__ void load_own(int64_t offset, F (&out)[N]) const {
    const Accessor<F> from = {static_cast<F*>(const_cast<void*>(data)), spacing};
    const auto each = from.template load<N>(offset, are_alike() ? 1 : N);
#pragma unroll
    for (int i = 0; i < N; ++i) out[i] = each.element[i];
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

// The bytes of a mask unchanged; only the first if all share one.
template <int N>
__device__ __forceinline__ Vector<uint8_t, N> load_mask(const Accessor<uint8_t>& mask, int64_t offset, int length) {
  return mask.template load<N>(offset, mask.spacing.stride == 0 ? 1 : length);
}

// The bits of the mask for `length` elements.
template <int N>
__device__ __forceinline__ unsigned selected_by(const Accessor<uint8_t>& mask, const Vector<uint8_t, N>& bytes,
                                                int length) {
  const unsigned all = (1u << length) - 1;
  if (mask.spacing.stride == 0) return bytes.element[0] != 0 ? all : 0;
  return bits_of(bytes) & all;
}

inline Operand as_operand(const Result& result) { return {result.data, result.dtype}; }  // host code

template <class Element>
CUDALOSS_INLINE Accessor<Element> accessor_of(const Operand& operand, const Spacing& spacing) {
  Accessor<Element> made = {};
  made.data = static_cast<decltype(made.data)>(const_cast<void*>(operand.data));
  made.spacing = spacing;
  if constexpr (std::is_same_v<decltype(made.data), void*>) made.dtype = operand.dtype;
  if constexpr (std::is_same_v<Element, AnyHalf>) made.is_bfloat = operand.dtype == DType::BFloat16;
  if constexpr (std::is_same_v<Element, Stored>) made.vectors = stored_as(operand.dtype, spacing);
  return made;
}

}  // namespace cudaloss::cuda
