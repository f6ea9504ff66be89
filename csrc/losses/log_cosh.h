// log(cosh(d)): d^2 / 2 near 0, |d| - log(2) far from it.
// Green, "Bayesian Reconstructions from Emission Tomography Data Using a Modified EM Algorithm", 1990.
#pragma once

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct log_cosh {
  using F = Scalar<T>;
  static constexpr bool kMirrors = true;

  struct Terms {
    F d;
    WithRest<F> distance, one_minus, one_plus;  // |d|, and 1 -+ exp(-2 |d|)
    F exp, inverse;                             // that exp, and about 1 / one_plus
  };

  explicit log_cosh(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> d = difference_of(x, t), distance = absolute(d), one = {F(1), F(0)};
    const WithRest<F> scaled = exp_of_minus(twice(distance.value));
    constexpr F small = ExpParts<F>::small;
    const WithRest<F> e = {scaled.value * small,
                           fused(scaled.value * small, -twice(distance.rest), scaled.rest * small)};
    const WithRest<F> one_plus = sum_of(one, e);
    return {d.value,  distance, sum_of(one, WithRest<F>{-e.value, -e.rest}),
            one_plus, e.value,  reciprocal_of(one_plus.value)};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    using Parts = ExpParts<F>;
    const F z = e.distance.value, rest = e.distance.rest, square = fused(z, z, twice(z) * rest);
    const F q = e.exp * e.inverse, log = F(0.5) * (e.exp + q), half = F(0.5);
    const F far = (z - Parts::ln2) + (fused(log, log_tail(q * e.exp), log) + (rest - Parts::ln2_rest));
    return select(z < F(1), square * fused(square, log_cosh_tail(square), half), far);
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    return signed_by(e.d, F(1)) * rounded_product(quotient_of(e.one_minus, e.one_plus, e.inverse), scale);
  }
};

}  // namespace cudaloss::losses
