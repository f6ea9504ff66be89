// Plain requests whose dtypes have no kernels of their own, as general passes.
#pragma once

#include "core/pass.h"
#include "core/request.h"

namespace cudaloss::cuda {

// Whether the result shows no more than the pair's own arithmetic, which is fp64 for fp64 operands alone.
inline bool is_native(const Operand& input, const Operand& target) {
  if (input.dtype == target.dtype) return true;
  return target.dtype == DType::Float32 && (input.dtype == DType::Float16 || input.dtype == DType::BFloat16);
}
inline bool is_native(const Forward& r) {
  return is_native(r.input, r.target) && (r.output.dtype != DType::Float64 || r.input.dtype == DType::Float64);
}
// A half's gradient beside an fp32 target takes a half's arithmetic, the target's own would take fp32's.
inline bool is_native(const Operand& input, const Operand& target, const Result& grad_target) {
  return is_native(input, target) && (input.dtype == target.dtype || !grad_target.data);
}
// In one pass, never those of fp16, which divided by a large count could underflow before a gradient scaler's factor.
inline bool is_native(const Training& r) {
  const auto is_half = [](const Result& gradient) { return gradient.data && gradient.dtype == DType::Float16; };
  return is_native(r.forward) && is_native(r.forward.input, r.forward.target, r.grad_target) &&
         !is_half(r.grad_input) && !is_half(r.grad_target);
}
inline bool is_native(const Backward& r) { return is_native(r.input, r.target, r.grad_target); }

// Of `count` elements side by side, in all operands and results.
inline Pass dense_pass(const Operand& input, const Operand& target, int64_t count, double parameter, double divisor) {
  Pass pass = {};
  pass.input = input;
  pass.target = target;
  pass.inner.rank = 1;
  pass.inner.size[0] = count;
  for (const Place place : {kInput, kTarget, kFirst, kSecond}) pass.inner.stride[0][place] = 1;
  pass.parameter = parameter;
  pass.scale = 1.0;
  pass.denominator.constant = divisor_of(divisor);
  return pass;
}

inline Pass as_pass(const Training& r) {
  const Forward& forward = r.forward;
  Pass pass = dense_pass(forward.input, forward.target, forward.count, forward.parameter, forward.divisor);
  pass.reduction = forward.output;
  pass.grad_input = r.grad_input;
  pass.grad_target = r.grad_target;
  return pass;
}

inline Pass as_pass_of_losses(const Forward& r) {
  Pass pass = dense_pass(r.input, r.target, r.count, r.parameter, 1.0);
  pass.losses = r.output;
  return pass;
}

inline Pass as_pass(const Backward& r) {
  Pass pass = dense_pass(r.input, r.target, r.count, r.parameter, r.divisor);
  pass.grad_output = r.grad_output;
  pass.inner.stride[0][kGradOutput] = r.grad_output_is_scalar ? 0 : 1;
  pass.hold_unit_gradients = r.hold_unit_gradients;
  pass.grad_input = r.grad_input;
  pass.grad_target = r.grad_target;
  return pass;
}

}  // namespace cudaloss::cuda
