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
    F d, rest;  // of |d|
    ExpBelowOne<F> of;
  };

  explicit log_cosh(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const N difference = difference_in<N>(x, t);
    const F d = value_of(difference), z = absolute(d);
    if constexpr (kHasRest<N>) {
      const F rest = select(z > F(ExpParts<F>::limit), F(0), signed_by(d, difference.rest));
      return {d, rest, exp_below_one(twice(z))};
    } else {
      const F exp = fast_exp(F(-2) * z);
      return {d, F(0), {exp, {F(0.5) - F(0.5) * exp, F(0)}}};
    }
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const F z = absolute(e.d), exp = fused(-e.of.exp, twice(e.rest), e.of.exp);
    return value(z, fused(F(0.5) * z, z, z * e.rest), log1p_far(exp, e.rest - ExpParts<F>::ln2_rest));
  }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    const F z = absolute(e.d);
    return value(z, F(0.5) * z * z, log1p_far(e.of.exp, -ExpParts<F>::ln2_rest));
  }
  // tanh(d) = w / (1 - w) with w = (1 - exp) / 2.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F w = e.of.w.value, inverse = reciprocal_of(F(1) - w), ratio = w * inverse;
    if constexpr (kHasRest<N>) {
      const F rest = fused(e.of.exp, e.rest, e.of.w.rest), missing = fused(ratio, w, w - ratio);
      return signed_by(e.d, rounded_finite_product({ratio, fused(rest, inverse, missing) * inverse}, scale));
    } else {  // three terms of the series where 1 - exp would cancel
      const F square = e.d * e.d, near = e.d * fused(square, fused(square, F(2) / 15, F(-1) / 3), F(1));
      return select(square < F(0.0625), near, signed_by(e.d, ratio)) * scale.hi;
    }
  }

 private:
  CUDALOSS_INLINE static F value(F z, F half_square, F log) {
    const F near = fused(half_square * half_square, log_cosh_tail(half_square), half_square);
    return select(half_square < near_half_square(z), near, (z - ExpParts<F>::ln2) + log);
  }
};

}  // namespace cudaloss::losses
