// The terms of the Kullback-Leibler divergence, t (log t - x) of an input x that is the log of a probability.
// Kullback, Leibler, "On Information and Sufficiency", 1951.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct kl_div {
  using F = Scalar<T>;

  struct Terms {
    F x;
    Lifted<F> mass;     // the target's probability
    WithRest<F> above;  // its log less the input's
  };

  Flag<F> log_target, log_input;

  explicit kl_div(const Numbers& n) : log_target((n.flags & 1) != 0), log_input((n.flags & 2) != 0) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const WithRest<F> given = {t, F(0)}, log_of_input = {x, F(0)};
    const Lifted<F> plain = {{t, F(0)}, F(1)};
    Lifted<F> mass = either(log_target, [&] { return exp_as<T>(t, is_lifted(t)); }, [&] { return plain; });
    mass.number.value = select(x == x, mass.number.value, x);
    const WithRest<F> of_target = either(log_target, [&] { return given; }, [&] { return log_as<T>(t); });
    const WithRest<F> of_input = either(log_input, [&] { return log_of_input; }, [&] { return log_as<T>(x); });
    return {x, mass, difference_of(of_target, of_input)};
  }
  CUDALOSS_INLINE F value(const Terms& e) const { return product_as<T>(e.mass, e.above, Constant<F>{F(1), F(0)}); }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const Lifted<F> slope = {{-e.mass.number.value, -e.mass.number.rest}, e.mass.back};
    const auto divided = [&] { return select(slope.number.value == F(0), F(0), divided_as<T>(slope, e.x, scale)); };
    return either(log_input, [&] { return rounded_product(slope.number, scale) * slope.back; }, divided);
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const Lifted<F> here = {{select(e.mass.number.value == F(0), F(0), F(1)), F(0)}, F(1)};
    return product_as<T>(log_target.choose(e.mass, here), difference_of(e.above, WithRest<F>{F(-1), F(0)}), scale);
  }
};

}  // namespace cudaloss::losses
