// 1 - cos of two vectors: 1 - u v / (max(|u|, eps) max(|v|, eps)).
#pragma once

#include "core/pass.h"
#include "core/vectors.h"

namespace cudaloss::losses {

struct cosine_similarity {
  static constexpr VectorsOf kVectors = VectorsOf::Operands;
  static constexpr bool kHasThird = false;
  double eps;

  CUDALOSS_INLINE explicit cosine_similarity(const Numbers& numbers) : eps(numbers.third) {}
  CUDALOSS_INLINE static constexpr bool needs_w() { return false; }

  CUDALOSS_INLINE VectorRow finish(const VectorSums& sums, double) const {
    const double least = eps * eps, most = 1.0 / eps;
    const bool short_u = sums.uu < least, short_v = sums.vv < least;
    const Cosine cosine = cosine_of(sums.third, select(short_u, most, inverse_norm(sums.uu)),
                                    select(short_v, most, inverse_norm(sums.vv)), select(short_u, 0.0, 1.0 / sums.uu),
                                    select(short_v, 0.0, 1.0 / sums.vv));
    return row_of(1.0 - cosine.value, -1.0, cosine);
  }
};

}  // namespace cudaloss::losses
