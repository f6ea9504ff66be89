// How an op works, in one int: each further argument costs the dispatcher 0.25 us, a string or a ScalarType 0.5.
// src/cudaloss/_modes.py packs it.
#pragma once

#include <cstdint>

#include "torch/operands.h"

namespace cudaloss::tensors {

enum class Reduction { None, Mean, Sum };

struct Mode {
  Reduction reduction;
  ScalarType dtype;            // of the loss
  bool for_input, for_target;  // the gradients to make
  bool ignore_nan;
  bool may_decline;  // the caller has not checked the operands: the op may return undefined tensors, None in Python
  bool is_below_autograd;  // the caller is the op's autograd, or knows that nothing requires a gradient
  bool for_third;          // in a backward: make the third operand's gradient, in the place of the input's
  bool mean_over_count;    // a mean divides by the number of selected elements, not by the sum of their weights
  int flags;               // of the loss itself
  int64_t batch_dims;
  int64_t loss;  // the id of its row in _rows/

  explicit Mode(int64_t packed)
      : reduction(static_cast<Reduction>(packed & 3)),
        dtype(kDTypes[packed >> 2 & 3]),
        for_input(packed >> 4 & 1),
        for_target(packed >> 5 & 1),
        ignore_nan(packed >> 6 & 1),
        may_decline(packed >> 7 & 1),
        is_below_autograd(packed >> 15 & 1),
        for_third(packed >> 29 & 1),
        mean_over_count(packed >> 24 & 1),
        flags(packed >> 25 & 0xf),
        batch_dims(packed >> 8 & 0x7f),
        loss(packed >> 16 & 0xff) {
    require(packed >= 0 && (packed & 3) < 3, "mode must be one of _modes.py's");
  }

 private:
  static constexpr ScalarType kDTypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half,
                                           ScalarType::BFloat16};
};

}  // namespace cudaloss::tensors
