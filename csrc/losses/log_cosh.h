// log(cosh(d)): d^2 / 2 near 0, |d| - log(2) far from it.
// Green, "Bayesian Reconstructions from Emission Tomography Data Using a Modified EM Algorithm", 1990.
#pragma once

#include "core/exp_log.h"
#include "core/functor.h"

namespace cudaloss::losses {

template <class T>
struct log_cosh {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kMirrors = true;

  struct Terms {
    F d;
    N distance, exp;  // |d|, exp(-2 |d|)
  };

  explicit log_cosh(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N d = sound(difference_in<N>(x, t)), distance = absolute(d);
    return {value_of(d), distance, exp_of_negative(twice(distance))};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    using Parts = ExpParts<F>;
    const F z = value_of(e.distance), rest = rest_of(e.distance), square = fused(z, z, twice(z) * rest);
    const F far = (z - Parts::ln2) + (log1p_far(value_of(e.exp) + rest_of(e.exp)) + (rest - Parts::ln2_rest));
    return select(square < F(0.5), square * fused(square, log_cosh_tail(square), F(0.5)), far);
  }
  // tanh(d).
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const N more = one_plus(e.exp), ratio = quotient_of(one_plus(-e.exp), more, reciprocal_of(value_of(more)));
    if constexpr (kHasRest<N>) {
      return rounded_finite_product(signed_by(e.d, ratio), scale);
    } else {  // where 1 - exp would cancel, three terms of the series
      const F square = e.d * e.d, near = e.d * fused(square, fused(square, F(2) / 15, F(-1) / 3), F(1));
      return select(square < F(0.0625), near, signed_by(e.d, ratio)) * scale.hi;
    }
  }
};

}  // namespace cudaloss::losses
