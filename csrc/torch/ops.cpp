// The private ops on each backend, on the LibTorch stable ABI. Python has the schemas and everything public.
#include <torch/csrc/stable/library.h>

#include "torch/backend_cpu.h"
#include "torch/passes.h"
#include "torch/vocabulary.h"

#if defined(CUDALOSS_WITH_CUDA)
#include "torch/backend_cuda.h"
#endif

namespace cudaloss::tensors {
namespace {

template <class Engine>
void register_ops(torch::stable::detail::StableLibrary& library) {
  library.impl("_pointwise_loss", TORCH_BOX(&loss<Engine>));
  library.impl("_pointwise_loss_with_grad", TORCH_BOX(&loss_with_grad<Engine>));
  library.impl("_pointwise_forward", TORCH_BOX(&forward<Engine>));
  library.impl("_pointwise_forward_with_grad", TORCH_BOX(&forward_with_grad<Engine>));
  library.impl("_pointwise_count", TORCH_BOX(&count<Engine>));
  library.impl("_pointwise_backward", TORCH_BOX(&backward<Engine>));
  library.impl("_pointwise_rescale_", TORCH_BOX(&rescale<Engine>));
  library.impl("_pointwise_part", TORCH_BOX(&vocabulary_part<Engine>));
  library.impl("_pointwise_part_backward", TORCH_BOX(&vocabulary_part_backward<Engine>));
}

}  // namespace
}  // namespace cudaloss::tensors

STABLE_TORCH_LIBRARY_IMPL(cudaloss, CPU, library) { cudaloss::tensors::register_ops<cudaloss::tensors::Cpu>(library); }
#if defined(CUDALOSS_WITH_CUDA)
STABLE_TORCH_LIBRARY_IMPL(cudaloss, CUDA, library) {
  cudaloss::tensors::register_ops<cudaloss::tensors::Cuda>(library);
}
#endif
