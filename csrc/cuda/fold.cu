#include "core/plan.h"
#include "cuda/fold.cuh"
#include "cuda/launch.h"

namespace cudaloss::cuda {
namespace {

__global__ void __launch_bounds__(plan::kFoldThreads)
    fold_kernel(const Sum* partials, int count, double divisor, Result output) {
  Sum sum = {};
  for (int i = threadIdx.x; i < count; i += plan::kFoldThreads) sum.add(partials[i]);
  sum = block_sum<plan::kFoldThreads>(sum);
  if (threadIdx.x == 0) store_scalar(output, sum.over(divisor));
}

}  // namespace

int64_t reduce_workspace(const Forward& request) {
  const int vector = plan::vector_elements(size_of(request.input.dtype), size_of(request.target.dtype));
  const int blocks = plan::reduce_blocks(request.count, vector);
  return blocks == 1 ? 0 : blocks * static_cast<int64_t>(sizeof(Sum));
}

void fold(const Sum* partials, int count, double divisor, const Result& output, Stream stream) {
  launch(fold_kernel, 1, plan::kFoldThreads, stream, partials, count, divisor, output);
}

}  // namespace cudaloss::cuda
