// The ops of all pointwise losses; src/cudaloss/_private.py has their schemas. An op that may decline answers with
// undefined tensors, which are None in Python, as are gradients that nobody wants.
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>

#include "torch/call.h"

namespace cudaloss::tensors {

// What the ops' schemas have in common, in its order.
#define CUDALOSS_PARAMETERS                                                                                      \
  Tensor input, Tensor target, int64_t mode, double parameter, double scale, Maybe weight, Maybe mask,           \
      Maybe normalizer, std::optional<double> divisor
#define CUDALOSS_CALL \
  Call { input, target, Mode(mode), parameter, scale, weight, mask, normalizer, divisor }

inline Result result(const Maybe& tensor) { return tensor ? result(*tensor) : kNotWanted; }
inline Tensor or_undefined(const Maybe& tensor) { return tensor ? *tensor : Tensor(); }

inline Forward plain_forward(const Call& call, const Tensor& output) {
  const int64_t count = call.input.numel();
  return {operand(call.input),           operand(call.target), count, call.parameter,
          call.known_divisor(count), result(output)};
}

// The layout of single losses: that of the input, else of the target, where one has the result's shape.
inline Tensor empty_losses(const Call& call, const Layout& layout) {
  for (const Tensor* like : {&call.input, &call.target}) {
    if (layout.is_full(*like)) return empty_as(*like, call.mode.dtype);
  }
  return empty_contiguous(layout.sizes(), call.mode.dtype, call.input);
}

// Whether a forward declines. Of unequal shapes the caller is to be warned, by whoever has looked.
inline bool forward_declines(const Call& call, const Layout& layout) {
  return declines(call, fault_of(call, layout)) || (call.mode.may_decline && !same_sizes(call.input, call.target));
}

// The loss, and the denominators that had to be counted for it.
template <class Engine>
std::tuple<Tensor, Tensor> forward(CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  const auto& kernels = Engine::kernels(call.mode.loss);
  if (call.is_plain()) {
    const Tensor output = call.elementwise() ? empty_dense(input, call.mode.dtype) : empty_scalar(call.mode.dtype, input);
    (call.elementwise() ? kernels.elementwise : kernels.reduce)(plain_forward(call, output), input);
    return {output, Tensor()};
  }
  Layout layout = layout_of(call);
  if (forward_declines(call, layout)) return {};
  const Maybe denominators = counted<Engine>(call, layout);
  const Tensor output = call.elementwise()
                            ? empty_losses(call, layout)
                            : empty_contiguous(layout.leading_sizes(call.mode.batch_dims), call.mode.dtype, input);
  if (call.elementwise()) layout.add(kFirst, output);
  Pass pass = pass_of(call, layout, denominators);
  set_dims(pass, call, layout);
  (call.elementwise() ? pass.losses : pass.reduction) = result(output);
  kernels.pass(pass, input);
  return {output, or_undefined(denominators)};
}

// A float64 loss of narrower operands takes arithmetic that the plain kernels have not beside gradients.
inline bool trains_plainly(const Call& call) {
  const auto is_double = [](const Tensor& tensor) { return tensor.scalar_type() == ScalarType::Double; };
  return call.is_plain() && (call.mode.dtype != ScalarType::Double || is_double(call.input) || is_double(call.target));
}

// A reduced loss, the gradients that are wanted, for a grad_output of 1, from the same pass, and the denominators.
template <class Engine>
std::tuple<Tensor, Tensor, Tensor, Tensor> forward_with_grad(CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  const auto& kernels = Engine::kernels(call.mode.loss);
  require(!call.elementwise(), "only a reduced loss has its gradients in the same pass");
  Maybe grad_input, grad_target;
  if (trains_plainly(call)) {
    const Tensor output = empty_scalar(call.mode.dtype, input);
    if (call.mode.for_input) grad_input = empty_dense(input, input.scalar_type());
    if (call.mode.for_target) grad_target = empty_dense(target, target.scalar_type());
    kernels.train({plain_forward(call, output), result(grad_input), result(grad_target)}, input);
    return {output, or_undefined(grad_input), or_undefined(grad_target), Tensor()};
  }
  Layout layout = layout_of(call);
  if (forward_declines(call, layout)) return {};
  require((!call.mode.for_input || layout.is_full(input)) && (!call.mode.for_target || layout.is_full(target)),
          "an operand that is broadcast has its gradient in a pass of its own");
  const Maybe denominators = counted<Engine>(call, layout);
  const Tensor output = empty_contiguous(layout.leading_sizes(call.mode.batch_dims), call.mode.dtype, input);
  if (call.mode.for_input) layout.add(kFirst, *(grad_input = empty_as(input, input.scalar_type())));
  if (call.mode.for_target) layout.add(kSecond, *(grad_target = empty_as(target, target.scalar_type())));
  Pass pass = pass_of(call, layout, denominators);
  set_dims(pass, call, layout);
  pass.reduction = result(output);
  pass.grad_input = result(grad_input);
  pass.grad_target = result(grad_target);
  kernels.pass(pass, input);
  return {output, or_undefined(grad_input), or_undefined(grad_target), or_undefined(denominators)};
}

// Ops that autograd does not see: who calls them says that he knows.
inline void require_below_autograd(int64_t mode) {
  require(Mode(mode).is_below_autograd, "autograd does not see this op: call the loss's own, torch.ops.cudaloss.*");
}

// The two for calls without options: five arguments and one result less take the dispatcher 0.9 of 4.4 us (smooth L1 of
// 64 elements on the CPU).
template <class Engine>
Tensor loss(Tensor input, Tensor target, int64_t mode, double parameter) {
  require_below_autograd(mode);
  return std::get<0>(forward<Engine>(input, target, mode, parameter, 1.0, {}, {}, {}, {}));
}

template <class Engine>
std::tuple<Tensor, Tensor, Tensor> loss_with_grad(Tensor input, Tensor target, int64_t mode, double parameter) {
  require_below_autograd(mode);
  const auto found = forward_with_grad<Engine>(input, target, mode, parameter, 1.0, {}, {}, {}, {});
  return {std::get<0>(found), std::get<1>(found), std::get<2>(found)};
}

// Whether the plain kernels serve a backward.
inline bool is_plain_backward(const Call& call, const Tensor& grad_output) {
  if (!call.is_plain() || !same_device(call.input, grad_output)) return false;
  if (!call.elementwise()) return grad_output.numel() == 1;
  return same_order(call.input, grad_output) ||
         (same_sizes(call.input, grad_output) && is_broadcast_scalar(grad_output));
}

// Fills the gradients that are wanted, by the plain kernels.
template <class Engine>
void plain_backward(const Call& call, const Tensor& grad_output, const Maybe& grad_input, const Maybe& grad_target,
                    bool hold_unit_gradients) {
  const int64_t count = call.input.numel();
  if (count == 0) return;
  const bool is_scalar = !call.elementwise() || is_broadcast_scalar(grad_output);
  Engine::kernels(call.mode.loss)
      .backward({operand(grad_output), is_scalar, operand(call.input), operand(call.target), count, call.parameter,
                 call.known_divisor(count), result(grad_input), result(grad_target), hold_unit_gradients},
                call.input);
}

// Why the general kernels do not serve a backward of this call; null where they do.
inline const char* backward_fault(const Call& call, const Layout& layout, const Tensor& grad_output,
                                  const Maybe& denominators) {
  if (const char* fault = fault_of(call, layout)) return fault;
  if (!same_device(call.input, grad_output)) return "grad_output must be on the operands' device";
  const auto sizes = grad_output.sizes(), all = layout.sizes();
  const size_t dims = call.elementwise() ? all.size() : static_cast<size_t>(call.mode.batch_dims);
  if (sizes.size() != dims || !std::equal(sizes.begin(), sizes.end(), all.begin())) {
    return "grad_output must be of the result's shape";
  }
  return has_denominators(call, layout, denominators) ? nullptr : "denominators must be those of the forward";
}

inline Pass backward_pass(const Call& call, Layout& layout, const Tensor& grad_output, const Maybe& denominators) {
  layout.add(kGradOutput, grad_output, true);
  Pass pass = pass_of(call, layout, denominators);
  pass.grad_output = operand(grad_output);
  return pass;
}

// Fills the gradients that are wanted, of operands that have the result's shape.
template <class Engine>
void full_gradients(const Call& call, Layout layout, const Tensor& grad_output, const Maybe& denominators,
                    const Maybe& grad_input, const Maybe& grad_target, bool hold_unit_gradients) {
  if (!grad_input && !grad_target) return;
  if (grad_input) layout.add(kFirst, *grad_input);
  if (grad_target) layout.add(kSecond, *grad_target);
  Pass pass = backward_pass(call, layout, grad_output, denominators);
  set_dims(pass, call, layout);
  pass.grad_input = result(grad_input);
  pass.grad_target = result(grad_target);
  pass.hold_unit_gradients = hold_unit_gradients;
  Engine::kernels(call.mode.loss).pass(pass, call.input);
}

// The gradient of an operand that is broadcast: a segment for each of its elements, summed over all others.
template <class Engine>
Tensor summed_gradient(const Call& call, Layout layout, const Tensor& grad_output, const Maybe& denominators,
                       const Tensor& operand, int sign) {
  require(!denominators || denominators->numel() <= 2, "denominators of several segments must be part of grad_output");
  Pass pass = backward_pass(call, layout, grad_output, denominators);
  const int missing = layout.rank() - static_cast<int>(operand.dim());
  const auto is_own = [&](int dim) { return dim >= missing && operand.sizes()[dim - missing] != 1; };
  pass.segments = layout.in_order(is_own);
  pass.inner = layout.by_memory([&](int dim) { return !is_own(dim); });
  const Tensor gradient = empty_contiguous(operand.sizes(), operand.scalar_type(), operand);
  pass.reduction = result(gradient);
  pass.summed_gradient = sign;
  Engine::kernels(call.mode.loss).pass(pass, call.input);
  return gradient;
}

// The gradients that are wanted, from the operands.
template <class Engine>
std::tuple<Tensor, Tensor> backward(Tensor grad_output, Maybe denominators, CUDALOSS_PARAMETERS) {
  const Call call = CUDALOSS_CALL;
  Maybe grad_input, grad_target;
  if (is_plain_backward(call, grad_output)) {
    if (call.mode.for_input) grad_input = empty_dense(input, input.scalar_type());
    if (call.mode.for_target) grad_target = empty_dense(target, target.scalar_type());
    plain_backward<Engine>(call, grad_output, grad_input, grad_target, false);
    return {or_undefined(grad_input), or_undefined(grad_target)};
  }
  const Layout layout = layout_of(call);
  if (declines(call, backward_fault(call, layout, grad_output, denominators))) return {};
  const auto gradient = [&](const Tensor& operand, int sign, Maybe& full) {
    if (!layout.is_full(operand)) {
      return summed_gradient<Engine>(call, layout, grad_output, denominators, operand, sign);
    }
    return *(full = empty_as(operand, operand.scalar_type()));
  };
  const Tensor of_input = call.mode.for_input ? gradient(input, 1, grad_input) : Tensor();
  const Tensor of_target = call.mode.for_target ? gradient(target, -1, grad_target) : Tensor();
  full_gradients<Engine>(call, layout, grad_output, denominators, grad_input, grad_target, false);
  return {of_input, of_target};
}

// Whether all of it is known to be 1 without waiting for a GPU.
inline bool is_unit_on_cpu(const Tensor& grad_output) {
  return grad_output.is_cpu() && grad_output.numel() > 0 && is_broadcast_scalar(grad_output) &&
         number_at<double>(operand(grad_output), 0) == 1.0;
}

// Makes the gradients that `forward_with_grad` gave those for `grad_output`; nothing to do where that is 1. False
// where the op declines: hooks on saved tensors may have answered with anything.
template <class Engine>
bool rescale(Maybe grad_input, Maybe grad_target, Tensor grad_output, Maybe denominators, CUDALOSS_PARAMETERS) {
  require_below_autograd(mode);
  const Call call = CUDALOSS_CALL;
  require(!call.elementwise(), "only a reduced loss has its gradients in the same pass");
  if (is_unit_on_cpu(grad_output)) return true;
  const auto fits = [&](const Maybe& gradient, const Tensor& operand, bool wanted, const auto& lies) {
    return gradient.has_value() == wanted &&
           (!wanted || (gradient->scalar_type() == operand.scalar_type() && same_device(operand, *gradient) &&
                        lies(*gradient)));
  };
  const auto fit = [&](const auto& lies) {
    return fits(grad_input, input, call.mode.for_input, lies) && fits(grad_target, target, call.mode.for_target, lies);
  };
  if (trains_plainly(call) && is_plain_backward(call, grad_output) &&
      fit([&](const Tensor& gradient) { return same_order(input, gradient); })) {
    plain_backward<Engine>(call, grad_output, grad_input, grad_target, true);
    return true;
  }
  const Layout layout = layout_of(call);
  if (declines(call, backward_fault(call, layout, grad_output, denominators))) return false;
  if (declines(call, fit([&](const Tensor& gradient) { return layout.is_full(gradient); })
                         ? nullptr
                         : "gradients must be of their operands' shapes and dtypes")) {
    return false;
  }
  full_gradients<Engine>(call, layout, grad_output, denominators, grad_input, grad_target, true);
  return true;
}

#undef CUDALOSS_PARAMETERS
#undef CUDALOSS_CALL

}  // namespace cudaloss::tensors
