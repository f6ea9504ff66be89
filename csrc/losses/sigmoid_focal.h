// The focal loss of sigmoid(x): a q^gamma times binary cross-entropy, where q is the probability of the wrong class and
// a is alpha, or 1 - alpha for a target of 0, or 1 if alpha is negative.
// Lin et al., "Focal Loss for Dense Object Detection", 2017.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

template <class T>
struct sigmoid_focal {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kIsFast = std::is_same_v<T, FastFloat>;

  // With s = sigmoid(-|x|): q = wrong + tilt s, where `wrong` is the target's share on the other side of 0, and tilt is
  // 1 - 2 wrong; the cross-entropy is wrong |x| + log1p(exp(-|x|)).
  struct Terms {
    F x, weight, wrong, tilt, s, q, loss;
    Lifted<F> power;  // q^gamma
  };

  F off, on;  // the weights of targets of 0 and 1
  WithRest<F> gamma;
  Flag<F> squares;

  explicit sigmoid_focal(const Numbers& n)
      : off(static_cast<F>(n.third < 0.0 ? 1.0 : 1.0 - n.third)),
        on(static_cast<F>(n.third < 0.0 ? 1.0 : n.third)),
        gamma(with_rest(n.second, F())),
        squares(n.second == 2.0) {}
  CUDALOSS_INLINE sigmoid_focal with(F own) const {
    sigmoid_focal result = *this;
    result.off = select(own < F(0), F(1), F(1) - own);
    result.on = select(own < F(0), F(1), own);
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const F z = absolute(x), rest = F(1) - t, tilt = rest - t;
    Terms e = {x, fused(on, t, off * rest), select(x < F(0), t, rest), select(x < F(0), tilt, -tilt)};
    const F linear = select(e.wrong == F(0), F(0), e.wrong * z);
    F log, lost;
    if constexpr (kIsFast) {
      const FastLogistic of = fast_logistic(z);
      e.s = of.sigmoid, log = of.log, lost = F(0);
    } else {
      constexpr F small = ExpParts<F>::small;
      const Logistic<F> of = logistic(z);
      e.s = of.sigmoid * small, log = fused(of.log, small, of.log_rest * small), lost = of.sigmoid_rest * small;
    }
    e.loss = linear + log;
    e.q = fused(e.tilt, e.s, e.wrong);
    lost = fused(e.tilt, lost, fused(e.tilt, e.s, e.wrong - e.q));
    const auto square = [&] {
      if constexpr (kIsFast) return Lifted<F>{{fused(e.q, e.q, F(0)), F(0)}, F(1)};
      const bool lifted = e.q < F(0x1p-30);
      const F up = select(lifted, F(ExpParts<F>::big), F(1)), back = select(lifted, F(ExpParts<F>::small), F(1));
      const WithRest<F> q = {e.q * up, lost * up}, power = {fused(q.value, q.value, F(0)), F(0)};
      return Lifted<F>{{power.value, fused(twice(q.value), q.rest, fused(q.value, q.value, -power.value))},
                       back * back};
    };
    // Far on the right side, where q = s leaves the range, log q is -(z + log).
    e.power = either(squares, square, [&]() CUDALOSS_INLINE_LAMBDA {
      const bool is_far = select(e.wrong == F(0), z, F(0)) > F(20);
      return power_as<T>(WithRest<F>{e.q, lost}, is_far, WithRest<F>{-z, -log}, gamma);
    });
    return e;
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> power = e.power.number;
    const F loss = e.weight * e.loss, rest = select(power.rest == F(0), F(0), power.rest * loss);
    return fused(power.value, loss, rest) * e.power.back;
  }
  // a q^gamma (wrong - s - gamma tilt (1 - s) s / q loss), with the sign of x.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F ratio = select(e.wrong == F(0), F(1), e.s * reciprocal_of(e.q)), finite = clamped_to(F(0x1p60), e.loss);
    const F size = fused(-gamma.value * (e.tilt * (F(1) - e.s)), ratio * finite, e.wrong - e.s);
    return select(e.x < F(0), F(-1), F(1)) *
           rounded_product(e.power.number * WithRest<F>{e.weight * size, F(0)}, scale) * e.power.back;
  }
  // q^gamma ((on - off) loss - a (x + gamma (s(x) - s(-x)) loss / q)).
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const bool is_gone = e.power.number.value == F(0);  // then 0, of an infinite x too
    const F turn = select(e.x < F(0), twice(e.s) - F(1), F(1) - twice(e.s)), x = select(is_gone, F(0), e.x);
    const F steep = select(is_gone, F(0), gamma.value * (turn * (e.loss / e.q)));
    const F size = fused(-e.weight, x + steep, (on - off) * select(is_gone, F(0), e.loss));
    return rounded_product(e.power.number * WithRest<F>{size, F(0)}, scale) * e.power.back;
  }
};

}  // namespace cudaloss::losses
