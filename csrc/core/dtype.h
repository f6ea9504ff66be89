// The element types the engines read and write, and their conversions.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>

#include "core/platform.h"

#if defined(__CUDACC__)
#include <cuda_bf16.h>
#include <cuda_fp16.h>
#endif

namespace cudaloss {

// The dtypes of all operands. Below: the further dtypes that a target may have.
enum class DType : int32_t { Float32, Float64, Float16, BFloat16, Bool, UInt8, Int8, Int16, Int32, Int64 };

struct Half {
  uint16_t bits;
};
struct BFloat16 {
  uint16_t bits;
};
struct Bool {
  uint8_t bits;
};

template <class T>
struct Type {
  using type = T;
};

template <class T>
constexpr DType kDTypeOf = DType::Float32;
template <>
constexpr inline DType kDTypeOf<double> = DType::Float64;
template <>
constexpr inline DType kDTypeOf<Half> = DType::Float16;
template <>
constexpr inline DType kDTypeOf<BFloat16> = DType::BFloat16;

CUDALOSS_INLINE constexpr bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

// Calls body with the Type for `dtype`, which must be a floating one.
CUDALOSS_ON_EITHER_SIDE
template <class Body>
CUDALOSS_INLINE void dispatch(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::Float32:
      return body(Type<float>());
    case DType::Float64:
      return body(Type<double>());
    case DType::Float16:
      return body(Type<Half>());
    case DType::BFloat16:
      return body(Type<BFloat16>());
    default:
      return;
  }
}

// The same for any dtype.
CUDALOSS_ON_EITHER_SIDE
template <class Body>
CUDALOSS_INLINE void dispatch_any(DType dtype, const Body& body) {
  switch (dtype) {
    case DType::Bool:
      return body(Type<Bool>());
    case DType::UInt8:
      return body(Type<uint8_t>());
    case DType::Int8:
      return body(Type<int8_t>());
    case DType::Int16:
      return body(Type<int16_t>());
    case DType::Int32:
      return body(Type<int32_t>());
    case DType::Int64:
      return body(Type<int64_t>());
    default:
      return dispatch(dtype, body);
  }
}

constexpr bool is_floating(DType dtype) { return dtype <= DType::BFloat16; }

// `dtype` must be a floating one.
CUDALOSS_INLINE constexpr int size_of(DType dtype) {
  return dtype == DType::Float32 ? 4 : dtype == DType::Float64 ? 8 : 2;
}

template <class To, class From>
CUDALOSS_INLINE To bit_cast(const From& from) {
  static_assert(sizeof(To) == sizeof(From), "bit_cast keeps the size");
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class F>
CUDALOSS_INLINE F widen(float x) {
  return static_cast<F>(x);
}

template <class F>
CUDALOSS_INLINE F widen(double x) {
  return static_cast<F>(x);
}

template <class F, class Integer>
CUDALOSS_INLINE std::enable_if_t<std::is_integral_v<Integer>, F> widen(Integer x) {
  return static_cast<F>(x);
}

template <class F>
CUDALOSS_INLINE F widen(Bool x) {
  return static_cast<F>(x.bits != 0);
}

template <class F>
CUDALOSS_INLINE F widen(BFloat16 x) {
  return static_cast<F>(bit_cast<float>(static_cast<uint32_t>(x.bits) << 16));
}

// The host versions of the fp16 conversions are branch-free integer code rather than F16C intrinsics:
// they vectorise at every x86-64 level and on other processors.
template <class F>
CUDALOSS_INLINE F widen(Half x) {
#if defined(__CUDA_ARCH__)
  return static_cast<F>(__half2float(__ushort_as_half(x.bits)));
#else
  const uint32_t magnitude = x.bits & 0x7fffu;
  // Moving the 15 bits up by 13 leaves the exponent 112 too small. The product corrects it, and also turns fp16's
  // subnormals into normal numbers.
  const float scaled = bit_cast<float>(magnitude << 13) * 0x1p112f;
  const uint32_t special = magnitude >= 0x7c00u ? 0x7f800000u : 0u;  // Inf and NaN keep their exponent
  const uint32_t sign = static_cast<uint32_t>(x.bits & 0x8000u) << 16;
  return static_cast<F>(bit_cast<float>(bit_cast<uint32_t>(scaled) | special | sign));
#endif
}

// Rounds to nearest, ties to even.
template <class Out>
struct Narrow;

template <>
struct Narrow<float> {
  CUDALOSS_INLINE static float from(float x) { return x; }
};

template <>
struct Narrow<double> {
  CUDALOSS_INLINE static double from(float x) { return x; }
};

template <>
struct Narrow<BFloat16> {
  CUDALOSS_INLINE static BFloat16 from(float x) {
#if defined(__CUDA_ARCH__)
    return {__bfloat16_as_ushort(__float2bfloat16_rn(x))};
#else
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t rounded = (bits + 0x7fffu + ((bits >> 16) & 1u)) >> 16;
    return {static_cast<uint16_t>(x == x ? rounded : 0x7fc0u)};
#endif
  }
};

template <>
struct Narrow<Half> {
  CUDALOSS_INLINE static Half from(float x) {
#if defined(__CUDA_ARCH__)
    return {__half_as_ushort(__float2half_rn(x))};
#else
    const uint32_t bits = bit_cast<uint32_t>(x);
    const uint32_t sign = (bits >> 16) & 0x8000u;
    const uint32_t magnitude = bits & 0x7fffffffu;
    // Normal results: rebias the exponent by 112 and round the 13 dropped bits.
    const uint32_t normal = (magnitude - 0x38000000u + 0xfffu + ((magnitude >> 13) & 1u)) >> 13;
    // Subnormal results: adding 0.5 aligns the value so that fp32's own rounding drops the right bits.
    const uint32_t subnormal = bit_cast<uint32_t>(bit_cast<float>(magnitude) + 0.5f) - 0x3f000000u;
    uint32_t result = magnitude < 0x38800000u ? subnormal : normal;
    result = magnitude >= 0x47800000u ? 0x7c00u : result;  // 65536 and above; 65520 rounds up by itself
    result = magnitude > 0x7f800000u ? 0x7e00u : result;
    return {static_cast<uint16_t>(result | sign)};
#endif
  }
};

}  // namespace cudaloss
