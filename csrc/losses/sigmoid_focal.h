// The focal loss of sigmoid(x): a q^gamma times binary cross-entropy, where q is the probability of the wrong class and
// a is alpha, or 1 - alpha for a target of 0, or 1 if alpha is negative. Lin et al., "Focal Loss for Dense Object
// Detection", 2017.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct sigmoid_focal {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kIsFast = std::is_same_v<T, FastFloat>;

  // With s = sigmoid(-|x|): q = wrong + tilt s, where `wrong` is the target's share on the other side of 0, and tilt is
  // 1 - 2 wrong. The cross-entropy is wrong |x| + log. `back` takes off what q, s and log are raised by.
  struct Terms {
    F x, back;
    WithRest<F> weight, wrong, tilt, s, q, log;
    Lifted<F> power;  // q^gamma
  };

  WithRest<F> off, slope, gamma;  // the weight of a target of 0, and what it grows by up to that of 1
  Flag<F> squares;

  explicit sigmoid_focal(const Numbers& n)
      : off(with_rest(n.third < 0.0 ? 1.0 : 1.0 - n.third, F())),
        slope(with_rest(n.third < 0.0 ? 0.0 : n.third + n.third - 1.0, F())),
        gamma(with_rest(n.second, F())),
        squares(n.second == 2.0) {}
  CUDALOSS_INLINE sigmoid_focal with(F own) const {
    sigmoid_focal result = *this;
    result.off = select(own < F(0), WithRest<F>{F(1), F(0)}, one_less(own));
    result.slope = select(own < F(0), WithRest<F>{F(0), F(0)}, minus(one_less(twice(own))));
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const F z = select(absolute(x) > largest(F()), largest(F()), absolute(x));
    const bool is_negative = x < F(0);
    const WithRest<F> given = {t, F(0)}, rest = one_less(t), tilt = one_less(twice(t));
    Terms e = {x,  F(1), {},        select(is_negative, given, rest), select(is_negative, tilt, minus(tilt)), {},
               {}, {},   {{}, F(1)}};
    e.weight = {fused(slope.value, t, off.value), fused(slope.rest, t, off.rest)};
    const F wrong = e.wrong.value;
    if constexpr (kIsFast) {
      const FastLogistic of = fast_logistic(z);
      e.s.value = of.sigmoid;
      e.log.value = of.log;
      e.q.value = fused(e.tilt.value, of.sigmoid, wrong);
      const auto power = [&]() CUDALOSS_INLINE_LAMBDA {
        const F log = select(wrong == F(0), -(z + of.log), fast_log(e.q.value, e.q.value - 1.0f));
        return fast_exp(gamma.value * log);
      };
      e.power.number.value = either(squares, [&] { return e.q.value * e.q.value; }, power);
      return e;
    } else {
      constexpr F small = ExpParts<F>::small, big = ExpParts<F>::big;
      const Logistic<F> of = logistic(z);
      const bool lifted = is_lifted(select(wrong < F(0x1p-40), F(0), F(INFINITY)) - z);
      const F up = select(lifted, big, F(1)), taken = select(lifted, F(1), small);
      e.back = select(lifted, small, F(1));
      e.log = normalized(WithRest<F>{of.log * taken, fused(of.sigmoid_rest, F(0.5), of.log_rest) * taken});
      e.s = {of.sigmoid * taken, of.sigmoid_rest * taken};
      e.q = sum_of_two(WithRest<F>{wrong * up, e.wrong.rest * up}, e.tilt * e.s);
      const auto power = [&]() CUDALOSS_INLINE_LAMBDA {
        Apart<F> q = apart(e.q.value);
        q.k -= select(lifted, F(ExpParts<F>::log2_big), F(0));
        const WithRest<F> of_sum = log_of(q.k, fused(e.q.rest, q.power, q.f));
        // Far on the right side, where q = s leaves the range, log q is -(z + log).
        const WithRest<F> far = minus(sum_of_two(WithRest<F>{z, F(0)}, in_place(Lifted<F>{e.log, e.back})));
        const WithRest<F> log = select(select(wrong == F(0), z, F(0)) > F(20), far, of_sum);
        return power_of(log, gamma);
      };
      e.power = either(squares, [&] { return Lifted<F>{e.q * e.q, e.back * e.back}; }, power);
      return e;
    }
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const F wrong = e.wrong.value, z = select(wrong == F(0), F(0), absolute(e.x));
    if constexpr (kIsFast) return e.weight.value * e.power.number.value * fused(wrong, z, e.log.value);
    const WithRest<F> near = in_place(Lifted<F>{loss_of(e), e.back});
    const WithRest<F> loss = select(z > F(0x1p60), WithRest<F>{wrong * z, F(0)}, near);
    return rounded_product(e.power.number * loss, Constant<F>{e.weight.value, e.weight.rest}) * e.power.back;
  }
  // a q^gamma (wrong - s - gamma tilt (1 - s) s / q loss), with the sign of x.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F sign = select(e.x < F(0), F(-1), F(1));
    if constexpr (kIsFast) {
      const F ratio = select(e.wrong.value == F(0), F(1), e.s.value * reciprocal_of(e.q.value));
      const F steep = gamma.value * e.tilt.value * (F(1) - e.s.value) * ratio, z = clamped_to(F(0x1p60), absolute(e.x));
      const F size = (e.wrong.value - e.s.value) - steep * fused(e.wrong.value, z, e.log.value);
      return sign * e.weight.value * e.power.number.value * size * scale.hi;
    } else {
      const WithRest<F> one = {F(1), F(0)}, far = in_place(Lifted<F>{e.s, e.back});
      const WithRest<F> ratio = quotient_of(e.s * sum_of(one, minus(far)), e.q, reciprocal_of(e.q.value));
      const WithRest<F> size =
          sum_of_two(sum_of_two(raised(e, e.wrong), minus(e.s)), minus(gamma * e.tilt * ratio * loss_of(e)));
      const Constant<F> weighted = times(Constant<F>{e.weight.value * sign, e.weight.rest * sign}, scale);
      return rounded_product(e.power.number * size, weighted) * e.power.back * e.back;
    }
  }
  // q^gamma ((on - off) loss - a (x + gamma (s(x) - s(-x)) loss / q)).
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const WithRest<F> one = {F(1), F(0)}, far = in_place(Lifted<F>{e.s, e.back}), loss = loss_of(e);
    const bool is_gone = e.power.number.value == F(0);  // then 0, of an infinite x too
    const WithRest<F> zero = {F(0), F(0)}, x = {select(is_gone, F(0), e.x), F(0)};
    const WithRest<F> near = sum_of(one, WithRest<F>{-twice(far.value), -twice(far.rest)});
    const WithRest<F> turn = select(e.x < F(0), minus(near), near);
    const WithRest<F> over_q = select(is_gone, zero, quotient_of(loss, e.q, reciprocal_of(e.q.value)));
    const WithRest<F> of_loss = slope * in_place(Lifted<F>{loss, e.back});
    const WithRest<F> sum = difference_of(of_loss, e.weight * sum_of_two(x, gamma * turn * over_q));
    return rounded_product(e.power.number * sum, scale) * e.power.back;
  }

 private:
  CUDALOSS_INLINE static WithRest<F> raised(const Terms& e, WithRest<F> x) {
    const F up = select(e.back < F(1), F(ExpParts<F>::big), F(1));
    return {x.value * up, x.rest * up};
  }
  // The cross-entropy over `back`; of an |x| above 2^60, beside which nothing else is seen, of that.
  CUDALOSS_INLINE static WithRest<F> loss_of(const Terms& e) {
    const WithRest<F> z = {clamped_to(F(0x1p60), absolute(e.x)), F(0)};
    return sum_of_two(raised(e, e.wrong) * z, e.log);
  }
};

}  // namespace cudaloss::losses
