// What losses of rows of vectors have in common. Each is made from two vectors of a row, u and v, and three sums over
// them. Its gradients are sums of multiples of u and v.
#pragma once

#include "core/numbers.h"

namespace cudaloss {

// u and v are input and target themselves; or input - target + eps and input - third + eps.
enum class VectorsOf { Operands, Differences };

constexpr char kOtherThird[] = "cudaloss: the loss takes another number of operands";

// Sums of u^2, of v^2, and of u v. If the loss asks for it, the third is of w^2 with w = target - third + eps.
struct VectorSums {
  double uu, vv, third;
};

// An operand's gradient is of_u u + of_v v.
struct Multiples {
  double of_u, of_v;
};

// The use of w in the gradients. No: none. Yes: in the place of v. Half: |v| and |w| are equal and each has half of the
// gradient; w is in the place of v for the target, and of u for the third operand.
enum class UsesW { No, Yes, Half };

// A row's loss, and its gradients for an incoming gradient of 1.
struct VectorRow {
  double loss;
  Multiples input, target;
  UsesW uses_w;
};

// Whether the gradients are 0, for any u and v.
CUDALOSS_INLINE bool is_nothing(const VectorRow& row) {
  return row.input.of_u == 0.0 && row.input.of_v == 0.0 && row.target.of_u == 0.0 && row.target.of_v == 0.0;
}

// The gradient of a third operand: the gradients of a loss of differences add up to 0.
CUDALOSS_INLINE Multiples third_of(const VectorRow& row) {
  const Multiples &x = row.input, &t = row.target;
  if (row.uses_w == UsesW::Half) return {-t.of_v, -x.of_v};
  return {-x.of_u - t.of_u, -x.of_v - t.of_v};
}

// From a norm's square: the power of two that brings the norm near 1, and its inverse. Products of u with 1 / (|u| |v|)
// then stay in the range of float.
struct NormPower {
  double power, back;
};
CUDALOSS_INLINE NormPower norm_power(double square) {
  constexpr uint64_t kBias = 1023, kMost = 120;
  const uint64_t exponent = bit_cast<uint64_t>(square) >> 52 & 0x7ff;  // the limits for 0, Inf and NaN
  const uint64_t half = (exponent + kBias) / 2, least = kBias - kMost, most = kBias + kMost;
  const uint64_t taken = half < least ? least : half > most ? most : half;
  return {bit_cast<double>((2 * kBias - taken) << 52), bit_cast<double>(taken << 52)};
}

CUDALOSS_INLINE double inverse_norm(double square) {
#if defined(__CUDA_ARCH__)
  return ::rsqrt(square);
#else
  return 1.0 / sqrt(square);
#endif
}

// The root of a square, from its inverse; infinity stays.
CUDALOSS_INLINE double norm_of(double square, double inverse) {
  return select(square <= DBL_MAX, square * inverse, square);
}

// u v / (|u| |v|), and its gradients. Arguments: the inverses of both norms, and their squares, which are 0 for a norm
// that does not vary with its vector.
struct Cosine {
  double value;
  Multiples input, target;
};
CUDALOSS_INLINE Cosine cosine_of(double product, double inverse_u, double inverse_v, double square_u, double square_v) {
  const double both = inverse_u * inverse_v, value = product * both;
  return {value, {-value * square_u, both}, {both, -value * square_v}};
}

// A row with a loss, and as its gradients `sign` times those of the cosine.
CUDALOSS_INLINE VectorRow row_of(double loss, double sign, const Cosine& cosine) {
  return {loss,
          {sign * cosine.input.of_u, sign * cosine.input.of_v},
          {sign * cosine.target.of_u, sign * cosine.target.of_v},
          UsesW::No};
}

}  // namespace cudaloss
