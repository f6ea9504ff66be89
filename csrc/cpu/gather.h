// Reads and writes blocks of elements with any strides and dtypes, as one of the two types that the CPU kernels compute
// with. Data that already has the kernels' form is used in place; other data passes through a buffer of one block,
// which stays in the first-level cache.
#pragma once

#include <algorithm>
#include <cstdint>

#include "core/pass.h"
#include "cpu/walk.h"

namespace cudaloss::cpu {

// The elements that `walk` visits next, as F.
template <class F>
const F* read(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer);

// The same, always in `out`.
template <class F>
void read_into(const Operand& operand, const Walk& walk, const Position& at, Place place, int64_t count, F* out) {
  const F* found = read(operand, walk, at, place, count, out);
  if (found != out) std::copy(found, found + count, out);
}

// A mask's bytes.
const uint8_t* read_mask(const Operand& mask, const Walk& walk, const Position& at, int64_t count, uint8_t* buffer);

// Where a kernel writes these elements: in place, or in `buffer`, which `write` then copies to its place.
template <class F>
F* writable(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, F* buffer);

template <class F>
void write(const Result& result, const Walk& walk, const Position& at, Place place, int64_t count, const F* values);

// The same for the elements from `begin` on of a result whose elements are all neighbours.
template <class F>
F* writable(const Result& result, int64_t begin, F* buffer);
template <class F>
void write(const Result& result, int64_t begin, int64_t count, const F* values);

}  // namespace cudaloss::cpu
