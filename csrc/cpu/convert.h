// Converts blocks of elements to and from the two types that the CPU kernels compute with. Other dtypes pass through a
// buffer of one block, which stays in the first-level cache; fp32 and fp64 operands are read in place.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/pass.h"

namespace cudaloss::cpu {

constexpr int64_t kBlock = 1024;

template <class F>
bool holds(DType dtype) {
  return dtype == kDTypeOf<F>;
}

// Elements [begin, begin + count) of `operand` as F: in place if it holds F already, otherwise through `buffer`.
template <class F>
const F* read(const Operand& operand, int64_t begin, int64_t count, F* buffer);

// Where a kernel writes elements [begin, ...) of `result` as F: in place, or `buffer`, which `write` then converts.
template <class F>
F* writable(const Result& result, int64_t begin, F* buffer);

template <class F>
void write(const Result& result, int64_t begin, int64_t count, const F* values);

}  // namespace cudaloss::cpu
