// The kernels of one loss on one engine, by the id of its row in src/cudaloss/_specs.py.
#pragma once

#include "core/pass.h"
#include "core/request.h"
#include "torch/operands.h"

#define CUDALOSS_LOSS(name, id) \
  namespace cudaloss::losses {  \
  template <class T>            \
  struct name;                  \
  }
#include "losses.inc"
#undef CUDALOSS_LOSS

namespace cudaloss::tensors {

// Each takes a request and a tensor of its device.
struct Kernels {
  void (*reduce)(const Forward&, const Tensor&);
  void (*elementwise)(const Forward&, const Tensor&);
  void (*train)(const Training&, const Tensor&);
  void (*backward)(const Backward&, const Tensor&);
  void (*pass)(const Pass&, const Tensor&);
};

template <template <template <class> class> class Of>
const Kernels& kernels_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_LOSS(name, id)                                                                     \
  case id: {                                                                                        \
    using K = Of<losses::name>;                                                                     \
    static constexpr Kernels kernels = {K::reduce, K::elementwise, K::train, K::backward, K::pass}; \
    return kernels;                                                                                 \
  }
#include "losses.inc"
#undef CUDALOSS_LOSS
    default:
      throw std::runtime_error("cudaloss: no loss has this id");
  }
}

}  // namespace cudaloss::tensors
