// Two distributions of a row: q from the input's logits and p from the target's. Each is softmax(x / T): exp((x - max)
// / T) divided by the sum of these. The sum is kept without the maximum's own 1, so that a nearly certain row keeps its
// digits.
#pragma once

#include <cmath>

#include "core/log.h"

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

// For z >= 0: exp(-z), and 1 - exp(-z) without cancellation.
template <class F>
struct Decay {
  F rho, gap;
};
// FastDouble: for z up to kFarthest.
template <class T, class F = Scalar<T>>
CUDALOSS_INLINE Decay<F> decay_of(F z) {
  if constexpr (std::is_same_v<T, FastDouble>) {
    const ExpApart<double> apart = exp_apart(ExpParts<double>::magic_half + 1.0, -z);
    const double growth = fused(apart.r * apart.r, exp_tail_as<T>(apart.r), apart.r);
    return {fused(apart.power, growth, apart.power), fused(-apart.power, growth, 1.0 - apart.power)};
  } else {
    const ExpBelowOne<F> e = exp_below_one(z);
    return {e.exp, twice(e.w.value)};
  }
}

// log_tail_of_square with the precision of T's results. FastDouble: 2^-29 of itself, so 2^-34 of the log.
template <class T>
CUDALOSS_INLINE Scalar<T> log_tail_of_square_as(Scalar<T> z) {
  if constexpr (std::is_same_v<T, FastDouble>) {
    return z * polynomial(z, 0x1.5555554bb2b2cp-1, 0x1.9999eb5d84f14p-2, 0x1.245c438323e9ap-2, 0x1.ddced7078dd3ap-3);
  } else {
    return log_tail_of_square(z);
  }
}

// The log of the quotient of two such sums. The arguments are the sums without their 1.
template <class F>
CUDALOSS_INLINE F log_of_sums(F others, F other_others) {
  const F more = others - other_others;
  const F log = std::log1p(absolute(more) / (F(1) + select(more > F(0), other_others, others)));
  return select(more > F(0), log, -log);
}

// What a loss of two distributions makes of a class. `slope` and `base` make the input's gradient, with numbers of the
// row; p (of_target - a number of the row) is the target's. All without the factors T and the incoming gradient.
template <class F>
struct DistributionTerm {
  F divergence, slope, base, of_target;
};
// What it makes of the sums of a row's divergence, slope and base: the divergence; the factors of slope, base and p;
// what to add to of_target and what to subtract then. Of a centred loss of_base is minus the mean of f.
struct DistributionRow {
  double divergence, of_slope, of_base, of_p, raised, mean;
};

// If p is 0, of_target may be NaN or infinite.
template <class F>
CUDALOSS_INLINE F grad_target(F p, F of_target, F mean) {
  return select(p == F(0), F(0), p * (of_target - mean));
}

// A loss has `term`, `row`, and kIsCentred: whether slope is f and base is q, for a gradient q (f - the mean of f). Its
// sums of exp must then be as precise as the results, because an error of q / p changes each class's f differently. The
// sum of slopes is that of q f.
struct TemperedLoss {
  double temperature;

  CUDALOSS_INLINE double loss(double divergence) const { return temperature * temperature * divergence; }
};

}  // namespace cudaloss
