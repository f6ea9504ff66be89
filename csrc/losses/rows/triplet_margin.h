// For an anchor a, a positive p and a negative n (Balntas et al., 2016): max(|u| - |v| + margin, 0), with u = a - p +
// eps and v = a - n + eps. With `swap`, |w| replaces |v| if it is smaller; w = p - n + eps.
#pragma once

#include "core/pass.h"
#include "core/vectors.h"

namespace cudaloss::losses {

struct triplet_margin {
  static constexpr VectorsOf kVectors = VectorsOf::Differences;
  static constexpr bool kHasThird = true;  // the negative
  double margin, eps;
  bool swap;

  CUDALOSS_INLINE explicit triplet_margin(const Numbers& numbers)
      : margin(numbers.third), eps(numbers.second), swap((numbers.flags & 1) != 0) {}
  CUDALOSS_INLINE bool needs_w() const { return swap; }

  CUDALOSS_INLINE VectorRow finish(const VectorSums& sums, double) const {
    const bool uses_w = swap && !(sums.third >= sums.vv);
    const double near = sums.uu, far = select(uses_w, sums.third, sums.vv);
    // A distance of 0 has a gradient of 0.
    const double u = select(near == 0.0, 0.0, inverse_norm(near)), v = select(far == 0.0, 0.0, inverse_norm(far));
    const double loss = norm_of(near, u) - norm_of(far, v) + margin;
    if (loss < 0.0) return {};  // at 0 it has a gradient, like PyTorch's clamp
    if (loss != loss) return {loss, {loss, loss}, {loss, loss}, UsesW::No};
    if (uses_w) return {loss, {u, 0.0}, {-u, -v}, UsesW::Yes};
    if (swap && sums.third == sums.vv) return {loss, {u, -0.5 * v}, {-u, -0.5 * v}, UsesW::Half};
    return {loss, {u, -v}, {-u, 0.0}, UsesW::No};
  }
};

}  // namespace cudaloss::losses
