// The varifocal loss of sigmoid(x), for targets that are scores of positives (a box's IoU), or 0 for negatives: the
// cross-entropy times the target; where that is 0, times alpha q^gamma, where q = sigmoid(x) is the probability of a
// positive. Zhang et al., "VarifocalNet: An IoU-Aware Dense Object Detector", 2021.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

// kSquares: gamma is 2, whose power is a product. Everything keeps its rests, also for the sums: of a negative, three
// or more numbers that are about exp(x) are multiplied. With sigmoid_focal's arithmetic the largest errors were 3.37
// ulp of a value and 4.33 of a gradient, here 1.85 and 1.46 (fp32, CPU).
//
// With z = |x| the cross-entropy is wrong z + log1p(exp(-z)), where `wrong` is the target's share on the other side of
// 0; and q - t is wrong - sigmoid(-z), with the sign of x. Where `wrong` is 0, all are about exp(-z), and their product
// is below the normal numbers before it is 0: from z = kFar on they stay divided by `small`.
template <class T, bool kSquares>
struct varifocal_of {
  using F = Scalar<T>;
  using N = Number<T>;
  static constexpr bool kHasThird = true, kIsHeavy = true;

  struct Terms {
    F x, t;          // x is NaN if the target is
    Logistic<F> of;  // -z's
    N power;         // q^gamma, and 1 for a target that is not 0
    F back;
  };

  Constant<F> alpha;
  WithRest<F> gamma;

  explicit varifocal_of(const Numbers& n) : alpha(constant_of(n.third, F())), gamma(with_rest(n.second, F())) {}

  CUDALOSS_INLINE varifocal_of with(F own) const {
    varifocal_of result = *this;
    result.alpha = {own, F(0)};
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    Terms e = {select(t == t, x, t), select(t > F(0), t, F(0)), logistic_of(absolute(x)), number(F(1)), F(1)};
    const bool is_negative = e.t == F(0), far = is_far(e);
    if constexpr (kSquares) {
      const N q = above(e, far);
      const F back = select(far, kSmall, F(1));
      e.power = select(is_negative, q * q, e.power);
      e.back = select(is_negative, back * back, F(1));
    } else {
      // log q = min(x, 0) - log1p(exp(-z)): gamma would multiply the rounding error of q itself.
      const WithRest<F> log = gap_between(WithRest<F>{select(x < F(0), x, F(0)), F(0)},
                                          WithRest<F>{e.of.log * kSmall, e.of.log_rest * kSmall});
      const Lifted<F> power = power_as<T>(WithRest<F>{F(1), F(0)}, true, log, gamma);
      e.power = select(is_negative, number(power.number.value, power.number.rest), e.power);
      e.back = select(is_negative, power.back, F(1));
    }
    return e;
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const bool far = is_far(e);
    const N factor = weight(e), of = select(value_of(factor) == F(0), N{}, loss(e, far));  // of an infinite one 0 too
    return chained(factor * e.power * of, F(1), Constant<F>{F(1), F(0)}) * (e.back * select(far, kSmall, F(1)));
  }
  // Without rests, and with numbers that may be subnormal before the result is.
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const {
    const F s = e.of.sigmoid * kSmall, share = select(e.x < F(0), e.t, F(1) - e.t);
    const F log = (e.of.log + e.of.log_rest) * kSmall, factor = select(e.t > F(0), e.t, alpha.hi);
    const F loss = select(share == F(0), F(0), share * absolute(e.x)) + log;
    F power = value_of(e.power) * e.back;
    if constexpr (kSquares) {
      const F q = select(e.x < F(0), s, F(1) - s);
      power = select(e.t == F(0), q * q, F(1));
    }
    return factor * power * select(factor == F(0), F(0), loss);
  }
  // For a target t above 0, t (q - t); for 0 alpha q^gamma (q + gamma (1 - q) loss).
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    constexpr F up = 0x1p60;
    const bool far = is_far(e), is_below = e.x < F(0);
    const N of = loss(e, far), s = behind(e, kSmall), q = above(e, far);
    const N finite = select(value_of(of) > up, number(up), of),
            rest = select(is_below, gap_between(number(F(1)), s), s);
    const N steep = select(e.t > F(0), N{}, number(gamma.value, gamma.rest) * rest * finite);
    const N slope = gap_between(select(is_below, -q, q), -steep);
    return chained(weight(e) * e.power * slope, F(1), scale) * (e.back * select(far, kSmall, F(1)));
  }
  // loss - t x for a target t above 0: (1 - 2 t) x + log1p(exp(-x)), and below 0 the same of 1 - t and -x.
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const F twofold = twice(e.t);
    const N share = select(e.x < F(0), number(twofold), difference_in<N>(F(1), twofold));
    const bool far = is_far(e, share);
    const N slope = select(e.t > F(0), sum(e, share, far), number(select(e.x == e.x, F(0), e.x)));
    return chained(slope, F(1), scale) * select(far, kSmall, F(1));
  }

 private:
  static constexpr bool kIsFast = std::is_same_v<T, FastFloat>;
  static constexpr F kSmall = kIsFast ? F(1) : F(ExpParts<F>::small), kFar = sizeof(F) == sizeof(float) ? 20 : 200;

  CUDALOSS_INLINE static N number(F value, F rest = F(0)) { return number_of<N>(Constant<F>{value, rest}); }
  CUDALOSS_INLINE static Logistic<F> logistic_of(F z) {
    if constexpr (kIsFast) {
      const PlainLogistic<F> plain = fast_logistic(z);
      return {plain.sigmoid, plain.log, F(0), F(0)};
    } else {
      return logistic(z, -lost_of_minus(z));
    }
  }
  CUDALOSS_INLINE N weight(const Terms& e) const { return select(e.t > F(0), number(e.t), number_of<N>(alpha)); }
  CUDALOSS_INLINE static N wrong(const Terms& e) {
    return select(e.x < F(0), number(e.t), difference_in<N>(F(1), e.t));
  }
  CUDALOSS_INLINE static bool is_far(const Terms& e, N share) {
    return select(value_of(share) == F(0), absolute(e.x), F(0)) > kFar;
  }
  CUDALOSS_INLINE static bool is_far(const Terms& e) { return is_far(e, wrong(e)); }
  // sigmoid(-z), over kSmall and times `by`.
  CUDALOSS_INLINE static N behind(const Terms& e, F by) { return number(e.of.sigmoid * by, e.of.sigmoid_rest * by); }
  // q - t with the sign of x; from here on `far` tells that it is over kSmall.
  CUDALOSS_INLINE static N above(const Terms& e, bool far) {
    return gap_between(wrong(e), behind(e, select(far, F(1), kSmall)));
  }
  CUDALOSS_INLINE static N loss(const Terms& e, bool far) { return sum(e, wrong(e), far); }
  // share z + log1p(exp(-z)); 0 times an infinite z is 0.
  CUDALOSS_INLINE static N sum(const Terms& e, N share, bool far) {
    const F z = select(value_of(share) == F(0), F(0), absolute(e.x)), by = select(far, F(1), kSmall);
    return gap_between(sound(share * number(z)), number(-e.of.log * by, -e.of.log_rest * by));
  }
};

template <class T>
struct varifocal : varifocal_of<T, false> {
  using F = Scalar<T>;

  template <class U>
  using Usual = varifocal_of<U, true>;
  static bool is_usual(const Numbers& n) { return n.second == 2.0; }

  using varifocal_of<T, false>::varifocal_of;
  CUDALOSS_INLINE explicit varifocal(const varifocal_of<T, false>& of) : varifocal_of<T, false>(of) {}
  CUDALOSS_INLINE varifocal with(F own) const { return varifocal(varifocal_of<T, false>::with(own)); }
};

}  // namespace cudaloss::losses
