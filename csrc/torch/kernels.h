// An engine's pass for one loss, found by the id of its row in src/cudaloss/_rows.
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
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  namespace cudaloss::losses {             \
  struct name;                             \
  }
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS

namespace cudaloss::tensors {

// What a loss reads for one of its terms: an element of each operand; all classes of a row; only the target's class; or
// a vector of each operand, which can be a distribution's logits.
enum class Reads { Element, Classes, Index, Vectors, Distributions };
inline Reads reads_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  case id:                                 \
    return Reads::reads;
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
    default:
      return Reads::Element;
  }
}

// Takes a request and a tensor on its device.
using Run = void (*)(const Pass&, const Tensor&);

template <template <template <class> class, bool> class Of, template <class> class OfRows>
Run run_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_LOSS(name, id, all) \
  case id:                           \
    return Of<losses::name, all>::pass;
#include "losses.inc"
#undef CUDALOSS_LOSS
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  case id:                                 \
    return OfRows<losses::name>::pass;
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
    default:
      throw std::runtime_error("cudaloss: no loss has this id");
  }
}

}  // namespace cudaloss::tensors
