// The general ops: operands of any strides that broadcast together, masks, weights, normalizers, a reduction for each
// index of the leading dimensions.
#pragma once

#include <torch/csrc/stable/library.h>

#include <optional>
#include <tuple>

#include "torch/layout.h"
#include "torch/mode.h"

namespace cudaloss::tensors {

using Maybe = std::optional<Tensor>;

// What every general op is given.
struct Call {
  const Tensor &input, &target;
  const Maybe &weight, &mask, &normalizer;
  Mode mode;
  double parameter, scale;
  int64_t batch_dims;

  bool elementwise() const { return mode.reduction == Reduction::None; }
  bool ignores_nan() const { return mode.ignore_nan && is_floating(any_dtype_of(target.scalar_type())); }
  // Whether the denominator must be found out before the pass.
  bool counts() const { return mode.reduction == Reduction::Mean && !normalizer && (weight || mask || ignores_nan()); }
};

inline Layout layout_of(const Call& call) {
  Layout layout(call.input, call.target);
  require(same_device(call.input, call.target), "input and target must be on one device");
  for (const Maybe* beside : {&call.weight, &call.mask, &call.normalizer}) {
    require(!*beside || same_device(call.input, **beside), "all operands must be on one device");
  }
  require(call.batch_dims >= 0 && call.batch_dims <= layout.rank(), "batch_dims must be between 0 and the rank");
  if (call.weight) layout.add(kWeight, *call.weight);
  if (call.mask) {
    require(call.mask->scalar_type() == ScalarType::Bool, "mask must be bool");
    layout.add(kMask, *call.mask);
  }
  require(!call.normalizer || call.normalizer->dim() == 0, "normalizer must be 0-d");
  return layout;
}

inline Selection selection_of(const Call& call) {
  return {call.mask ? any_operand(*call.mask) : kNoOperand, call.weight ? operand(*call.weight) : kNoOperand,
          call.ignores_nan()};
}

// The denominators, where they must be counted: (segments, 2) of float64, each with its reciprocal. Else empty.
template <class Engine>
Tensor counted(const Call& call, const Layout& layout) {
  const auto leading = layout.leading_sizes(call.batch_dims);
  int64_t segments = 1;
  for (const int64_t size : leading) segments *= size;
  const int64_t sizes[] = {call.counts() ? segments : 0, 2}, strides[] = {2, 1};
  Tensor found = empty({sizes, 2}, {strides, 2}, ScalarType::Double, call.input);
  if (!call.counts() || segments == 0) return found;
  Count count = {selection_of(call), any_operand(call.target), {}, {}, 1.0, nullptr};
  const auto is_leading = [&](int dim) { return dim < call.batch_dims; };
  count.segments = layout.in_order(is_leading);
  count.inner = layout.by_memory([&](int dim) { return !is_leading(dim); });
  // What does not vary is not read again.
  Dims varying = {};
  for (int dim = 0; dim < count.inner.rank; ++dim) {
    const int64_t* stride = count.inner.stride[dim];
    if (stride[kWeight] || stride[kMask] || (call.ignores_nan() && stride[kTarget])) {
      varying.size[varying.rank] = count.inner.size[dim];
      std::copy(stride, stride + kPlaces, varying.stride[varying.rank++]);
    } else {
      count.multiplicity *= static_cast<double>(count.inner.size[dim]);
    }
  }
  count.inner = varying;
  count.output = static_cast<Divisor*>(found.mutable_data_ptr());
  Engine::count(count, call.input);
  return found;
}

// The pass over all elements, a segment for each index of the leading dimensions; what it is to write is still missing.
inline Pass pass_of(const Call& call, const Layout& layout, const Tensor& divisors) {
  Pass pass = {};
  pass.input = operand(call.input);
  pass.target = any_operand(call.target);
  pass.selection = selection_of(call);
  pass.parameter = call.parameter;
  pass.scale = call.scale;
  pass.denominator = {divisor_of(1.0), call.normalizer ? any_operand(*call.normalizer) : kNoOperand,
                      divisors.numel() ? static_cast<const Divisor*>(divisors.const_data_ptr()) : nullptr,
                      divisors.numel() > 2};
  require(!call.counts() || divisors.numel() > 0 || call.input.numel() * call.target.numel() == 0,
          "divisors must be those of the forward");
  if (call.mode.reduction == Reduction::Mean && !call.normalizer && !call.counts()) {
    int64_t count = 1;
    for (int dim = static_cast<int>(call.batch_dims); dim < layout.rank(); ++dim) count *= layout.sizes()[dim];
    pass.denominator.constant = divisor_of(static_cast<double>(count));
  }
  return pass;
}

inline void set_dims(Pass& pass, const Call& call, const Layout& layout) {
  const int64_t leading = call.elementwise() ? 0 : call.batch_dims;
  pass.segments = layout.in_order([&](int dim) { return dim < leading; });
  pass.inner = layout.by_memory([&](int dim) { return dim >= leading; });
}

inline Tensor contiguous_empty(torch::headeronly::IntHeaderOnlyArrayRef sizes, ScalarType dtype, const Tensor& like) {
  int64_t strides[kMaxDims];
  int64_t stride = 1;
  for (size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = stride;
    stride *= std::max<int64_t>(sizes[dim], 1);
  }
  return empty(sizes, {strides, sizes.size()}, dtype, like);
}

// The layout of single losses: that of the input, else of the target, where one has the result's shape.
inline Tensor empty_losses(const Call& call, const Layout& layout) {
  for (const Tensor* like : {&call.input, &call.target}) {
    if (layout.is_full(*like)) return empty_as(*like, call.mode.dtype);
  }
  return contiguous_empty(layout.sizes(), call.mode.dtype, call.input);
}

inline Tensor nothing(const Tensor& device_of) {
  const int64_t size = 0, stride = 1;
  return empty({&size, 1}, {&stride, 1}, ScalarType::Float, device_of);
}

// What `work` answers. Where the caller has not looked at the operands: undefined tensors, None in Python, if they are
// not what the kernels serve.
template <class Work>
auto or_declined(const Call& call, const Work& work) -> decltype(work()) {
  if (!call.mode.may_decline) return work();
  try {
    return work();
  } catch (const std::runtime_error&) {
    return {};
  }
}

// What the ops' schemas have in common, in its order.
#define CUDALOSS_GENERAL_PARAMETERS                                                                          \
  Tensor input, Tensor target, Maybe weight, Maybe mask, Maybe normalizer, int64_t packed, double parameter, \
      double scale, int64_t batch_dims
#define CUDALOSS_GENERAL_CALL \
  Call { input, target, weight, mask, normalizer, Mode(packed), parameter, scale, batch_dims }

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> loss_and_divisors(const Call& call) {
  Layout layout = layout_of(call);
  const Tensor divisors = counted<Engine>(call, layout);
  const Tensor output = call.elementwise()
                            ? empty_losses(call, layout)
                            : contiguous_empty(layout.leading_sizes(call.batch_dims), call.mode.dtype, call.input);
  if (call.elementwise()) layout.add(kFirst, output);
  Pass pass = pass_of(call, layout, divisors);
  set_dims(pass, call, layout);
  (call.elementwise() ? pass.losses : pass.reduction) = result(output);
  Engine::template pass<Loss>(pass, call.input);
  return {output, divisors};
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> general(CUDALOSS_GENERAL_PARAMETERS) {
  const Call call = CUDALOSS_GENERAL_CALL;
  return or_declined(call, [&] { return loss_and_divisors<Engine, Loss>(call); });
}

template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor, Tensor, Tensor> trained(const Call& call) {
  const auto& [input, target, weight, mask, normalizer, mode, parameter, scale, batch_dims] = call;
  require(!call.elementwise(), "only a reduced loss has its gradients in the same pass");
  Layout layout = layout_of(call);
  require((!mode.for_input || layout.is_full(input)) && (!mode.for_target || layout.is_full(target)),
          "an operand that is broadcast has its gradient in a pass of its own");
  const Tensor divisors = counted<Engine>(call, layout);
  const Tensor output = contiguous_empty(layout.leading_sizes(batch_dims), mode.dtype, input);
  const Tensor grad_input = mode.for_input ? empty_as(input, input.scalar_type()) : nothing(input);
  const Tensor grad_target = mode.for_target ? empty_as(target, target.scalar_type()) : nothing(input);
  if (mode.for_input) layout.add(kFirst, grad_input);
  if (mode.for_target) layout.add(kSecond, grad_target);
  Pass pass = pass_of(call, layout, divisors);
  set_dims(pass, call, layout);
  pass.reduction = result(output);
  if (mode.for_input) pass.grad_input = result(grad_input);
  if (mode.for_target) pass.grad_target = result(grad_target);
  Engine::template pass<Loss>(pass, input);
  return {output, grad_input, grad_target, divisors};
}

// The reduction and the gradients that are wanted, for a grad_output of 1, from one pass; those that are not are empty.
template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor, Tensor, Tensor> general_training(CUDALOSS_GENERAL_PARAMETERS) {
  const Call call = CUDALOSS_GENERAL_CALL;
  return or_declined(call, [&] { return trained<Engine, Loss>(call); });
}

inline void add_grad_output(Pass& pass, Layout& layout, const Call& call, const Tensor& grad_output) {
  require(same_device(call.input, grad_output), "grad_output must be on the operands' device");
  require(grad_output.dim() == (call.elementwise() ? layout.rank() : call.batch_dims),
          "grad_output must be of the result's shape");
  layout.add(kGradOutput, grad_output, true);
  pass.grad_output = operand(grad_output);
}

// Fills the gradients that are wanted, of operands that have the result's shape.
template <class Engine, template <class> class Loss>
void full_gradients_into(const Call& call, Layout layout, const Tensor& grad_output, const Tensor& divisors,
                         const Tensor* grad_input, const Tensor* grad_target, bool hold_unit_gradients) {
  if (!grad_input && !grad_target) return;
  if (grad_input) layout.add(kFirst, *grad_input);
  if (grad_target) layout.add(kSecond, *grad_target);
  Pass pass = pass_of(call, layout, divisors);
  add_grad_output(pass, layout, call, grad_output);
  set_dims(pass, call, layout);
  if (grad_input) pass.grad_input = result(*grad_input);
  if (grad_target) pass.grad_target = result(*grad_target);
  pass.hold_unit_gradients = hold_unit_gradients;
  Engine::template pass<Loss>(pass, call.input);
}

// The gradient of an operand that is broadcast: a segment for each of its elements, summed over all others.
template <class Engine, template <class> class Loss>
Tensor summed_gradient(const Call& call, Layout layout, const Tensor& grad_output, const Tensor& divisors,
                       const Tensor& operand, bool of_target) {
  require(divisors.numel() <= 2, "denominators of several segments must be part of grad_output");
  Pass pass = pass_of(call, layout, divisors);
  add_grad_output(pass, layout, call, grad_output);
  const int missing = layout.rank() - static_cast<int>(operand.dim());
  const auto is_own = [&](int dim) { return dim >= missing && operand.sizes()[dim - missing] != 1; };
  pass.segments = layout.in_order(is_own);
  pass.inner = layout.by_memory([&](int dim) { return !is_own(dim); });
  const Tensor gradient = contiguous_empty(operand.sizes(), operand.scalar_type(), operand);
  pass.reduction = result(gradient);
  pass.summed_gradient = of_target ? -1 : 1;
  Engine::template pass<Loss>(pass, call.input);
  return gradient;
}

// The gradients that are wanted, from the operands; those that are not are empty.
template <class Engine, template <class> class Loss>
std::tuple<Tensor, Tensor> general_gradients(Tensor grad_output, Tensor divisors, CUDALOSS_GENERAL_PARAMETERS) {
  const Call call = CUDALOSS_GENERAL_CALL;
  const Layout layout = layout_of(call);
  std::optional<Tensor> found[2];
  const Tensor* full[2] = {nullptr, nullptr};
  for (const bool of_target : {false, true}) {
    const Tensor& operand = of_target ? target : input;
    Maybe& gradient = found[of_target];
    if (!(of_target ? call.mode.for_target : call.mode.for_input)) {
      gradient = nothing(input);
    } else if (layout.is_full(operand)) {
      gradient = empty_as(operand, operand.scalar_type());
      full[of_target] = &*gradient;
    } else {
      gradient = summed_gradient<Engine, Loss>(call, layout, grad_output, divisors, operand, of_target);
    }
  }
  full_gradients_into<Engine, Loss>(call, layout, grad_output, divisors, full[0], full[1], false);
  return {*found[0], *found[1]};
}

// Makes the gradients that `general_training` gave those for `grad_output`.
template <class Engine, template <class> class Loss>
void general_rescale(Tensor grad_input, Tensor grad_target, Tensor grad_output, Tensor divisors,
                     CUDALOSS_GENERAL_PARAMETERS) {
  const Call call = CUDALOSS_GENERAL_CALL;
  require(!call.elementwise(), "only a reduced loss has its gradients in the same pass");
  const Layout layout = layout_of(call);
  require(!call.mode.for_input || grad_input.scalar_type() == input.scalar_type(),
          "gradient must be of its operand's dtype");
  require(!call.mode.for_target || grad_target.scalar_type() == target.scalar_type(),
          "gradient must be of its operand's dtype");
  require(
      (!call.mode.for_input || layout.is_full(grad_input)) && (!call.mode.for_target || layout.is_full(grad_target)),
      "gradient must be of its operand's shape");
  full_gradients_into<Engine, Loss>(call, layout, grad_output, divisors, call.mode.for_input ? &grad_input : nullptr,
                                    call.mode.for_target ? &grad_target : nullptr, true);
}

#undef CUDALOSS_GENERAL_PARAMETERS
#undef CUDALOSS_GENERAL_CALL

}  // namespace cudaloss::tensors
