// The CPU engine as the ops call it.
#pragma once

#include "cpu/engine.h"
#include "torch/operands.h"

namespace cudaloss::tensors {

struct Cpu {
  static void parallel_for(int64_t begin, int64_t end, int64_t grain, void (*body)(int64_t, int64_t, void*),
                           void* context) {
    require(torch_parallel_for(begin, end, grain, body, context) == TORCH_SUCCESS, "a worker thread failed");
  }
  template <template <class> class Loss>
  static void reduce(const Forward& request, const Tensor&) {
    cpu::reduce<Loss>(request, parallel_for);
  }
  template <template <class> class Loss>
  static void elementwise(const Forward& request, const Tensor&) {
    cpu::elementwise<Loss>(request, parallel_for);
  }
  template <template <class> class Loss>
  static void train(const Training& request, const Tensor&) {
    cpu::train<Loss>(request, parallel_for);
  }
  template <template <class> class Loss>
  static void backward(const Backward& request, const Tensor&) {
    cpu::backward<Loss>(request, parallel_for);
  }
  template <template <class> class Loss>
  static void pass(const Pass& request, const Tensor&) {
    cpu::pass<Loss>(request, parallel_for);
  }
  static void count(const Count& request, const Tensor&) { cpu::count(request, parallel_for); }
};

}  // namespace cudaloss::tensors
