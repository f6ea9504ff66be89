// The terms of the Kullback-Leibler divergence, t (log t - x), for an input x that is the log of a probability.
// Kullback, Leibler, "On Information and Sufficiency", 1951.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T, class LogTarget, class LogInput>
struct kl_div_of {
  using F = Scalar<T>;

  struct Terms {
    F x, t;
    Lifted<F> mass;  // the target's probability, for any input
  };

  LogTarget log_target;
  LogInput log_input;

  explicit kl_div_of(const Numbers& n) : log_target((n.flags & 1) != 0), log_input((n.flags & 2) != 0) {}

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const Lifted<F> plain = {{t, F(0)}, F(1)};
    const Lifted<F> mass = either(
        log_target, [&]() CUDALOSS_INLINE_LAMBDA { return exp_as<T>(t, is_lifted(t)); },
        [&]() CUDALOSS_INLINE_LAMBDA { return plain; });
    return {x, t, mass};
  }
  CUDALOSS_INLINE F value(const Terms& e) const { return product_as<T>(mass(e), above(e), Constant<F>{F(1), F(0)}); }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    const F above = either(
        log_target, [&]() CUDALOSS_INLINE_LAMBDA { return e.t - log_input_in_sum(e.x); },
        [&]() CUDALOSS_INLINE_LAMBDA {
          return either(
              log_input, [&]() CUDALOSS_INLINE_LAMBDA { return log_in_sum(e.t) - e.x; },
              [&]() CUDALOSS_INLINE_LAMBDA { return log_quotient_in_sum(e.t, e.x); });
        });
    const bool is_gone = e.mass.number.value == F(0) && e.x == e.x;
    return select(is_gone, F(0), e.mass.number.value * above) * e.mass.back;
  }
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const Lifted<F> of = mass(e), slope = {{-of.number.value, -of.number.rest}, of.back};
    const auto divided = [&]() CUDALOSS_INLINE_LAMBDA {
      return select(slope.number.value == F(0), F(0), divided_as<T>(slope, e.x, scale));
    };
    return either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return rounded_product(slope.number, scale) * slope.back; }, divided);
  }
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const Lifted<F> of = mass(e), here = {{select(of.number.value == F(0), F(0), F(1)), F(0)}, F(1)};
    return product_as<T>(log_target.choose(of, here), difference_of(above(e), WithRest<F>{F(-1), F(0)}), scale);
  }

 private:
  CUDALOSS_INLINE static Lifted<F> mass(const Terms& e) {
    Lifted<F> of = e.mass;
    of.number.value = select(e.x == e.x, of.number.value, e.x);
    return of;
  }
  CUDALOSS_INLINE F log_input_in_sum(F x) const {
    return either(
        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return x; }, [&]() CUDALOSS_INLINE_LAMBDA { return log_in_sum(x); });
  }
  // The target's log minus the input's.
  CUDALOSS_INLINE WithRest<F> above(const Terms& e) const {
    const WithRest<F> t = {e.t, F(0)}, x = {e.x, F(0)};
    const WithRest<F> of_target = either(
        log_target, [&]() CUDALOSS_INLINE_LAMBDA { return t; },
        [&]() CUDALOSS_INLINE_LAMBDA { return log_as<T>(e.t); });
    return difference_of(of_target, either(
                                        log_input, [&]() CUDALOSS_INLINE_LAMBDA { return x; },
                                        [&]() CUDALOSS_INLINE_LAMBDA { return log_as<T>(e.x); }));
  }
};

// For targets that are probabilities. In the usual form, with inputs that are logs, both flags are known at compile
// time.
template <class T>
struct kl_div_of_probabilities : kl_div_of<T, Known<false>, Known<false>> {
  static constexpr bool kIsHeavy = true;
  template <class U>
  using Usual = kl_div_of<U, Known<false>, Known<true>>;

  using kl_div_of<T, Known<false>, Known<false>>::kl_div_of;
  static bool is_usual(const Numbers& n) { return (n.flags & 2) != 0; }
};

template <class T>
struct kl_div : kl_div_of<T, Known<true>, Flag<Scalar<T>>> {
  template <class U>
  using Usual = kl_div_of_probabilities<U>;

  using kl_div_of<T, Known<true>, Flag<Scalar<T>>>::kl_div_of;
  static bool is_usual(const Numbers& n) { return (n.flags & 1) == 0; }
};

}  // namespace cudaloss::losses
