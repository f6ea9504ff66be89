// A loss known only at run time, so that one kernel serves all losses. With strided operands a branch for each vector
// costs little, and a kernel for each loss was half of the binary.
#pragma once

#include <algorithm>
#include <cstddef>
#include <new>
#include <type_traits>

#include "core/functor.h"
#include "core/pass.h"
#include "losses.h"

namespace cudaloss::cuda {

// A loss in one of its forms, in the arithmetic T.
template <class T>
class AnyLoss {
  template <template <class> class Loss>
  using Own = Functor<Loss, ArithmeticOf<Loss, T>>;

  template <template <class> class Loss>
  static constexpr size_t bytes_of() {
    if constexpr (kHasUsual<Loss<float>>) {
      return std::max(sizeof(Own<Loss>), bytes_of<Loss<float>::template Usual>());
    } else {
      return sizeof(Own<Loss>);
    }
  }
  static constexpr size_t kBytes = std::max({
#define CUDALOSS_LOSS(name, id, all) bytes_of<losses::name>(),
#include "losses.inc"
#undef CUDALOSS_LOSS
  });

  int loss_, form_;
  alignas(16) unsigned char functor_[kBytes];

#pragma nv_exec_check_disable  // the constructor's visitor is host code
  template <template <class> class Loss, class Visit>
  CUDALOSS_INLINE void visit_form(int form, const Visit& visit) const {
    if constexpr (kHasUsual<Loss<float>>) {
      if (form > 0) return visit_form<Loss<float>::template Usual>(form - 1, visit);
    }
    visit(*reinterpret_cast<const Own<Loss>*>(functor_));
  }

 public:
  AnyLoss(int64_t loss, int form, const Numbers& numbers) : loss_(static_cast<int>(loss)), form_(form), functor_() {
    visit([&](const auto& functor) { new (functor_) std::decay_t<decltype(functor)>(numbers); });
  }

  // Calls `visit` with the functor.
#pragma nv_exec_check_disable
  template <class Visit>
  CUDALOSS_INLINE void visit(const Visit& visit) const {
    switch (loss_) {
#define CUDALOSS_LOSS(name, id, all)        \
  case id:                                  \
    visit_form<losses::name>(form_, visit); \
    break;
#include "losses.inc"
#undef CUDALOSS_LOSS
    }
  }
};

}  // namespace cudaloss::cuda
