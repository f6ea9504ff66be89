// For two vectors and a label (Hadsell et al., 2006): 1 - cos for label 1, max(0, cos - margin) for -1, with cos = u v
// / sqrt((u u + 1e-12) (v v + 1e-12)); 0 for every other label, as in PyTorch.
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
    const double uu = sums.uu + kLeast, vv = sums.vv + kLeast;
    const Cosine cosine = cosine_of(sums.third, inverse_norm(uu), inverse_norm(vv), 1.0 / uu, 1.0 / vv);
    const double above = cosine.value - margin;
    if (label == 1.0) return row_of(1.0 - cosine.value, -1.0, cosine);
    if (label == -1.0 && !(above < 0.0)) return row_of(above, 1.0, cosine);  // at 0 like PyTorch's clamp
    return {};
  }
};

}  // namespace cudaloss::losses
