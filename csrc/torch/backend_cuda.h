// The CUDA engine as the ops call it: on the caller's stream, on the operands' device.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>

#include "cuda/engine.h"
#include "torch/operands.h"
#include "torch/scratch.h"

// In libtorch_cuda, which a CPU-only torch lacks: weak, so that the library still loads there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace cudaloss::tensors {

struct Cuda {
  // The caller's stream on the tensor's device, which is current while this lives. A guard is made only where
  // another device is current: it costs an allocation and four calls.
  struct Context {
    std::optional<torch::stable::accelerator::DeviceGuard> guard;
    cuda::Stream stream = nullptr;

    explicit Context(const Tensor& tensor) {
      require(aoti_torch_get_current_cuda_stream != nullptr, "this torch has no CUDA");
      const int32_t device = tensor.get_device_index();
      if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
      require(aoti_torch_get_current_cuda_stream(device, &stream) == TORCH_SUCCESS, "no current CUDA stream");
    }
  };
  template <template <class> class Loss>
  static void reduce(const Forward& request, const Tensor& input) {
    const Context context(input);
    const Scratch scratch(cuda::reduce_need(request), input, context.stream);
    cuda::reduce<Loss>(request, scratch.workspace, context.stream);
  }
  template <template <class> class Loss>
  static void elementwise(const Forward& request, const Tensor& input) {
    cuda::elementwise<Loss>(request, Context(input).stream);
  }
  template <template <class> class Loss>
  static void train(const Training& request, const Tensor& input) {
    const Context context(input);
    const Scratch scratch(cuda::train_need(request), input, context.stream);
    cuda::train<Loss>(request, scratch.workspace, context.stream);
  }
  template <template <class> class Loss>
  static void backward(const Backward& request, const Tensor& input) {
    cuda::backward<Loss>(request, Context(input).stream);
  }
  template <template <class> class Loss>
  static void pass(const Pass& request, const Tensor& input) {
    const Context context(input);
    const Scratch scratch(cuda::pass_need(request), input, context.stream);
    cuda::pass<Loss>(request, scratch.workspace, context.stream);
  }
  static void count(const Count& request, const Tensor& input) {
    const Context context(input);
    const Scratch scratch(cuda::count_need(request), input, context.stream);
    cuda::count(request, scratch.workspace, context.stream);
  }
};

}  // namespace cudaloss::tensors
