// The divergence of q = softmax(x / T) from p = softmax(t / T): T^2 sum of p (log p - log q). With d = log q - log p it
// is a sum of p (exp(d) - 1 - d), because p and q each sum to 1: no term is negative, and none cancels.
#pragma once

#include "core/distributions.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct kl_div_with_logits : TemperedLoss {
  static constexpr bool kIsCentred = false;

  CUDALOSS_INLINE explicit kl_div_with_logits(const Numbers& numbers) : TemperedLoss{numbers.third} {}

  // The slope is q - p. For a small d, differences of q and p would cancel.
  template <class T, class F = Scalar<T>>
  CUDALOSS_INLINE static DistributionTerm<F> term(F q, F p, F d) {
    const F tail = d * d * exp_tail_as<T>(d), difference = q - p;
    const bool is_small = absolute(d) < F(0.34);
    return {select(is_small, p * tail, select(p == F(0), q, fused(-p, d, difference))),
            select(is_small, p * (d + tail), difference), p, -d};
  }
  // Corrects a row whose q, p and d are slightly off, because the sums of exp were coarse and q and p do not sum to 1.
  CUDALOSS_INLINE static DistributionRow row(double divergence, double excess, double p) {
    const double more = excess / p, square = more * more * fused(more, fused(more, 0.25, -1.0 / 3), 0.5);
    const double found = divergence / p - square;                      // square: more - log(1 + more)
    const double kept = select(found < 0x1p-16 * square, 0.0, found);  // below this, only the rounding of the terms
    const double of_p = 1.0 / p;
    return {kept, 1.0 / (p + excess), -excess * of_p, of_p, more - square, kept};
  }
};

}  // namespace cudaloss::losses
