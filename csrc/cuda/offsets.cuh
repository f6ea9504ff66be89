// From the linear index of a vector to each operand's offset, for any strides.
#pragma once

#include <cstdint>

#include "core/pass.h"

namespace cudaloss::cuda {

// x / divisor without a division, for both below 2^31 (Granlund, Montgomery, "Division by Invariant Integers using
// Multiplication", 1994).
struct FastDivmod {
  uint32_t divisor, magic, shift;

  static FastDivmod by(int64_t divisor) {
    uint32_t shift = 0;
    while (shift < 31 && (int64_t{1} << shift) < divisor) ++shift;
    const uint64_t over = (uint64_t{1} << shift) - static_cast<uint64_t>(divisor);
    const uint64_t magic = (over << 32) / static_cast<uint64_t>(divisor) + 1;
    return {static_cast<uint32_t>(divisor), static_cast<uint32_t>(magic), shift};
  }
  __device__ __forceinline__ uint32_t quotient(uint32_t x) const { return (__umulhi(x, magic) + x) >> shift; }
};

// One more than a pass has, because the dimension of a warp's threads can be split in two.
constexpr int kMaxOffsetDims = kMaxDims + 1;

// Most passes have at most this many dimensions. These are always computed, without a check of the rank: missing
// dimensions have size 1.
constexpr int kFewDims = 4;

struct OffsetCalculator {
  int rank;
  bool narrow;  // all offsets are below 2^31
  FastDivmod size[kMaxOffsetDims];
  int64_t step[kMaxOffsetDims][kPlaces];
  int vector_dim;        // counts vectors along the stride below; -1: none
  uint32_t vector_size;  // the number of elements along it
  uint32_t whole_end;    // for a single row of vectors: the first that is not whole
  int64_t stride[kPlaces];
};

// An index along each of kDims dimensions.
template <int kDims>
struct Coordinates {
  uint32_t of[kDims];
};

template <int kDims = kMaxOffsetDims>
__device__ __forceinline__ Coordinates<kDims> coordinates(const OffsetCalculator& offsets, uint32_t i) {
  Coordinates<kDims> found = {};
  const auto divide = [&](int d) {
    const uint32_t rest = offsets.size[d].quotient(i);
    found.of[d] = i - rest * offsets.size[d].divisor;
    i = rest;
  };
#pragma unroll
  for (int d = 0; d < kFewDims; ++d) divide(d);
  if (kDims > kFewDims && offsets.rank > kFewDims) {
#pragma unroll
    for (int d = kFewDims; d < kDims; ++d) divide(d);
  }
  return found;
}

// The index along the vectors' dimension: the first, or the second if the lanes have their own.
template <int kDims>
__device__ __forceinline__ uint32_t vector_index(const OffsetCalculator& offsets, const Coordinates<kDims>& at) {
  return offsets.vector_dim > 0 ? at.of[1] : at.of[0];
}

template <class Index, int kFrom, int kTo, int kDims>
__device__ __forceinline__ Index offset_along(const OffsetCalculator& offsets, const Coordinates<kDims>& at,
                                              Place place) {
  Index sum = 0;
#pragma unroll
  for (int d = kFrom; d < kTo; ++d) sum += at.of[d] * static_cast<Index>(offsets.step[d][place]);
  return sum;
}

// The offset of `place` in elements, if offsets are narrow and dimensions few.
__device__ __forceinline__ uint32_t narrow_offset(const OffsetCalculator& offsets, const Coordinates<kFewDims>& at,
                                                  Place place) {
  return offset_along<uint32_t, 0, kFewDims>(offsets, at, place);
}

// The same for any offsets.
template <int kDims>
__device__ __forceinline__ int64_t offset(const OffsetCalculator& offsets, const Coordinates<kDims>& at, Place place) {
  int64_t sum = offsets.narrow ? int64_t{offset_along<uint32_t, 0, kFewDims>(offsets, at, place)}
                               : offset_along<int64_t, 0, kFewDims>(offsets, at, place);
  if (kDims > kFewDims && offsets.rank > kFewDims) {
    sum += offset_along<int64_t, kFewDims, kDims>(offsets, at, place);
  }
  return sum;
}

}  // namespace cudaloss::cuda
