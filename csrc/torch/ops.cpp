// The private ops of each loss on each backend, on the LibTorch stable ABI. The schemas and everything public are in
// src/cudaloss/_ops.py.
#include <torch/csrc/stable/library.h>

#include <tuple>

#include "torch/backend_cpu.h"
#include "torch/general.h"
#include "torch/mode.h"
#include "torch/operands.h"

#if defined(CUDALOSS_WITH_CUDA)
#include "torch/backend_cuda.h"
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

constexpr char kOperandsServed[] = "input and target must be on one device, dense, of one shape and memory format";

// Whether the kernels serve these operands, said before anything is computed. Operands that the caller has not looked
// at must be the commonest kind: of one dtype, the result's.
bool serves(const Tensor& input, const Tensor& target, const Mode& mode) {
  const bool served = same_device(input, target) && same_order(input, target);
  if (mode.may_decline) {
    return served && input.scalar_type() == mode.dtype && target.scalar_type() == mode.dtype;
  }
  require(served, kOperandsServed);
  return true;
}

Forward forward_request(const Tensor& input, const Tensor& target, const Mode& mode, double parameter,
                        const Tensor& output) {
  const int64_t count = input.numel();
  return {operand(input), operand(target), count, parameter, mode.divisor(count), result(output)};
}

template <class Engine, template <class> class Loss>
Tensor loss(Tensor input, Tensor target, int64_t packed, double parameter) {
  const Mode mode(packed);
  if (!serves(input, target, mode)) return Tensor();
  const bool elementwise = mode.reduction == Reduction::None;
  const Tensor output = elementwise ? empty_dense(input, mode.dtype) : empty_scalar(mode.dtype, input);
  const Forward request = forward_request(input, target, mode, parameter, output);
  elementwise ? Engine::template elementwise<Loss>(request, input) : Engine::template reduce<Loss>(request, input);
  return output;
}

// The loss into `output`, its gradients for a grad_output of 1 into those of the others that are wanted.
template <class Engine, template <class> class Loss>
void train_into(const Tensor& input, const Tensor& target, const Mode& mode, double parameter, const Tensor& output,
                const Result& grad_input, const Result& grad_target) {
  require(mode.reduction != Reduction::None, "only a scalar loss has its gradients in the same pass");
  const auto is_double = [](const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Double; };
  require(!is_double(output) || is_double(input) || is_double(target), "a float64 loss takes a float64 operand");
  Engine::template train<Loss>({forward_request(input, target, mode, parameter, output), grad_input, grad_target},
                               input);
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> training(Tensor input, Tensor target, int64_t packed, double parameter) {
  const Mode mode(packed);
  if (!serves(input, target, mode)) return {Tensor(), Tensor()};
  const Tensor output = empty_scalar(mode.dtype, input);
  const Tensor& wanted = mode.for_target ? target : input;
  const Tensor gradient = empty_dense(wanted, wanted.scalar_type());
  train_into<Engine, Loss>(input, target, mode, parameter, output, mode.for_target ? kNotWanted : result(gradient),
                           mode.for_target ? result(gradient) : kNotWanted);
  return {output, gradient};
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor, Tensor> training_both(Tensor input, Tensor target, int64_t packed, double parameter) {
  const Mode mode(packed);
  if (!serves(input, target, mode)) return {Tensor(), Tensor(), Tensor()};
  const Tensor output = empty_scalar(mode.dtype, input);
  const Tensor grad_input = empty_dense(input, input.scalar_type());
  const Tensor grad_target = empty_dense(target, target.scalar_type());
  train_into<Engine, Loss>(input, target, mode, parameter, output, result(grad_input), result(grad_target));
  return {output, grad_input, grad_target};
}

// What every op is given that starts from a grad_output.
struct Incoming {
  const Tensor &grad_output, &input, &target;
  Mode mode;
  double parameter;
};

// Fills the gradients that are wanted.
template <class Engine, template <class> class Loss>
void backward_into(const Incoming& a, const Result& grad_input, const Result& grad_target, bool hold_unit_gradients) {
  require(same_device(a.input, a.target) && same_order(a.input, a.target), kOperandsServed);
  require(same_device(a.input, a.grad_output), "grad_output must be on the operands' device");
  const int64_t count = a.input.numel();
  if (count == 0) return;
  const bool elementwise = a.mode.reduction == Reduction::None;
  require(elementwise ? same_sizes(a.input, a.grad_output) : a.grad_output.numel() == 1,
          "grad_output must be of the result's shape");
  const bool scalar = !elementwise || is_broadcast_scalar(a.grad_output);
  require(scalar || same_order(a.input, a.grad_output), "grad_output must be dense, of the operands' memory format");
  Engine::template backward<Loss>({operand(a.grad_output), scalar, operand(a.input), operand(a.target), count,
                                   a.parameter, a.mode.divisor(count), grad_input, grad_target, hold_unit_gradients},
                                  a.input);
}

template <class Engine, template <class> class Loss>
void backward_one(const Incoming& a, const Tensor& gradient, bool hold_unit_gradients) {
  backward_into<Engine, Loss>(a, a.mode.for_target ? kNotWanted : result(gradient),
                              a.mode.for_target ? result(gradient) : kNotWanted, hold_unit_gradients);
}

// The gradient of one operand. An op of its own: an unused second output would cost an allocation.
template <class Engine, template <class> class Loss>
Tensor gradient(Tensor grad_output, Tensor input, Tensor target, int64_t packed, double parameter) {
  const Incoming arguments = {grad_output, input, target, Mode(packed), parameter};
  const Tensor& wanted = arguments.mode.for_target ? target : input;
  const Tensor gradient = empty_dense(wanted, wanted.scalar_type());
  backward_one<Engine, Loss>(arguments, gradient, false);
  return gradient;
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> gradients(Tensor grad_output, Tensor input, Tensor target, int64_t packed,
                                     double parameter) {
  const Tensor grad_input = empty_dense(input, input.scalar_type());
  const Tensor grad_target = empty_dense(target, target.scalar_type());
  backward_into<Engine, Loss>({grad_output, input, target, Mode(packed), parameter}, result(grad_input),
                              result(grad_target), false);
  return {grad_input, grad_target};
}

// That `gradient` may be one of `training`'s.
void require_gradient(const Tensor& gradient, const Tensor& input, const Tensor& operand, const Mode& mode) {
  require(mode.reduction != Reduction::None, "only a scalar loss has its gradients in the same pass");
  require(same_device(input, gradient) && same_order(input, gradient), "gradient must be laid out as its operand");
  require(gradient.scalar_type() == operand.scalar_type(), "gradient must be of its operand's dtype");
}

// Makes the gradient that `training` gave, which is that for a grad_output of 1, the gradient for `grad_output`.
template <class Engine, template <class> class Loss>
void rescale(Tensor gradient, Tensor grad_output, Tensor input, Tensor target, int64_t packed, double parameter) {
  const Mode mode(packed);
  require_gradient(gradient, input, mode.for_target ? target : input, mode);
  backward_one<Engine, Loss>({grad_output, input, target, mode, parameter}, gradient, true);
}

template <class Engine, template <class> class Loss>
void rescale_both(Tensor grad_input, Tensor grad_target, Tensor grad_output, Tensor input, Tensor target,
                  int64_t packed, double parameter) {
  const Mode mode(packed);
  require_gradient(grad_input, input, input, mode);
  require_gradient(grad_target, input, target, mode);
  backward_into<Engine, Loss>({grad_output, input, target, mode, parameter}, result(grad_input), result(grad_target),
                              true);
}

template <class Engine>
void register_ops(torch::stable::detail::StableLibrary& library) {
#define CUDALOSS_OP(name, kind, kernel) library.impl("_" #name "_" kind, TORCH_BOX((&kernel<Engine, losses::name>)));
#define CUDALOSS_LOSS(name)                                 \
  CUDALOSS_OP(name, "loss", loss)                           \
  CUDALOSS_OP(name, "training", training)                   \
  CUDALOSS_OP(name, "training_both", training_both)         \
  CUDALOSS_OP(name, "gradient", gradient)                   \
  CUDALOSS_OP(name, "gradients", gradients)                 \
  CUDALOSS_OP(name, "rescale_", rescale)                    \
  CUDALOSS_OP(name, "rescale_both_", rescale_both)          \
  CUDALOSS_OP(name, "general", general)                     \
  CUDALOSS_OP(name, "general_training", general_training)   \
  CUDALOSS_OP(name, "general_gradients", general_gradients) \
  CUDALOSS_OP(name, "general_rescale_", general_rescale)
#include "losses.inc"
#undef CUDALOSS_LOSS
#undef CUDALOSS_OP
}

}  // namespace
}  // namespace cudaloss::tensors

STABLE_TORCH_LIBRARY_IMPL(cudaloss, CPU, library) { cudaloss::tensors::register_ops<cudaloss::tensors::Cpu>(library); }
#if defined(CUDALOSS_WITH_CUDA)
STABLE_TORCH_LIBRARY_IMPL(cudaloss, CUDA, library) {
  cudaloss::tensors::register_ops<cudaloss::tensors::Cuda>(library);
}
#endif
