// Two distributions of a row: q from the input's logits and p from the target's. Each is softmax(x / T): exp((x - max)
// / T) divided by the sum of these. The sum is kept without the maximum's own 1, so that a nearly certain row keeps its
// digits.
#pragma once

#include <cmath>

#include "core/exp_log.h"

namespace cudaloss {

// exp_tail with the precision of T's results. FastDouble: 2^-28 of itself, so 2^-32 of exp.
template <class T>
CUDALOSS_INLINE Scalar<T> exp_tail_as(Scalar<T> r) {
  if constexpr (std::is_same_v<T, FastDouble>) {
    return polynomial(r, 0x1.0000000b8fde2p-1, 0x1.55555526e9386p-3, 0x1.5554e8ea49aafp-5, 0x1.11114c1a4b966p-7,
                      0x1.6d4364270afa9p-10, 0x1.a072ed57ed8f7p-13);
  } else {
    return exp_tail(r);
  }
}

// exp(x) for x between -kFarthest and 0; any number for other x. Below -kFarthest exp(x) is not a normal number and
// counts as 0.
constexpr double kFarthest = 707.0;
template <class T>
CUDALOSS_INLINE Scalar<T> exp_of_below(Scalar<T> x) {
  if constexpr (std::is_same_v<T, FastFloat>) {
    return fast_exp(x);
  } else if constexpr (std::is_same_v<T, FastDouble>) {
    using Parts = ExpParts<double>;
    const double shifted = fused(x, Parts::log2_e, 0x1.8p52), k = shifted - 0x1.8p52, r = fused(k, -Parts::ln2, x);
    const double near = fused(r, fused(r, exp_tail_as<T>(r), 1.0), 1.0);
    return bit_cast<double>(bit_cast<uint64_t>(near) + (bit_cast<uint64_t>(shifted) << Parts::kMantissa));
  } else {
    const ExpApart<double> apart = exp_apart(ExpParts<double>::magic_half + 1.0, x);
    return fused(apart.power, exp_minus_1(apart.r), apart.power);
  }
}

// The log of the quotient of two such sums. The arguments are the sums without their 1.
template <class F>
CUDALOSS_INLINE F log_of_sums(F others, F other_others) {
  const F more = others - other_others;
  const F log = std::log1p(absolute(more) / (F(1) + select(more > F(0), other_others, others)));
  return select(more > F(0), log, -log);
}

}  // namespace cudaloss
