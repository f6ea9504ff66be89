// Binary cross-entropy of probabilities, -t log(x) - (1 - t) log(1 - x), whose logs are -100 at least.
// Good, "Rational Decisions", 1952.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct binary_cross_entropy {
  using F = Scalar<T>;
  static constexpr bool kIsFast = std::is_same_v<T, FastFloat>;

  struct Terms {
    F x, t;
    WithRest<F> x_off, log_on, log_off;  // 1 - x, and the logs of x and of that
  };

  explicit binary_cross_entropy(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> x_off = one_less(x);
    return {x, t, x_off, clamped(log_as<T>(x)), clamped(log_as<T>(x_off))};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> off = one_less(e.t);
    if constexpr (kIsFast) return -fused(e.t, e.log_on.value, fused(off.value, e.log_off.value, F(0)));
    const F rests = fused(e.t, e.log_on.rest, fused(off.value, e.log_off.rest, off.rest * e.log_off.value));
    return -fused(e.t, e.log_on.value, fused(off.value, e.log_off.value, rests));
  }
  // (x - t) / (x (1 - x)), of which the product is 1e-12 at least; outside of 0 to 1 it is negative.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const WithRest<F> least = {F(1e-12), F(1e-12 - F(1e-12))};
    WithRest<F> product = WithRest<F>{e.x, F(0)} * e.x_off;
    product = select(product.value < least.value, least, product);
    product.value = select(e.x < F(0) || e.x > F(1), F(NAN), product.value);
    if constexpr (kIsFast) return (e.x - e.t) * reciprocal_of(product.value) * scale.hi;
    return rounded_product(quotient_of(difference_of(e.x, e.t), product, reciprocal_of(product.value)), scale);
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    return select(e.t == e.t, rounded_product(difference_of(e.log_off, e.log_on), scale), e.t);
  }

 private:
  CUDALOSS_INLINE static WithRest<F> clamped(WithRest<F> log) {
    return select(log.value + log.rest < F(-100), WithRest<F>{F(-100), F(0)}, log);
  }
};

}  // namespace cudaloss::losses
