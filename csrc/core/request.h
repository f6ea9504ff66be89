// What the tensor layer asks of an engine: pointers and sizes. Operands are dense, in one common element order.
#pragma once

#include <cstdint>

#include "core/dtype.h"

namespace cudaloss {

struct Operand {
  const void* data;
  DType dtype;
};

struct Result {
  void* data;  // null: not wanted (one of the two gradients)
  DType dtype;
};

struct Forward {
  Operand input, target;
  int64_t count;
  double parameter;  // the loss's own: beta, delta
  double divisor;    // of the sum: the count for a mean, 1 for a sum
  Result output;     // one element, or `count` of them for an elementwise loss
};

// A reduction and its gradients in one pass: the gradients are those for a grad_output of 1.
struct Training {
  Forward forward;
  Result grad_input, grad_target;
};

struct Backward {
  Operand grad_output;
  bool grad_output_is_scalar;  // one element for all, or one for each
  Operand input, target;
  int64_t count;
  double parameter;
  double divisor;
  Result grad_input, grad_target;
  bool hold_unit_gradients;  // the gradients wanted hold Training's already, which are left alone where they can be
};

}  // namespace cudaloss
