// Of the classes that one process has of a row: log(sum of exp(x)) of those that are not the target's. With the
// target's own logit it is all that a cross entropy must know of them, whose loss then is one over two classes a
// process.
#pragma once

#include "core/numbers.h"
#include "core/pass.h"
#include "core/softmax.h"

namespace cudaloss {

struct vocabulary_part {
  static constexpr bool kIsPart = true;
  static constexpr double smoothing = 0.0;

  explicit vocabulary_part(const Pass&) {}

  // Of no class but the target's the loss is -inf, and has no gradient. At the target stands `grad_target` itself.
  CUDALOSS_INLINE ClassRow finish(const OtherClasses<double>& others, double, double grad_target, const ClassShares&,
                                  double = 0.0) const {
    const WithRest<double> log = log_of(others.sum), one = {1.0, 0.0}, nothing = {0.0, 0.0};
    const bool is_empty = others.max == -DBL_MAX && !(others.sum.value != others.sum.value);  // as bounded() has it
    const WithRest<double> share = quotient_of(one, others.sum, reciprocal_of(others.sum.value));
    const double log_sum = select(is_empty, -static_cast<double>(INFINITY), others.max + rounded(log));
    return {log_sum, select(is_empty, nothing, share), 0.0, grad_target, log};
  }

  struct InFloat {
    static constexpr float z_loss = 0.0f;
    static constexpr bool smooths = false;
    InFloat(const vocabulary_part&, double) {}
  };
};

}  // namespace cudaloss
