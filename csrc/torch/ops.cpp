// The private ops, forward and backward of each loss on each backend, on the LibTorch stable ABI. The schemas and
// everything public are in src/cudaloss/_ops.py.
#include <torch/csrc/stable/library.h>
#include <torch/csrc/stable/ops.h>

#include <optional>
#include <tuple>

#include "cpu/engine.h"
#include "torch/operands.h"

#if defined(CUDALOSS_WITH_CUDA)
#include "cuda/engine.h"

// In libtorch_cuda, which a CPU-only torch lacks: weak, so that the library still loads there.
extern "C" __attribute__((weak)) AOTITorchError aoti_torch_get_current_cuda_stream(int32_t device_index, void** stream);
#endif

#define CUDALOSS_LOSS(name)    \
  namespace cudaloss::losses { \
  template <class T>           \
  struct name;                 \
  }
#include "losses.inc"
#undef CUDALOSS_LOSS

namespace cudaloss::tensors {
namespace {

enum Reduction : int64_t { kNone = 0, kMean = 1, kSum = 2 };  // torch.nn._reduction's numbers

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
  static void backward(const Backward& request, const Tensor&) {
    cpu::backward<Loss>(request, parallel_for);
  }
};

#if defined(CUDALOSS_WITH_CUDA)
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
    const int64_t bytes = cuda::reduce_workspace(request);
    if (bytes == 0) return cuda::reduce<Loss>(request, nullptr, context.stream);
    const int64_t stride = 1;
    const Tensor workspace = empty({&bytes, 1}, {&stride, 1}, ScalarType::Byte, input);
    cuda::reduce<Loss>(request, workspace.mutable_data_ptr(), context.stream);
  }
  template <template <class> class Loss>
  static void elementwise(const Forward& request, const Tensor& input) {
    cuda::elementwise<Loss>(request, Context(input).stream);
  }
  template <template <class> class Loss>
  static void backward(const Backward& request, const Tensor& input) {
    cuda::backward<Loss>(request, Context(input).stream);
  }
};
#endif

void require_arguments(const Tensor& input, const Tensor& target, int64_t reduction) {
  require(reduction == kNone || reduction == kMean || reduction == kSum, "reduction must be 0, 1 or 2");
  require(same_device(input, target), "input and target must be on one device");
  require(same_order(input, target), "input and target must be dense, of one shape and memory format");
}

template <class Engine, template <class> class Loss>
Tensor forward(Tensor input, Tensor target, int64_t reduction, double parameter, ScalarType dtype) {
  require_arguments(input, target, reduction);
  const int64_t count = input.numel();
  const bool elementwise = reduction == kNone;
  const Tensor output = elementwise ? empty_dense(input, dtype) : empty_scalar(dtype, input);
  const Forward request = {
      operand(input), operand(target), count, parameter, reduction == kMean ? static_cast<double>(count) : 1.0,
      result(output)};
  elementwise ? Engine::template elementwise<Loss>(request, input) : Engine::template reduce<Loss>(request, input);
  return output;
}

// What both backward ops are given.
struct BackwardArguments {
  const Tensor &grad_output, &input, &target;
  int64_t reduction;
  double parameter;
};

// Fills the gradients that are wanted.
template <class Engine, template <class> class Loss>
void backward_into(const BackwardArguments& a, const Result& grad_input, const Result& grad_target) {
  require_arguments(a.input, a.target, a.reduction);
  require(same_device(a.input, a.grad_output), "grad_output must be on the operands' device");
  const int64_t count = a.input.numel();
  if (count == 0) return;
  const bool elementwise = a.reduction == kNone;
  require(elementwise ? same_sizes(a.input, a.grad_output) : a.grad_output.numel() == 1,
          "grad_output must be of the result's shape");
  const bool scalar = !elementwise || is_broadcast_scalar(a.grad_output);
  require(scalar || same_order(a.input, a.grad_output), "grad_output must be dense, of the operands' memory format");
  const double divisor = a.reduction == kMean ? static_cast<double>(count) : 1.0;
  Engine::template backward<Loss>({operand(a.grad_output), scalar, operand(a.input), operand(a.target), count,
                                   a.parameter, divisor, grad_input, grad_target},
                                  a.input);
}

// The gradient of one operand. An op of its own: an unused second output would cost an allocation.
template <class Engine, template <class> class Loss>
Tensor backward(Tensor grad_output, Tensor input, Tensor target, int64_t reduction, double parameter, bool for_target) {
  const Tensor& wanted = for_target ? target : input;
  const Tensor gradient = empty_dense(wanted, wanted.scalar_type());
  backward_into<Engine, Loss>({grad_output, input, target, reduction, parameter},
                              for_target ? kNotWanted : result(gradient), for_target ? result(gradient) : kNotWanted);
  return gradient;
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> backward_both(Tensor grad_output, Tensor input, Tensor target, int64_t reduction,
                                         double parameter) {
  const Tensor grad_input = empty_dense(input, input.scalar_type());
  const Tensor grad_target = empty_dense(target, target.scalar_type());
  backward_into<Engine, Loss>({grad_output, input, target, reduction, parameter}, result(grad_input),
                              result(grad_target));
  return {grad_input, grad_target};
}

template <class Engine>
void register_ops(torch::stable::detail::StableLibrary& library) {
#define CUDALOSS_LOSS(name)                                                          \
  library.impl("_" #name "_forward", TORCH_BOX((&forward<Engine, losses::name>)));   \
  library.impl("_" #name "_backward", TORCH_BOX((&backward<Engine, losses::name>))); \
  library.impl("_" #name "_backward_both", TORCH_BOX((&backward_both<Engine, losses::name>)));
#include "losses.inc"
#undef CUDALOSS_LOSS
}

}  // namespace
}  // namespace cudaloss::tensors

STABLE_TORCH_LIBRARY_IMPL(cudaloss, CPU, library) { cudaloss::tensors::register_ops<cudaloss::tensors::Cpu>(library); }
#if defined(CUDALOSS_WITH_CUDA)
STABLE_TORCH_LIBRARY_IMPL(cudaloss, CUDA, library) {
  cudaloss::tensors::register_ops<cudaloss::tensors::Cuda>(library);
}
#endif
