// A compensated fp64 sum: it also keeps what each addition rounds away, so that the order of a reduction's tree does
// not change the last place, in fp64 results either (Ogita, Rump, Oishi, "Accurate Sum and Dot Product", 2005).
#pragma once

#include <cmath>

#include "core/platform.h"

namespace cudaloss {

// V is double, or a vector of doubles for several sums at once.
template <class V>
struct SumOf {
  V value, rest;

  CUDALOSS_INLINE void add(const V& term) {
    const V sum = value + term;
    const V added = sum - value;
    rest += (value - (sum - added)) + (term - added);
    value = sum;
  }
  CUDALOSS_INLINE void add(const SumOf& other) {
    add(other.value);
    rest += other.rest;
  }
  CUDALOSS_INLINE SumOf operator+(const SumOf& other) const {
    SumOf sum = *this;
    sum.add(other);
    return sum;
  }
  CUDALOSS_INLINE SumOf times(double factor) const {
    const double product = value * factor;
    return {product, fma(value, factor, -product) + rest * factor};
  }
  // The sum divided by `divisor`, rounded once. If the sum is Inf or the divisor 0, the rest is NaN and is left out.
  CUDALOSS_INLINE double over(double divisor) const {
    const double quotient = value / divisor;
    const double correction = (fma(-quotient, divisor, value) + rest) / divisor;
    return correction == correction ? quotient + correction : quotient;
  }
};
using Sum = SumOf<double>;

}  // namespace cudaloss
