// The focal loss of sigmoid(x): a q^gamma times binary cross-entropy, where q is the probability of the wrong class and
// a is alpha, or 1 - alpha for a target of 0, or 1 if alpha is negative.
// Lin et al., "Focal Loss for Dense Object Detection", 2017.
#pragma once

#include "core/functor.h"
#include "core/log.h"

namespace cudaloss::losses {

// With s = sigmoid(-|x|): q = wrong + tilt s. `wrong` is the target's share on the other side of 0, and tilt is 1 - 2
// wrong. The cross-entropy is wrong |x| + log1p(exp(-|x|)).
template <class F>
struct FocalSides {
  F x, weight, wrong, tilt, linear;
};

// The weights for targets of 0 and 1.
template <class F>
struct FocalWeights {
  F off, on;

  static FocalWeights of(double alpha) {
    return {static_cast<F>(alpha < 0.0 ? 1.0 : 1.0 - alpha), static_cast<F>(alpha < 0.0 ? 1.0 : alpha)};
  }
  CUDALOSS_INLINE static FocalWeights with(F own) {
    return {select(own < F(0), F(1), F(1) - own), select(own < F(0), F(1), own)};
  }
  // A share up to `least` counts as 0 in the loss.
  CUDALOSS_INLINE FocalSides<F> sides(F x, F t, F least) const {
    const F rest = F(1) - t, tilt = rest - t, wrong = select(x < F(0), t, rest);
    const F linear = select(wrong <= least, F(0), wrong * absolute(x));
    return {x, fused(on, t, off * rest), wrong, select(x < F(0), tilt, -tilt), linear};
  }
};

// For gamma = 2, whose powers are products: they do not leave the range before the results do.
template <class T>
struct squared_focal {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true, kIsHeavy = true, kIsFast = std::is_same_v<T, FastFloat>;

  struct Terms {
    FocalSides<F> of;
    F s, q, loss, lost;  // lost: the rounding error of q
  };

  FocalWeights<F> weights;

  explicit squared_focal(const Numbers& n) : weights(FocalWeights<F>::of(n.third)) {}
  CUDALOSS_INLINE explicit squared_focal(FocalWeights<F> w) : weights(w) {}
  CUDALOSS_INLINE squared_focal with(F own) const { return squared_focal(weights.with(own)); }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    // q^2 is then 0, and 0 times an infinite loss would be NaN.
    const FocalSides<F> of = weights.sides(x, t, sizeof(F) == sizeof(float) ? F(0x1p-75) : F(0x1p-538));
    const PlainLogistic<F> plain = plain_logistic_as<T>(absolute(x));
    const F s = plain.sigmoid, q = fused(of.tilt, s, of.wrong);
    return {of, s, q, of.linear + plain.log, fused(of.tilt, plain.sigmoid_rest, fused(of.tilt, s, of.wrong - q))};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    if constexpr (kIsFast) return value_in_sum(e);
    return e.of.weight * e.loss * fused(e.q, e.q, twice(e.q) * e.lost);
  }
  CUDALOSS_INLINE F value_in_sum(const Terms& e) const { return e.of.weight * e.loss * (e.q * e.q); }
  // a q^2 (wrong - s - 2 tilt (1 - s) s / q loss), with the sign of x.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    const F steep = twice(e.of.tilt) * ((F(1) - e.s) * clamped_to(F(0x1p60), e.loss));
    const F sized = e.of.weight * fused(e.q, e.of.wrong - e.s, -steep * e.s);
    if constexpr (kIsFast) return turned(e, sized * e.q * scale.hi);
    const F product = fused(e.q, sized, F(0));
    const WithRest<F> slope = {product, fused(e.lost, sized, fused(e.q, sized, -product))};
    return turned(e, rounded_finite_product(slope, scale));
  }
  // q^2 ((on - off) loss - a x) - 2 a q (s(x) - s(-x)) loss.
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const bool is_gone = e.q * e.q == F(0);  // the gradient is then 0, also for an infinite x
    const F turn = select(e.of.x < F(0), twice(e.s) - F(1), F(1) - twice(e.s)), x = select(is_gone, F(0), e.of.x);
    const F loss = select(is_gone, F(0), e.loss), slope = fused(-e.of.weight, x, (weights.on - weights.off) * loss);
    return e.q * fused(e.q, slope, -twice(e.of.weight) * (turn * loss)) * scale.hi;
  }

 private:
  CUDALOSS_INLINE static F turned(const Terms& e, F slope) { return select(e.of.x < F(0), -slope, slope); }
};

template <class T>
struct sigmoid_focal {
  using F = Scalar<T>;
  static constexpr bool kHasThird = true;

  template <class U>
  using Usual = squared_focal<U>;
  static bool is_usual(const Numbers& n) { return n.second == 2.0; }

  struct Terms {
    FocalSides<F> of;
    F s, q, loss;
    Lifted<F> power;  // q^gamma
  };

  FocalWeights<F> weights;
  WithRest<F> gamma;

  explicit sigmoid_focal(const Numbers& n) : weights(FocalWeights<F>::of(n.third)), gamma(with_rest(n.second, F())) {}
  CUDALOSS_INLINE sigmoid_focal with(F own) const {
    sigmoid_focal result = *this;
    result.weights = weights.with(own);
    return result;
  }

  CUDALOSS_INLINE Terms terms(F x, F t) const {
    const FocalSides<F> of = weights.sides(x, t, F(0));
    const F z = absolute(x);
    F s, log, lost;
    if constexpr (std::is_same_v<T, FastFloat>) {
      const PlainLogistic<F> logistic = fast_logistic(z);
      s = logistic.sigmoid, log = logistic.log, lost = F(0);
    } else {
      constexpr F small = ExpParts<F>::small;
      const Logistic<F> parts = logistic(z);
      s = parts.sigmoid * small, log = fused(parts.log, small, parts.log_rest * small);
      lost = parts.sigmoid_rest * small;
    }
    const F q = fused(of.tilt, s, of.wrong);
    lost = fused(of.tilt, lost, fused(of.tilt, s, of.wrong - q));
    // Far on the right side, where q = s leaves the range, log q is -(z + log).
    const bool is_far = select(of.wrong == F(0), z, F(0)) > F(20);
    return {of, s, q, of.linear + log, power_as<T>(WithRest<F>{q, lost}, is_far, WithRest<F>{-z, -log}, gamma)};
  }
  CUDALOSS_INLINE F value(const Terms& e) const {
    const WithRest<F> power = e.power.number;
    const F loss = e.of.weight * select(power.value == F(0), F(0), e.loss),
            rest = select(absolute(loss) <= largest(F()), power.rest * loss, F(0));
    return fused(power.value, loss, rest) * e.power.back;
  }
  // a q^gamma (wrong - s - gamma tilt (1 - s) s / q loss), with the sign of x.
  CUDALOSS_INLINE F grad_input(const Terms& e, Constant<F> scale) const {
    constexpr F up = 0x1p60;  // s and q can both be below the normal numbers
    const F ratio = select(e.of.wrong == F(0), F(1), up * e.s * reciprocal_of(up * e.q)),
            finite = clamped_to(up, e.loss);
    const F size = fused(-gamma.value * (e.of.tilt * (F(1) - e.s)), ratio * finite, e.of.wrong - e.s);
    return select(e.of.x < F(0), F(-1), F(1)) *
           rounded_product(e.power.number * WithRest<F>{e.of.weight * size, F(0)}, scale) * e.power.back;
  }
  // q^gamma ((on - off) loss - a (x + gamma (s(x) - s(-x)) loss / q)).
  CUDALOSS_INLINE F grad_target(const Terms& e, Constant<F> scale) const {
    const bool is_gone = e.power.number.value == F(0);  // the gradient is then 0, also for an infinite x
    const F turn = select(e.of.x < F(0), twice(e.s) - F(1), F(1) - twice(e.s)), x = select(is_gone, F(0), e.of.x);
    const F ratio = select(e.q == F(0), F(1), e.loss / e.q);  // both are then exp(-|x|), which is below all numbers
    const F steep = select(is_gone || gamma.value == F(0), F(0), gamma.value * (turn * ratio));  // the ratio can be inf
    const F size = fused(-e.of.weight, x + steep, (weights.on - weights.off) * select(is_gone, F(0), e.loss));
    return rounded_product(e.power.number * WithRest<F>{size, F(0)}, scale) * e.power.back;
  }
};

}  // namespace cudaloss::losses
