// The divergence of q = softmax(x / T) from p = softmax(t / T): T^2 sum of p (log p - log q). With d = log q - log p it
// is a sum of p (exp(d) - 1 - d), since p and q each sum to 1: no term is negative, and none cancels.
#pragma once

#include "core/distributions.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct kl_div_with_logits {
  double temperature;

  CUDALOSS_INLINE explicit kl_div_with_logits(const Numbers& numbers) : temperature(numbers.third) {}

  // What is summed up over the classes: the terms above, q - p, and p.
  template <class F>
  struct Term {
    F divergence, excess, p;
  };
  // Of the larger one of p and q, and d.
  template <bool kFast, class F>
  CUDALOSS_INLINE static Term<F> term(F larger, F d) {
    const F distance = absolute(d);
    const Fall<F> fall = fall_of<kFast>(distance);
    const bool is_more = d > F(0), is_none = larger == F(0);  // d may then be NaN
    const F apart = select(is_more, fused(fall.share, fall.taken, -fall.rest), fall.rest + (distance - fall.taken));
    const F excess = larger * fall.share;
    return {select(is_none, F(0), larger * apart), select(is_none, F(0), signed_by(d, excess)),
            select(is_none, F(0), larger - select(is_more, excess, F(0)))};
  }
  // Of q and p themselves, in double. Where d is small their difference would cancel: by exp's series there, 2^-41 of a
  // term.
  CUDALOSS_INLINE static Term<double> term(double q, double p, double d) {
    const double tail =
        fused(fused(fused(fused(d, 1.0 / 6, 1.0), d * (1.0 / 5), 1.0), d * 0.25, 1.0), d * (1.0 / 3), 1.0);
    const double near = 0.5 * d * d * tail, difference = q - p;
    const bool is_small = absolute(d) < 0x1p-6;
    return {select(is_small, p * near, select(p == 0.0, q, fused(-p, d, difference))),
            select(is_small, p * (d + near), difference), p};
  }

  // A row, of its sums: the loss, what p and q are divided by, and by how much all d are too large.
  struct Row {
    double divergence, loss, p, lowered;
  };
  CUDALOSS_INLINE Row finish(double divergence, double excess, double p) const {
    const double more = excess / p, half_square = 0.5 * more * more, found = divergence / p - half_square;
    const double kept = select(found < 0.0, 0.0, found);
    return {kept, temperature * temperature * kept, p, more - half_square};
  }

  // The gradients, over T and the incoming one, of multiples of the larger one of p and q, or of p.
  template <bool kFast, class F>
  CUDALOSS_INLINE static F grad_input(F larger, F d) {
    return select(larger == F(0), F(0), larger * signed_by(d, fall_of<kFast>(absolute(d)).share));
  }
  template <class F>
  CUDALOSS_INLINE static F grad_target(F p, F d, F divergence) {
    return select(p == F(0), F(0), p * (-d - divergence));
  }
};

}  // namespace cudaloss::losses
