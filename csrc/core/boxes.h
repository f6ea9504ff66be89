// Two boxes of a row, each (x1, y1, x2, y2) with x1 <= x2 and y1 <= y2; and the way from a loss of their intersection,
// union and sizes to its gradients. In double: in float a small loss of boxes that nearly agree would be a difference
// of rounded areas.
#pragma once

#include <cmath>
#include <type_traits>

#include "core/functor.h"

namespace cudaloss {

constexpr int kCorners = 4, kAxes = 2;

// Two boxes along one axis: their sizes; the sizes of their intersection, below 0 if they are apart, and of the box
// around both; and how far the own centre is from the other's.
struct BoxAxis {
  double own, other, inner, outer, apart;
  double low, high;  // the own box's share in each end of the intersection: 1, 0, or 1/2 if the ends are equal
};
struct BoxPair {
  BoxAxis axis[kAxes];
  double intersection, united;  // areas
};

// A loss, and its derivatives in the two areas and along each axis, where the areas are taken to be constant.
struct BoxTerms {
  double loss, of_intersection, of_united;
  double of_outer[kAxes], of_apart[kAxes], of_own[kAxes], of_other[kAxes];
};
// A row's loss, and its gradients.
struct BoxRow {
  double loss, own[kCorners], other[kCorners];
};

// As in PyTorch's max and min, equal ends share their gradient.
CUDALOSS_INLINE double share_of(double inner, double outer) { return inner == outer ? 0.5 : inner < outer ? 1.0 : 0.0; }

CUDALOSS_INLINE BoxPair pair_of(const double (&own)[kCorners], const double (&other)[kCorners]) {
  BoxPair pair = {};
  for (int k = 0; k < kAxes; ++k) {
    const double a1 = own[k], a2 = own[k + kAxes], b1 = other[k], b2 = other[k + kAxes];
    pair.axis[k] = {a2 - a1,
                    b2 - b1,
                    select(a2 < b2, a2, b2) - select(a1 > b1, a1, b1),
                    select(a2 > b2, a2, b2) - select(a1 < b1, a1, b1),
                    0.5 * ((a1 + a2) - (b1 + b2)),
                    share_of(b1, a1),
                    share_of(a2, b2)};
  }
  const BoxAxis &x = pair.axis[0], &y = pair.axis[1];
  pair.intersection = x.inner > 0.0 && y.inner > 0.0 ? x.inner * y.inner : 0.0;
  pair.united = x.own * y.own + x.other * y.other - pair.intersection;
  return pair;
}

template <class Loss>
CUDALOSS_INLINE BoxRow row_of_boxes(const Loss& loss, const double (&own)[kCorners], const double (&other)[kCorners],
                                    bool wants_gradients) {
  const BoxPair pair = pair_of(own, other);
  const BoxTerms terms = loss.terms(pair);
  const bool overlaps = pair.axis[0].inner > 0.0 && pair.axis[1].inner > 0.0;
  const double of_inner = overlaps ? terms.of_intersection - terms.of_united : 0.0;
  BoxRow row = {terms.loss, {}, {}};
  if (!wants_gradients) return row;
  for (int k = 0; k < kAxes; ++k) {
    const BoxAxis &axis = pair.axis[k], &across = pair.axis[1 - k];
    const double inner = of_inner * across.inner, outer = terms.of_outer[k], apart = 0.5 * terms.of_apart[k];
    const double of_own = fused(terms.of_united, across.own, terms.of_own[k]);
    const double of_other = fused(terms.of_united, across.other, terms.of_other[k]);
    const double other_low = 1.0 - axis.low, other_high = 1.0 - axis.high;
    row.own[k] = apart - of_own - axis.low * inner - other_low * outer;
    row.own[k + kAxes] = apart + of_own + axis.high * inner + other_high * outer;
    row.other[k] = -apart - of_other - other_low * inner - axis.low * outer;
    row.other[k + kAxes] = -apart + of_other + other_high * inner + axis.high * outer;
  }
  return row;
}

// A loss has `terms(pair)`. eps is added to each denominator.
struct LossOfBoxes {
  double eps;

  CUDALOSS_INLINE explicit LossOfBoxes(const Numbers& numbers) : eps(numbers.third) {}

  // 1 minus the intersection over the union.
  CUDALOSS_INLINE BoxTerms overlap(const BoxPair& pair) const {
    const double inverse = reciprocal_of(pair.united + eps), iou = pair.intersection * inverse;
    return {1.0 - iou, -inverse, iou * inverse, {}, {}, {}, {}};
  }
};
template <class Loss>
constexpr bool kIsOfBoxes = std::is_base_of_v<LossOfBoxes, Loss>;

}  // namespace cudaloss
