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
  CUDALOSS_INLINE static Term<F> term(WithRest<F> larger, WithRest<F> d) {
    const WithRest<F> distance = absolute(d);
    const Fall<F> fall = fall_of<kFast>(distance);
    const F p_or_q = larger.value, excess = excess_of(larger, fall);
    // 1 - exp(-d) (1 + d) of a small d, and of one beside which the 1 would lose its digits.
    const F exp = (F(1) - fall.share) - fall.lost, far = fused(-exp, fall.taken, fall.share);
    const F near = fused(fall.share, fall.taken, fused(fall.lost, fall.taken, -fall.rest));
    const F more = select(distance.value > F(1), far, near);
    const F less = fused(distance.rest, fall.share, fall.rest) + (distance.value - fall.taken);
    const bool is_more = d.value > F(0), is_none = p_or_q == F(0);  // d may then be NaN
    const F apart = select(is_more, more, less), rest = select(apart <= largest(F()), larger.rest * apart, F(0));
    return {select(is_none, F(0), fused(p_or_q, apart, rest)), select(is_none, F(0), signed_by(d.value, excess)),
            select(is_none, F(0), p_or_q - select(is_more, excess, F(0)))};
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

  // A row, of its sums: the loss, by how much all d are too large, and the share of it that q then loses.
  struct Row {
    double divergence, loss, lowered, of_q;
  };
  CUDALOSS_INLINE Row finish(double divergence, double excess, double p) const {
    const double more = excess / p, half_square = 0.5 * more * more, found = divergence / p - half_square;
    const double kept = select(found < 0x1p-16 * half_square, 0.0, found);  // the terms' own roundings
    return {kept, temperature * temperature * kept, more - half_square, excess / (p + excess)};
  }

  // The gradients, over T and the incoming one, of multiples of the larger one of p and q, or of p.
  template <bool kFast, class F>
  CUDALOSS_INLINE static F grad_input(WithRest<F> larger, WithRest<F> d) {
    const F excess = excess_of(larger, fall_of<kFast>(absolute(d)));
    return select(larger.value == F(0), F(0), signed_by(d.value, excess));
  }
  template <class F>
  CUDALOSS_INLINE static F grad_target(F p, F d, F divergence) {
    return select(p == F(0), F(0), p * (-d - divergence));
  }

 private:
  template <class F>
  CUDALOSS_INLINE static F excess_of(WithRest<F> larger, const Fall<F>& fall) {
    return fused(larger.value, fall.share, fused(larger.rest, fall.share, larger.value * fall.lost));
  }
};

}  // namespace cudaloss::losses
