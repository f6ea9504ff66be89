// What losses of rows of vectors have in common. Each is made of two vectors of a row, u and v, and of three sums over
// them, and its gradients are sums of multiples of u and v.
#pragma once

#include "core/numbers.h"

namespace cudaloss {

// What u and v are: input and target themselves; or input - target + eps and input - third + eps.
enum class VectorsOf { Operands, Differences };

constexpr char kOtherThird[] = "cudaloss: the loss takes another number of operands";

// Sums of u^2, of v^2, and of u v; or, where the loss asks for it, of w^2 with w = target - third + eps.
struct VectorSums {
  double uu, vv, third;
};

// What u and v are multiplied by, and added up, for the gradient of an operand.
struct Multiples {
  double of_u, of_v;
};

// A row's loss, and its gradients for an incoming one of 1. uses_w: w stands in the place of v.
struct VectorRow {
  double loss;
  Multiples input, target, third;
  bool uses_w;
};

CUDALOSS_INLINE double inverse_norm(double square) {
#if defined(__CUDA_ARCH__)
  return ::rsqrt(square);
#else
  return 1.0 / sqrt(square);
#endif
}

// The root of a square, of its inverse; infinity stays.
CUDALOSS_INLINE double norm_of(double square, double inverse) {
  return select(square <= DBL_MAX, square * inverse, square);
}

// u v / (|u| |v|), and its gradient in u, of the inverses of both norms. Where a norm is not u's own but a least one,
// `own_u` is 0, likewise `own_v`.
struct Cosine {
  double value;
  Multiples input, target;
};
CUDALOSS_INLINE Cosine cosine_of(const VectorSums& sums, double inverse_u, double inverse_v, double own_u,
                                 double own_v) {
  const double both = inverse_u * inverse_v, value = sums.third * both;
  return {value, {-value * own_u * own_u, both}, {both, -value * own_v * own_v}};
}

}  // namespace cudaloss
