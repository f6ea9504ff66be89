// The divergences of q = softmax(x / T) and p = softmax(t / T) from their mixture m = a p + b q, with a = beta between
// 0 and 1 and b = 1 - beta: T^2 sum of a p log(p / m) + b q log(q / m). A class's term is never negative. It is
// computed from rho, the smaller one of q and p divided by the larger one, so that nothing overflows and, for equal q
// and p, nothing cancels.
#pragma once

#include "core/distributions.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct jsd_with_logits : TemperedLoss {
  static constexpr bool kIsCentred = true;
  double beta;

  CUDALOSS_INLINE explicit jsd_with_logits(const Numbers& numbers)
      : TemperedLoss{numbers.third}, beta(numbers.second) {}

  // Of a class, whose larger probability is `more` and whose smaller one is `less`: log(m / more), which is negative;
  // log(m / less); and the term divided by `more`.
  template <class F>
  struct Mixture {
    F of_more, of_less, term;
  };
  // From their weights in m and z = log(more / less). With y = m / more = w + v rho and x = v (1 - rho), the term is
  // w (-x - log y) + v (u - rho log(y / rho)), because x w = u v with u = w (1 - rho). The logs are series in s =
  // (y - 1) / (y + 1) and r = (y - rho) / (y + rho), where these are small.
  template <class T, class F = Scalar<T>>
  CUDALOSS_INLINE static Mixture<F> mixture(F w, F v, F z) {
    const auto [rho, gap] = decay_of<T>(z);
    const F x = v * gap, u = w * gap, y = fused(v, rho, w);
    const Apart<F> of_y = apart_in_range(y);
    const bool is_near = of_y.k == F(0);
    const F f = select(is_near, -x, of_y.f), lower_s = F(2) + f, lower_r = y + rho;
    const F inverse = reciprocal_as<T>(lower_s * lower_r);
    const F s = f * (lower_r * inverse), r = u * (lower_s * inverse);
    const F tail_s = log_tail_of_square_as<T>(s * s), tail_r = log_tail_of_square_as<T>(r * r);
    const F of_more = fused(of_y.k, F(ExpParts<F>::ln2), fused(s, tail_s, twice(s)));
    const bool is_close = r < F(0.17);
    const F of_less = select(is_close, fused(r, tail_r, twice(r)), z + of_more);
    const F first = select(is_near, s * (f - tail_s), -x - of_more);
    const F second = select(is_close, r * fused(-rho, tail_r, u), fused(-rho, of_less, u));
    return {of_more, of_less, fused(w, first, v * second)};
  }

  template <class T, class F = Scalar<T>>
  CUDALOSS_INLINE DistributionTerm<F> term(F q, F p, F d) const {
    const F a = weight<F>(beta), b = weight<F>(1.0 - beta), z = absolute(d);
    const bool is_q = d > F(0);
    // FastDouble's d is bounded by of_ratio (cuda/distribution_classes.cuh). Otherwise log(y / rho) of a rho of 0 is
    // infinite and has no part in the term, and d is NaN for two logits of -inf, and in a row that is NaN.
    constexpr bool kIsBounded = std::is_same_v<T, FastDouble>;
    const F more = select(is_q, q, p), taken = kIsBounded ? z : select(z > F(1e4), F(1e4), z);
    const Mixture<F> of = mixture<T>(select(is_q, b, a), select(is_q, a, b), taken);
    const F term = more * of.term, slope = -b * select(is_q, of.of_more, of.of_less);
    return {kIsBounded ? term : select(more == F(0), F(0), term), kIsBounded ? slope : select(q == F(0), F(0), slope),
            q, -a * select(is_q, of.of_less, of.of_more)};
  }
  CUDALOSS_INLINE static DistributionRow row(double divergence, double mean, double) {
    return {divergence, 1.0, -mean, 1.0, 0.0, divergence - mean};
  }

 private:
  // Not so small that its reciprocal overflows.
  template <class F>
  CUDALOSS_INLINE static F weight(double x) {
    const F rounded = static_cast<F>(x), bound = least(F()) * F(0x1p16);
    return select(rounded < bound, bound, rounded);
  }
};

}  // namespace cudaloss::losses
