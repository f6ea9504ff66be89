// An engine's pass of one loss, by the id of its row in src/cudaloss/_rows.
#pragma once

#include "core/pass.h"
#include "torch/operands.h"

#define CUDALOSS_LOSS(name, id, all) \
  namespace cudaloss::losses {       \
  template <class T>                 \
  struct name;                       \
  }
#include "losses.inc"
#undef CUDALOSS_LOSS

namespace cudaloss::tensors {

// Takes a request and a tensor of its device.
using Run = void (*)(const Pass&, const Tensor&);

template <template <template <class> class, bool> class Of>
Run run_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_LOSS(name, id, all) \
  case id:                           \
    return Of<losses::name, all>::pass;
#include "losses.inc"
#undef CUDALOSS_LOSS
    default:
      throw std::runtime_error("cudaloss: no loss has this id");
  }
}

}  // namespace cudaloss::tensors
