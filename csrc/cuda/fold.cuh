// Stage 2 of the reduction: the blocks' partials, folded in a fixed order in fp64.
#pragma once

#include "core/arith.h"
#include "cuda/engine.h"

namespace cudaloss::cuda {

__device__ __forceinline__ void store_scalar(const Result& output, double value) {
  switch (output.dtype) {
    case DType::Float32:
      *static_cast<float*>(output.data) = static_cast<float>(value);
      break;
    case DType::Float64:
      *static_cast<double*>(output.data) = value;
      break;
    case DType::Float16:
      *static_cast<Half*>(output.data) = narrow<Half>(value);
      break;
    case DType::BFloat16:
      *static_cast<BFloat16*>(output.data) = narrow<BFloat16>(value);
      break;
  }
}

void fold(const double* partials, int count, double divisor, const Result& output, Stream stream);

}  // namespace cudaloss::cuda
