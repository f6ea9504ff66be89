// The CPU engine as the ops call it.
#pragma once

#include "cpu/engine.h"
#include "torch/kernels.h"

namespace cudaloss::tensors {

inline void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                         void* context) {
  require(torch_parallel_for(begin, end, grain, body, context) == TORCH_SUCCESS, "a worker thread failed");
}

template <template <class> class Loss>
struct CpuKernels {
  static void reduce(const Forward& request, const Tensor&) { cpu::reduce<Loss>(request, parallel_for); }
  static void elementwise(const Forward& request, const Tensor&) { cpu::elementwise<Loss>(request, parallel_for); }
  static void train(const Training& request, const Tensor&) { cpu::train<Loss>(request, parallel_for); }
  static void backward(const Backward& request, const Tensor&) { cpu::backward<Loss>(request, parallel_for); }
  static void pass(const Pass& request, const Tensor&) { cpu::pass<Loss>(request, parallel_for); }
};

struct Cpu {
  static const Kernels& kernels(int64_t loss) { return kernels_of<CpuKernels>(loss); }
  static void count(const Count& request, const Tensor&) { cpu::count(request, parallel_for); }
};

}  // namespace cudaloss::tensors
