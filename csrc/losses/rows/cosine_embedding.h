// Of two vectors and a label (Hadsell et al., 2006): 1 - cos for 1, max(0, cos - margin) for -1, with
// cos = u v / sqrt((u u + 1e-12) (v v + 1e-12)); 0 for every other label, as in PyTorch.
#pragma once

#include "core/pass.h"
#include "core/vectors.h"

namespace cudaloss::losses {

struct cosine_embedding {
  static constexpr VectorsOf kVectors = VectorsOf::Operands;
  static constexpr bool kHasThird = true;  // the label
  double margin;

  CUDALOSS_INLINE explicit cosine_embedding(const Numbers& numbers) : margin(numbers.third) {}
  CUDALOSS_INLINE static constexpr bool needs_w() { return false; }

  CUDALOSS_INLINE VectorRow finish(const VectorSums& sums, double label) const {
    constexpr double kLeast = 1e-12;
    const double inverse_u = inverse_norm(sums.uu + kLeast), inverse_v = inverse_norm(sums.vv + kLeast);
    const Cosine cosine = cosine_of(sums, inverse_u, inverse_v, inverse_u, inverse_v);
    const double above = cosine.value - margin;
    const bool repels = label == -1.0 && !(above < 0.0);  // NaN is handed on; 0 as PyTorch's clamp
    const double sign = select(label == 1.0, -1.0, select(repels, 1.0, 0.0));
    if (sign == 0.0) return {0.0, {}, {}, {}, false};
    return {select(repels, above, 1.0 - cosine.value),
            {sign * cosine.input.of_u, sign * cosine.input.of_v},
            {sign * cosine.target.of_u, sign * cosine.target.of_v},
            {},
            false};
  }
};

}  // namespace cudaloss::losses
