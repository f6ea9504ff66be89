// The CUDA engine for losses of rows of vectors: one set of kernels, in vectors.cu, serves all losses. Included by the
// source of each such loss, which setup.py writes.
#pragma once

#include <stdexcept>

#include "cuda/vectors.h"

namespace cudaloss::cuda {

template <class Loss>
void vectors_pass(const Pass& r, const Memory& memory, Stream stream) {
  if (r.segments.count() * r.inner.count() > 0 && Loss::kHasThird != (r.third.data != nullptr))
    throw std::logic_error(kOtherThird);
  any_vectors_pass(r, Loss::kVectors, Loss(r.numbers).needs_w(), memory, stream);
}

}  // namespace cudaloss::cuda
