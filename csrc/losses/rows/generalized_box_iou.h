// 1 - IoU + (C - U) / C of two boxes, with the area C of the box around both and the area U of their union.
// Rezatofighi et al., "Generalized Intersection over Union", 2019.
#pragma once

#include "core/boxes.h"
#include "core/pass.h"

namespace cudaloss::losses {

struct generalized_box_iou : LossOfBoxes {
  using LossOfBoxes::LossOfBoxes;

  CUDALOSS_INLINE BoxTerms terms(const BoxPair& pair) const {
    BoxTerms found = overlap(pair);
    const double around = pair.axis[0].outer * pair.axis[1].outer, inverse = reciprocal_of(around + eps);
    const double of_around = (pair.united + eps) * inverse * inverse;
    found.loss += (around - pair.united) * inverse;
    found.of_united -= inverse;
    for (int k = 0; k < kAxes; ++k) found.of_outer[k] = of_around * pair.axis[1 - k].outer;
    return found;
  }
};

}  // namespace cudaloss::losses
