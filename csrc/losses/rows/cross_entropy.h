// Cross-entropy of logits and a class index: (1 - s) w_y (lse - x_y) + s / C sum_j w_j (lse - x_j) + z lse^2, with
// label smoothing s, class weights w and z_loss z (Devlin et al., 2014; PaLM, 2022). With probabilities q instead of an
// index, and q' = (1 - s) q + s / C: sum_j w_j q'_j (lse - x_j) + z lse^2.
#pragma once

#include "core/numbers.h"
#include "core/pass.h"
#include "core/softmax.h"

namespace cudaloss::losses {

struct cross_entropy {
  static constexpr bool kIsPart = false;
  double smoothing, z_loss;

  explicit cross_entropy(const Pass& pass) : smoothing(pass.numbers.second), z_loss(pass.rows.z_loss) {}

  // For an index. `weight` is its class's weight.
  CUDALOSS_INLINE ClassRow finish(const OtherClasses<double>& others, double target, double weight,
                                  const ClassShares& shared, double classes) const {
    const Softmax<double> softmax = softmax_of(others, target);
    const double hard = (1.0 - smoothing) * weight, each = smoothing / classes;
    const double log_all = rounded(softmax.log_all), top = select(target > others.max, target, others.max);
    const double lse = top + log_all, twice_lse = 2.0 * z_loss * lse;
    const double smooth = each * fused(shared.shares, log_all, shared.below_max);
    const WithRest<double> of_all = difference_of(hard, -fused(each, shared.shares, twice_lse));
    const double not_target = rounded(softmax.not_target), own = 1.0 - not_target;
    const double of_own = fused(each, fused(shared.shares, own, -weight), twice_lse * own);
    return {fused(hard, rounded(softmax.loss), fused(z_loss * lse, lse, smooth)), of_all * softmax.of_others, each,
            fused(-hard, not_target, of_own), softmax.log_all};
  }

  // For probabilities. One class with the largest logit, and its share, replace the target's, so the sum excludes them:
  // lse - x of a nearly certain class is no larger than that sum.
  CUDALOSS_INLINE ClassRow finish(const OtherClasses<double>& others, double largest, double share,
                                  const ClassShares& shared) const {
    const Softmax<double> softmax = softmax_of(others, largest);
    const double log_all = rounded(softmax.log_all), top = select(largest > others.max, largest, others.max);
    const double lse = top + log_all, own = 1.0 - rounded(softmax.not_target);
    const WithRest<double> of_all = difference_of(shared.shares, -2.0 * z_loss * lse);
    return {fused(z_loss * lse, lse, fused(shared.shares, log_all, shared.below_max)), of_all * softmax.of_others, 1.0,
            fused(of_all.value, own, -share), softmax.log_all};
  }

  // The loss in float, for the GPU.
  struct InFloat {
    Constant<float> hard;
    float smoothing, each, others, z_loss;
    ShareOfClass share;
    bool smooths, is_plain, is_soft;

    // is_soft: the targets are probabilities.
    InFloat(const cross_entropy& loss, double classes, bool is_soft = false)
        : hard(constant_of(is_soft ? 0.0 : 1.0 - loss.smoothing, 0.0f)),
          smoothing(static_cast<float>(loss.smoothing)),
          each(static_cast<float>(loss.smoothing / classes)),
          others(static_cast<float>(loss.smoothing / classes * (classes - 1.0))),
          z_loss(static_cast<float>(loss.z_loss)),
          share{constant_of(1.0 - loss.smoothing, 0.0f), constant_of(loss.smoothing / classes, 0.0f)},
          smooths(loss.smoothing != 0.0),
          is_plain(loss.smoothing == 0.0 && loss.z_loss == 0.0),
          is_soft(is_soft) {}

    // The gradients are of_all times the probabilities, minus `share`; the target's is at_target - of_all (1 - p).
    template <class N>
    struct Factors {
      N of_all;
      float share;
      N at_target;
    };
    // log_all: of the sum of exp(x); needed only with a z_loss.
    template <class N>
    CUDALOSS_INLINE Factors<N> factors(float log_all, float weight) const {
      const N weights = number_of<N>({weight, 0.0f});
      if (is_plain) return {weights, 0.0f, {}};
      const float twice_lse = 2.0f * z_loss * log_all;
      return {sum_with(number_of<N>(hard) * weights, smoothing + twice_lse), each,
              number_of<N>({others + twice_lse, 0.0f})};
    }
    // With shares of each class's own, which multiply `share`.
    template <class N>
    CUDALOSS_INLINE Factors<N> factors(float log_all, float weight, const SharesOfRow<N>& shares) const {
      const float twice_lse = 2.0f * z_loss * log_all;
      const N of_hard = number_of<N>(hard) * number_of<N>({weight, 0.0f});
      return {sum_with(gap_between(of_hard, -shares.all()), twice_lse), 1.0f, sum_with(shares.others, twice_lse)};
    }
    // plain: the loss without options. below: the sum of (target - x), or of -x if the target is -inf.
    template <class N>
    CUDALOSS_INLINE N loss(N plain, float log_all, float target, float below, float weight) const {
      const N weights = number_of<N>({weight, 0.0f});
      if (is_plain) return weights * plain;
      const float above = select(target == -INFINITY, log_all, rounded(plain));
      const float soft = select(smooths, fused(each, below, smoothing * above), 0.0f) + z_loss * log_all * log_all;
      return sum_with(number_of<N>(hard) * weights * plain, soft);
    }
    template <class N>
    CUDALOSS_INLINE N loss(N plain, float log_all, float target, const SharesOfRow<N>& shares, float weight) const {
      const N above = select(target == -INFINITY, number_of<N>({log_all, 0.0f}), plain);
      const N soft = sum_with(gap_between(shares.all() * above, -shares.below), z_loss * log_all * log_all);
      if (is_soft) return soft;
      return gap_between(number_of<N>(hard) * number_of<N>({weight, 0.0f}) * plain, -soft);
    }
    CUDALOSS_INLINE static float sum_with(float a, float b) { return a + b; }
    CUDALOSS_INLINE static WithRest<float> sum_with(WithRest<float> a, float b) {
      const WithRest<float> sum = difference_of(a.value, -b);
      return {sum.value, sum.rest + a.rest};
    }
  };
};

}  // namespace cudaloss::losses
