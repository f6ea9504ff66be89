// The loss of distance_box_iou plus a v, with v = (2 / pi (atan(w / h) - atan(w' / h')))^2 of the boxes' widths and
// heights, and a = v / (1 - IoU + v), which has no gradient. The difference of the two angles is one arc tangent.
// Zheng et al., "Distance-IoU Loss", 2020.
#pragma once

#include "losses/rows/distance_box_iou.h"

namespace cudaloss::losses {

struct complete_box_iou : distance_box_iou {
  using distance_box_iou::distance_box_iou;

  CUDALOSS_INLINE BoxTerms terms(const BoxPair& pair) const {
    constexpr double of_square = 0x1.9f02f6222c720p-2;  // 4 / pi^2
    BoxTerms found = distance_box_iou::terms(pair);
    const BoxAxis &x = pair.axis[0], &y = pair.axis[1];
    const double turned = turn_of(fused(x.own, y.other, -x.other * y.own), fused(y.own, y.other, x.own * x.other));
    const double v = of_square * turned * turned;
    const double share = v * reciprocal_of(overlap(pair).loss + v + eps), slope = 2.0 * of_square * share * turned;
    found.loss += share * v;
    const double own = slope * inverse_square(x.own, y.own), other = -slope * inverse_square(x.other, y.other);
    found.of_own[0] += own * y.own, found.of_own[1] -= own * x.own;
    found.of_other[0] += other * y.other, found.of_other[1] -= other * x.other;
    return found;
  }

 private:
  // The angle between the diagonals, of its sine and its cosine, times both lengths. A point has no diagonal: 0.
  CUDALOSS_INLINE static double turn_of(double sine, double cosine) {
    return cosine == 0.0 ? copysign(0x1.921fb54442d18p+0, sine) * (sine != 0.0) : atan(sine / cosine);
  }
  // 1 / (w^2 + h^2), of which a point has none.
  CUDALOSS_INLINE static double inverse_square(double w, double h) {
    const double square = fused(w, w, h * h);
    return square == 0.0 ? 0.0 : reciprocal_of(square);
  }
};

}  // namespace cudaloss::losses
