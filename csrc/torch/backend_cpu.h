// The CPU engine as the ops call it.
#pragma once

#include "cpu/engine.h"
#include "torch/kernels.h"

namespace cudaloss::tensors {

inline void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                         void* context) {
  require(torch_parallel_for(begin, end, grain, body, context) == TORCH_SUCCESS, "a worker thread failed");
}

template <template <class> class Loss, bool>
struct CpuKernels {
  static void pass(const Pass& request, const Tensor&) { cpu::pass<Loss>(request, parallel_for); }
};

template <class Loss>
struct CpuRowKernels {
  static void pass(const Pass& request, const Tensor&) { cpu::row_pass<Loss>(request, parallel_for); }
};

struct Cpu {
  static constexpr bool kCountsFewRows = false;
  static void pass(const Pass& request, const Tensor& input) {
    run_of<CpuKernels, CpuRowKernels>(request.loss)(request, input);
  }
  static void vocabulary_pass(const Pass& request, const Tensor&) { cpu::vocabulary_pass(request, parallel_for); }
  static void count(const Count& request, const Tensor&) { cpu::count(request, parallel_for); }
};

}  // namespace cudaloss::tensors
