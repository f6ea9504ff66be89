// How a private op is to work, in one int: a string or a ScalarType costs the dispatcher 0.5 us more, and the stable
// ABI of torch 2.13 leaks the string. src/cudaloss/_modes.py packs it.
#pragma once

#include <cstdint>

#include "torch/operands.h"

namespace cudaloss::tensors {

enum class Reduction { None, Mean, Sum };

struct Mode {
  Reduction reduction;
  ScalarType dtype;  // of the loss
  bool for_target;   // the target's gradient is wanted; of a plain op's two: instead of the input's
  bool for_input;    // the input's is (of a general op; a plain one takes it for granted)
  bool ignore_nan;
  bool may_decline;  // the caller has not checked the operands: the answer may be an undefined tensor, None in Python

  explicit Mode(int64_t packed)
      : reduction(static_cast<Reduction>(packed & 3)),
        dtype(kDTypes[packed >> 2 & 3]),
        for_target(packed >> 4 & 1),
        for_input(packed >> 6 & 1),
        ignore_nan(packed >> 7 & 1),
        may_decline(packed >> 5 & 1) {
    require(packed >= 0 && packed < 1 << 8 && (packed & 3) < 3, "mode must be one of _modes.py's");
  }

  double divisor(int64_t count) const { return reduction == Reduction::Mean ? static_cast<double>(count) : 1.0; }

 private:
  static constexpr ScalarType kDTypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half,
                                           ScalarType::BFloat16};
};

}  // namespace cudaloss::tensors
