// A function of each index: a thread an index.
#include "core/class_block.h"
#include "core/contrast.h"
#include "cuda/engine.h"
#include "cuda/launch.h"

namespace cudaloss::cuda {
namespace {

constexpr int kEachThreads = 128;
template <class Function>
__global__ void __launch_bounds__(kEachThreads) each_index(const __grid_constant__ Function function, int64_t count) {
  const int64_t index = int64_t{blockIdx.x} * kEachThreads + threadIdx.x;
  if (index < count) function(index);
}

}  // namespace

template <class Function>
void each(const Function& function, int64_t count, Stream stream) {
  launch(each_index<Function>, Start::Alone, (count + kEachThreads - 1) / kEachThreads, kEachThreads, stream, function,
         count);
}
#define CUDALOSS_EACH(...) template void each(const __VA_ARGS__&, int64_t, Stream)
CUDALOSS_EACH_FUNCTION(CUDALOSS_EACH);
CUDALOSS_EACH_OF_PAIRS(CUDALOSS_EACH);
#undef CUDALOSS_EACH

}  // namespace cudaloss::cuda
