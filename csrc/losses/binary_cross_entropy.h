// Binary cross-entropy of probabilities, -t log(x) - (1 - t) log(1 - x). A log below -100 becomes -100.
// Good, "Rational Decisions", 1952.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct binary_cross_entropy {
  using F = Scalar<T>;
  static constexpr bool kIsHeavy = true, kIsFast = std::is_same_v<T, FastFloat>;

  struct Terms {
    F x, t;
    WithRest<F> x_off;  // 1 - x
  };

  explicit binary_cross_entropy(const Numbers&) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const { return {x, t, one_less(x)}; }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> off = one_less(e.t), log_on = clamped(log_as<T>(e.x)), log_off = clamped(log_as<T>(e.x_off));
    if constexpr (kIsFast) return -fused(e.t, log_on.value, fused(off.value, log_off.value, F(0)));
    const F rests = fused(e.t, log_on.rest, fused(off.value, log_off.rest, off.rest * log_off.value));
    return -fused(e.t, log_on.value, fused(off.value, log_off.value, rests));
  }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    const F log_on = clamped(log_in_sum(e.x)), log_off = clamped(log_in_sum(e.x_off.value, e.x_off.rest));
    return -fused(e.t, log_on, (F(1) - e.t) * log_off);
  }
  // (x - t) / (x (1 - x)). A product below 1e-12 becomes 1e-12; for x outside [0, 1] the product is NaN.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const WithRest<F> least = {F(1e-12), F(1e-12 - F(1e-12))};
    WithRest<F> product = WithRest<F>{e.x, F(0)} * e.x_off;
    product = select(product.value < least.value, least, product);
    product.value = select(e.x < F(0) || e.x > F(1), F(NAN), product.value);
    if constexpr (kIsFast) return (e.x - e.t) * reciprocal_of(product.value) * scale.hi;
    return rounded_product(quotient_of(difference_of(e.x, e.t), product, reciprocal_of(product.value)), scale);
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const WithRest<F> slope = difference_of(clamped(log_as<T>(e.x_off)), clamped(log_as<T>(e.x)));
    return select(e.t == e.t, rounded_product(slope, scale), e.t);
  }

 private:
  CUDALOSS_INLINE static F clamped(F log) { return -clamped_to(F(100), -log); }
  CUDALOSS_INLINE static WithRest<F> clamped(WithRest<F> log) {
    return select(log.value + log.rest < F(-100), WithRest<F>{F(-100), F(0)}, log);
  }
};

}  // namespace cudaloss::losses
