// The part of a row whose classes one process has: log(sum of exp(x)) over its classes except the target's. With the
// target's own logit, this is all that a cross entropy must know of them: its loss is then one over two classes a
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

  // If there is no class except the target's, the loss is -inf and has no gradient. The target gets `grad_target`
  // itself.
  CUDALOSS_INLINE ClassRow finish(const OtherClasses<double>& others, double, double grad_target, const ClassShares&,
                                  double = 0.0) const {
    const WithRest<double> log = log_of(others.sum), one = {1.0, 0.0}, nothing = {0.0, 0.0};
    const bool is_empty = others.max == -DBL_MAX && !(others.sum.value != others.sum.value);  // see bounded()
    const WithRest<double> share = quotient_of(one, others.sum, reciprocal_of(others.sum.value));
    const double log_sum = select(is_empty, -static_cast<double>(INFINITY), others.max + rounded(log));
    return {log_sum, select(is_empty, nothing, share), 0.0, grad_target, log};
  }

  struct InFloat {
    static constexpr float z_loss = 0.0f;
    static constexpr bool smooths = false, is_plain = false, is_soft = false;
    InFloat(const vocabulary_part&, double) {}
  };
};

}  // namespace cudaloss
