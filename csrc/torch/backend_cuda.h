// The CUDA engine as the ops call it: on the caller's stream, on the operands' device.
#pragma once

#include <torch/csrc/stable/ops.h>

#include <optional>

#include "cuda/engine.h"
#include "torch/kernels.h"
#include "torch/scratch.h"

// In libtorch_cuda, which a CPU-only torch does not have. It is weak, so that the library still loads there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);

namespace cudaloss::tensors {

// The caller's stream on the tensor's device. That device is current while this object lives. It makes a guard only if
// another device is current: a guard costs an allocation and four calls.
struct CudaContext {
  std::optional<torch::stable::accelerator::DeviceGuard> guard;
  cuda::Stream stream = nullptr;

  explicit CudaContext(const Tensor& tensor) {
    require(aoti_torch_get_current_cuda_stream != nullptr, "this torch has no CUDA");
    const int32_t device = tensor.get_device_index();
    if (torch::stable::accelerator::getCurrentDeviceIndex() != device) guard.emplace(device);
    require(aoti_torch_get_current_cuda_stream(device, &stream) == TORCH_SUCCESS, "no current CUDA stream");
  }
};

// A launch of a reduction, which may need memory in addition to its operands.
template <class Request, class Launch>
void with_scratch(const Request& request, const Tensor& input, const Launch& launch) {
  const CudaContext context(input);
  Scratch scratch(input, context.stream);
  launch(request, scratch.memory(), context.stream);
}

template <template <class> class Loss, bool kAll>
struct CudaKernels {
  static void pass(const Pass& request, const Tensor& input) { with_scratch(request, input, cuda::pass<Loss, kAll>); }
};

template <class Loss>
struct CudaRowKernels {
  static void pass(const Pass& request, const Tensor& input) { with_scratch(request, input, cuda::row_pass<Loss>); }
};

struct Cuda {
  static constexpr bool kCountsFewRows = true;
  static void pass(const Pass& request, const Tensor& input) {
    run_of<CudaKernels, CudaRowKernels>(request.loss)(request, input);
  }
  static void vocabulary_pass(const Pass& request, const Tensor& input) {
    with_scratch(request, input, cuda::vocabulary_pass);
  }
  static void count(const Count& request, const Tensor& input) { with_scratch(request, input, cuda::count); }
};

}  // namespace cudaloss::tensors
