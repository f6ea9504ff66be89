// The ops of a cross entropy whose classes are split over processes, for the classes of this process.
#pragma once

#include <tuple>

#include "torch/call.h"

namespace cudaloss::tensors {

// The first arguments of both ops' schemas; `how` is that of single losses of cross_entropy.
#define CUDALOSS_PART                                                                                             \
  Tensor input, Tensor target, int64_t how, std::optional<Tensor> mask, int64_t first_class, int64_t all_classes, \
      int64_t ignore_index

struct PartCall {
  const Maybe none;
  const std::optional<double> divisor;
  const Call call;
  Layout layout;
  const Part part;

  PartCall(const Tensor& input, const Tensor& target, int64_t how, const Maybe& mask, int64_t first_class,
           int64_t all_classes, int64_t ignore_index)
      : call{input, target, Mode(how), {}, 1.0, none, mask, none, divisor, none, ignore_index},
        layout(layout_of(call)),
        part{all_classes, first_class, {nullptr, DType::Float64}, kNoOperand} {
    require_below_autograd(call);
    const char* fault = fault_of(call, layout);
    require(!fault, fault ? fault : "");
    require(call.elementwise() && call.has_indices(), "a part of the classes has single losses of indices");
    require(0 <= first_class && first_class <= all_classes - layout.classes(),
            "first_class must be one of all classes");
  }
  Pass pass() const {
    Pass pass = pass_of(call, layout, nullptr, false);
    pass.part = part;
    set_dims(pass, call, layout);
    return pass;
  }
};

// For each row, in float64: log(sum of exp(x)) over the classes except the target's; and the target's logit, -inf if
// another process has it.
template <class Engine>
std::tuple<Tensor, Tensor> vocabulary_part(CUDALOSS_PART) {
  PartCall own(input, target, how, mask, first_class, all_classes, ignore_index);
  const Tensor log_sums = empty_contiguous(own.layout.sizes(), ScalarType::Double, input);
  const Tensor targets = empty_contiguous(own.layout.sizes(), ScalarType::Double, input);
  own.layout.add(kResult, log_sums);
  Pass pass = own.pass();
  pass.losses = result(log_sums);
  pass.part.targets = result(targets);
  Engine::vocabulary_pass(pass, input);
  return {log_sums, targets};
}

// The logits' gradients, from the gradients of the two results, which must have equal strides.
template <class Engine>
Tensor vocabulary_part_backward(Tensor grad_log_sums, Tensor grad_targets, CUDALOSS_PART) {
  PartCall own(input, target, how, mask, first_class, all_classes, ignore_index);
  for (const Tensor* grad : {&grad_log_sums, &grad_targets}) {
    require(own.layout.is_full(*grad) && same_device(input, *grad), "a gradient must be of the rows' shape");
  }
  const auto strides = grad_log_sums.strides();
  require(std::equal(strides.begin(), strides.end(), grad_targets.strides().begin()), "the gradients must lie alike");
  const Tensor gradient = empty_as(input, input.scalar_type());
  own.layout.add(kGradOutput, grad_log_sums);
  own.layout.add(kResult, gradient);
  Pass pass = own.pass();
  pass.grad_output = operand(grad_log_sums);
  pass.part.grad_targets = operand(grad_targets);
  pass.grad_input = result(gradient);
  Engine::vocabulary_pass(pass, input);
  return gradient;
}

#undef CUDALOSS_PART

}  // namespace cudaloss::tensors
