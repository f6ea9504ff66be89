// A pass over operands of any strides and dtypes, for any loss in one of its forms.
#pragma once

#include "cuda/engine.h"
#include "cuda/pass_plan.h"

namespace cudaloss::cuda {

void strided_pass(const Pass& request, int form, const PassPlan& plan, const Memory& memory, Stream stream);

}  // namespace cudaloss::cuda
