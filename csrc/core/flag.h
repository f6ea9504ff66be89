// A loss's flag, the same for a whole launch, and the choices that it makes.
#pragma once

#include <type_traits>

#include "core/pairs.h"

namespace cudaloss {

// All bits or none, as wide as F: GCC 12 does not vectorise a loop in which a bool from outside chooses.
template <class F>
struct Flag {
  using Bits = std::conditional_t<sizeof(F) == sizeof(double), uint64_t, uint32_t>;
  Bits bits;

  explicit Flag(bool is_set) : bits(is_set ? ~Bits(0) : Bits(0)) {}

  CUDALOSS_INLINE F choose(F yes, F no) const {
    return bit_cast<F>(bit_cast<Bits>(no) ^ ((bit_cast<Bits>(yes) ^ bit_cast<Bits>(no)) & bits));
  }
  CUDALOSS_INLINE WithRest<F> choose(WithRest<F> yes, WithRest<F> no) const {
    return {choose(yes.value, no.value), choose(yes.rest, no.rest)};
  }
  CUDALOSS_INLINE Lifted<F> choose(Lifted<F> yes, Lifted<F> no) const {
    return {choose(yes.number, no.number), choose(yes.back, no.back)};
  }
};

// A GPU does not compute the other side. A CPU computes both, because a loop with a branch in it does not vectorise.
template <class F, class Yes, class No>
CUDALOSS_INLINE auto either(Flag<F> flag, const Yes& yes, const No& no) {
#if defined(__CUDA_ARCH__)
  return flag.bits != 0 ? yes() : no();
#else
  return flag.choose(yes(), no());
#endif
}

// A flag that is known at compile time.
template <bool kSet>
struct Known {
  explicit Known(bool) {}

  template <class V>
  CUDALOSS_INLINE V choose(V yes, V no) const {
    return kSet ? yes : no;
  }
};
template <bool kSet, class Yes, class No>
CUDALOSS_INLINE auto either(Known<kSet>, const Yes& yes, const No& no) {
  if constexpr (kSet) {
    return yes();
  } else {
    return no();
  }
}

}  // namespace cudaloss
