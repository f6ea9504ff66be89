// 1 - IoU + (r / c)^2 of two boxes, with the distance r of their centres and the diagonal c of the box around both.
// Zheng et al., "Distance-IoU Loss", 2020.
#pragma once

#include "core/boxes.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct distance_box_iou : LossOfBoxes {
  using LossOfBoxes::LossOfBoxes;

  CUDALOSS_INLINE BoxTerms terms(const BoxPair& pair) const {
    BoxTerms found = overlap(pair);
    const BoxAxis &x = pair.axis[0], &y = pair.axis[1];
    const double inverse = reciprocal_of(fused(x.outer, x.outer, y.outer * y.outer) + eps);
    const double ratio = fused(x.apart, x.apart, y.apart * y.apart) * inverse;
    found.loss += ratio;
    for (int k = 0; k < kAxes; ++k) {
      found.of_apart[k] = 2.0 * pair.axis[k].apart * inverse;
      found.of_outer[k] = -2.0 * pair.axis[k].outer * ratio * inverse;
    }
    return found;
  }
};

}  // namespace cudaloss::losses
