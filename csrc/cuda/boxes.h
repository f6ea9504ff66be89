// A pass over pairs of boxes, for any loss of them.
#pragma once

#include "cuda/engine.h"

namespace cudaloss::cuda {

void any_boxes_pass(const Pass& request, const Memory& memory, Stream stream);

}  // namespace cudaloss::cuda
