// From the rows' sums to their losses, and to the factors of their tiles for the gradients.
#pragma once

#include "core/numbers.h"
#include "cpu/row_kernels.h"

namespace cudaloss::cpu {

// The factors that apply a gain of exp to a tile of exp / small.
template <class F>
struct Gain {
  F unlifted, hi, lo;
};
// For exponentials that must still be multiplied by 1 + behind. If the product with `small` in the factor would leave
// the range, the tile is unlifted first.
template <class F>
CUDALOSS_INLINE Gain<F> gain_of(WithRest<double> of_exp, WithRest<double> factor, double behind) {
  constexpr double small = static_cast<double>(ExpParts<F>::small);
  constexpr double least = static_cast<double>(sizeof(F) == sizeof(double) ? DBL_MIN : FLT_MIN) / small;
  const WithRest<double> gain = of_exp * factor;
  const bool is_least = absolute(gain.value) * small < least;
  const double back = select(is_least, 1.0, small), lifted = gain.value * back;
  const F hi = static_cast<F>(lifted);
  const F lo = static_cast<F>((lifted - static_cast<double>(hi)) + fused(gain.value, behind, gain.rest) * back);
  return {select(is_least, F(small), F(1)), hi, select(absolute(hi) <= largest(F()), lo, F(0))};
}

// NaN if a row has no sum: a target's logit of Inf or NaN, or only -Inf.
CUDALOSS_INLINE double sound_sum(double sum, double max, double target) {
  const bool is_sound = (target <= DBL_MAX) & ((max > -INFINITY) | (target > -INFINITY));
  return select(is_sound, sum, static_cast<double>(NAN));
}

// The rounding error of the maximum's exponential, which can be most of a sum. The errors of the others average out. 0
// if there is no maximum.
CUDALOSS_INLINE double lost_of(double max, double reference, double behind, double largest) {
  const double growth = exp_minus_1((max - reference) - behind), exp = 1.0 + growth;
  return select(reference == -DBL_MAX, 0.0, (exp - largest) + ((1.0 - exp) + growth));
}

// The losses, and with kGradients the gradients' factors too. For probabilities, a class with the largest logit
// replaces the target's class, and its share replaces the class weight.
template <bool kOfIndices, bool kGradients, class F, class Loss>
CUDALOSS_MULTIVERSION void finish_rows(Loss loss, double classes, RowLanes<F>& __restrict own) {
  constexpr double small = static_cast<double>(ExpParts<F>::small);
  for (int lane = 0; lane < kLanes; ++lane) {
    const double max = static_cast<double>(own.max[lane]), target = own.target[lane];
    const double factor = own.factor[lane], found = own.sums[lane] * small;
    const double sum = Loss::kIsPart ? found : sound_sum(found, max, target);
    const double reference = own.reference[lane], behind = own.behind[lane];
    const double lost = lost_of(max, reference, behind, static_cast<double>(own.largest[lane]) * small);
    const OtherClasses<double> others = {reference, {sum, fused(sum, behind, own.rests[lane] * small) + lost}};
    const double top = select(target > reference, target, reference), moved = top - select(target > max, target, max);
    const double below = own.below_max[lane] + own.shares[lane] * moved;
    const ClassShares shared = {below, own.shares[lane]};
    ClassRow row;
    if constexpr (kOfIndices) {
      row = loss.finish(others, target, own.weight[lane], shared, classes);
    } else {
      row = loss.finish(others, target, own.weight[lane], shared);
      own.reference[lane] = top;
      own.log_all[lane] = row.log_all.value;
      own.log_rest[lane] = row.log_all.rest;
    }
    own.loss[lane] = kept(row.loss, own.keep[lane]);
    if constexpr (!kGradients) continue;
    const Gain<F> of_exp = gain_of<F>(row.of_exp, {factor, own.factor_rest[lane]}, behind);
    const double times_factor = fused(row.at_target, factor, row.at_target * own.factor_rest[lane]);
    own.at_target[lane] = kept(Loss::kIsPart ? row.at_target : times_factor, own.keep[lane]);
    own.share[lane] = static_cast<F>(row.of_share * factor);
    own.unlifted[lane] = of_exp.unlifted;
    own.hi[lane] = of_exp.hi;
    own.lo[lane] = of_exp.lo;
  }
}

// values *= factors, and updates the rests of values in fp64.
template <class F>
CUDALOSS_MULTIVERSION void multiply_with_rests(const double* factors, int64_t count, double* values, double* rests) {
  for (int64_t i = 0; i < count; ++i) {
    const double product = values[i] * factors[i];
    if constexpr (sizeof(F) == sizeof(double)) {
      const double rest = fused(values[i], factors[i], -product) + rests[i] * factors[i];
      rests[i] = select(absolute(product) <= DBL_MAX, rest, 0.0);
    }
    values[i] = product;
  }
}

// ---- rare features -----------------------------------------------------------------------------------------

// tile = cap tanh(tile / cap), and its slopes.
template <class F>
CUDALOSS_MULTIVERSION void softcap(F cap, int64_t count, F* tile, F* slopes) {
  for (int64_t i = 0; i < count; ++i) {
    const Capped<F> found = capped(tile[i], cap);
    tile[i] = found.value + found.rest;
    slopes[i] = found.slope;
  }
}

// tile = weight ((1 - smoothing) tile + each): shares of probabilities.
template <class F>
CUDALOSS_MULTIVERSION void make_shares(int64_t lines, Shares<F> weights, double smoothing, double each, F* tile) {
  const F own = static_cast<F>(1.0 - smoothing), all = static_cast<F>(each);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const F weight = weights.values[weights.each ? i * kLanes + lane : i];
      tile[i * kLanes + lane] = fused(own, tile[i * kLanes + lane], all) * weight;
    }
  }
}

// tile *= slopes, except elements that are 0 already: their slopes may be NaN.
template <class F>
CUDALOSS_MULTIVERSION void multiply_slopes(const F* slopes, int64_t count, F* tile) {
  for (int64_t i = 0; i < count; ++i) tile[i] = select(tile[i] == F(0), tile[i], tile[i] * slopes[i]);
}

// tile = scale factor weight (lse - tile), with the rows' factors: gradients of probabilities.
template <bool kEach, class F>
CUDALOSS_INLINE void below_log(F* tile, int64_t lines, const F* weights, double scale, const RowLanes<F>& rows,
                               int row) {
  double top[kLanes], log_all[kLanes], log_rest[kLanes], factor[kLanes], factor_rest[kLanes];
  int64_t keep[kLanes];
  take(rows.reference, row, top);
  take(rows.log_all, row, log_all);
  take(rows.log_rest, row, log_rest);
  take(rows.factor, row, factor);
  take(rows.factor_rest, row, factor_rest);
  take(rows.keep, row, keep);
  for (int lane = 0; lane < kLanes; ++lane) {
    const double scaled = factor[lane] * scale;
    factor_rest[lane] = fma(factor[lane], scale, -scaled) + factor_rest[lane] * scale;
    factor[lane] = scaled;
  }
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const WithRest<double> log = {log_all[lane], log_rest[lane]}, of_row = {factor[lane], factor_rest[lane]};
      const double weight = static_cast<double>(share_at<kEach>(weights, i, lane));
      const WithRest<double> below = difference_of(top[lane], static_cast<double>(tile[i * kLanes + lane]));
      const WithRest<double> by = of_row * WithRest<double>{weight, 0.0};
      const double gradient = rounded_product(difference_of(below, -log), Constant<double>{by.value, by.rest});
      tile[i * kLanes + lane] = static_cast<F>(kept(gradient, keep[lane]));
    }
  }
}
template <class F>
CUDALOSS_MULTIVERSION void rows_below_log(F* tile, int64_t lines, Shares<F> weights, double scale,
                                          const RowLanes<F>& rows, int row) {
  weights.each ? below_log<true>(tile, lines, weights.values, scale, rows, row)
               : below_log<false>(tile, lines, weights.values, scale, rows, row);
}

}  // namespace cudaloss::cpu
