// Stage 2 of the reduction: the blocks' partials, folded in a fixed order.
#pragma once

#include <cub/block/block_reduce.cuh>

#include "core/arith.h"
#include "core/sum.h"
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

// The sum over the block's threads, in thread 0.
template <int kThreads>
__device__ __forceinline__ Sum block_sum(const Sum& sum) {
  using BlockReduce = cub::BlockReduce<Sum, kThreads>;
  __shared__ typename BlockReduce::TempStorage storage;
  return BlockReduce(storage).Reduce(sum, AddSums());
}

void fold(const Sum* partials, int count, double divisor, const Result& output, Stream stream);

}  // namespace cudaloss::cuda
