// The CUDA engine for losses of pairs of boxes: one set of kernels, in boxes.cu, serves all losses. Included by the
// source of each such loss, which setup.py writes.
#pragma once

#include "cuda/boxes.h"

namespace cudaloss::cuda {

template <class Loss>
void boxes_pass(const Pass& r, const Memory& memory, Stream stream) {
  any_boxes_pass(r, memory, stream);
}

}  // namespace cudaloss::cuda
