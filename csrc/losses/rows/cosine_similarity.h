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
    const double inverse_u = select(short_u, most, inverse_norm(sums.uu));
    const double inverse_v = select(short_v, most, inverse_norm(sums.vv));
    const Cosine cosine =
        cosine_of(sums, inverse_u, inverse_v, select(short_u, 0.0, inverse_u), select(short_v, 0.0, inverse_v));
    return {1.0 - cosine.value,
            {-cosine.input.of_u, -cosine.input.of_v},
            {-cosine.target.of_u, -cosine.target.of_v},
            {},
            false};
  }
};

}  // namespace cudaloss::losses
