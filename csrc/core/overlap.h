// How much probabilities and targets overlap: sums over the voxels of each sample and class, of which losses are made;
// and the gradients of the logits from those of the sums.
#pragma once

#include "core/arith.h"
#include "core/dtype.h"
#include "core/exp_log.h"
#include "core/pass.h"

namespace cudaloss {

// What makes probabilities of the input: nothing, the sigmoid of each element, or the softmax over a voxel's classes.
enum class Activation { None, Sigmoid, Softmax };
// A class's sums: of p g; of p, or p^2 with `squares`; of g, or g^2; and of the cross entropies of the voxels whose
// class it is (Softmax), or of the binary cross entropies (Sigmoid), if `entropy`.
enum OverlapSum { kBoth, kOfInput, kOfTarget, kEntropy, kOverlapSums };
// The dimensions, in the order of strides.
enum OverlapDim { kSample, kClass, kOuter, kInner, kOverlapDims };

constexpr int64_t kMostOverlapClasses = 256;  // their sums of a block take 32 KB of shared memory

struct Overlap {
  Operand input, target;
  const uint8_t* mask;  // null: all voxels count
  int64_t samples, classes, outer, inner;
  int64_t input_stride[kOverlapDims], target_stride[kOverlapDims], mask_stride[kOverlapDims];
  int64_t gradient_stride[kOverlapDims];
  Activation activation;
  bool squares, entropy;
  bool has_indices;      // the target has a class index for each voxel, and no dimension of classes
  int64_t ignore_index;  // such voxels do not count
  double* sums;          // (samples, classes, kOverlapSums)
  const double* grads;   // of the sums; null: makes the sums
  Operand grad_output;   // 0-d, a factor of these; without data: 1
  Result gradient;

  int64_t voxels() const { return outer * inner; }
  CUDALOSS_INLINE double factor() const { return grad_output.data ? number_at<double>(grad_output, 0) : 1.0; }
};
CUDALOSS_INLINE int64_t overlap_offset(const int64_t (&stride)[kOverlapDims], int64_t sample, int64_t outer,
                                       int64_t inner) {
  return sample * stride[kSample] + outer * stride[kOuter] + inner * stride[kInner];
}

// What a probability or a target adds to its sum.
template <class F>
CUDALOSS_INLINE F overlap_of_input(bool squares, F p) {
  return squares ? p * p : p;
}
// The derivative in p of what a voxel's class adds to the sums, from those of the sums.
template <class F>
CUDALOSS_INLINE F overlap_slope(bool squares, F of_both, F of_input, F p, F g) {
  return fused(of_both, g, of_input * (squares ? twice(p) : F(1)));
}
// An element's own probability, its derivative in the logit x, and the binary cross entropy.
template <class F>
struct OverlapElement {
  F p, slope, entropy;
};
template <class T, class F = Scalar<T>>
CUDALOSS_INLINE OverlapElement<F> overlap_element(Activation activation, F x, F g) {
  if (activation == Activation::None) return {x, F(1), F(0)};
  const PlainLogistic<F> of = plain_logistic_as<T>(absolute(x));
  const F other = F(1) - of.sigmoid, linear = x > F(0) ? (F(1) - g) * x : -g * x;
  return {x > F(0) ? other : of.sigmoid, of.sigmoid * other, linear + of.log};
}
// The cross entropy of a softmax: from exp(x - max) of the target's class, their sum over the others, and how far the
// maximum is above the target's logit.
template <class F>
CUDALOSS_INLINE F overlap_entropy(F others, F own, F above) {
  return others > own ? std::log(others + own) + above : std::log1p(others / own);
}
// A loss of the sums: of each sample and class 1 - (of_both i + smooth_nr) / (under_both i + under_input p +
// under_target g + smooth_dr), summed; and the sum of the entropies.
struct OverlapLoss {
  int64_t samples, classes, first_class;  // classes before the first one have no ratio
  double of_both, smooth_nr, under_both, under_input, under_target, smooth_dr;
  bool batch;            // the sums of all samples make one ratio for each class:
  const double* totals;  // (classes, kOverlapSums), if batch
  const double* weight;  // of each class; null: 1
  double of_ratio;       // of the sum of ratios
  double of_entropy;     // of the sum of entropies, which are divided by the sum of g, with the classes' weights
  bool divides, divides_by_weights;
  const double* sums;
  double* slopes;  // the loss's derivatives in the sums
  Result loss;     // 0-d

  CUDALOSS_INLINE double weight_of(int64_t j) const { return weight ? weight[j] : 1.0; }
};
// Sums over samples and classes: of their ratios, of their entropies, and of what divides these.
struct OverlapTerms {
  double ratios, entropies, divisor;

  CUDALOSS_INLINE OverlapTerms operator+(const OverlapTerms& other) const {
    return {ratios + other.ratios, entropies + other.entropies, divisor + other.divisor};
  }
};
// What a sample's class adds, and the derivatives of its ratio.
struct OverlapPart {
  OverlapTerms terms;
  double slope[kEntropy];
};
CUDALOSS_INLINE OverlapPart overlap_part(const OverlapLoss& of, int64_t place) {
  const int64_t j = place % of.classes;
  const double* const own = of.sums + place * kOverlapSums;
  OverlapPart part = {};
  part.terms.entropies = of.weight_of(j) * own[kEntropy];
  part.terms.divisor = (of.divides_by_weights ? of.weight_of(j) : 1.0) * own[kOfTarget];
  if (j < of.first_class) return part;
  const double* const sums = of.batch ? of.totals + j * kOverlapSums : own;
  const double both = sums[kBoth], sizes = of.under_input * sums[kOfInput] + of.under_target * sums[kOfTarget];
  const double above = fused(of.of_both, both, of.smooth_nr), under = fused(of.under_both, both, sizes) + of.smooth_dr;
  const double by = of.weight_of(j) / under, ratio = above / under;
  part.terms.ratios = !of.batch || place < of.classes ? of.weight_of(j) * (1.0 - ratio) : 0.0;
  part.slope[kBoth] = by * (ratio * of.under_both - of.of_both);
  part.slope[kOfInput] = by * ratio * of.under_input;
  part.slope[kOfTarget] = by * ratio * of.under_target;
  return part;
}
CUDALOSS_INLINE double overlap_value(const OverlapLoss& of, const OverlapTerms& all) {
  const double found = of.of_ratio * all.ratios;
  return of.of_entropy == 0.0 ? found : found + of.of_entropy * all.entropies / (of.divides ? all.divisor : 1.0);
}
// Stores the derivatives. That of the divisor is none of input's.
CUDALOSS_INLINE void store_overlap_slopes(const OverlapLoss& of, int64_t place, const OverlapPart& part,
                                          double divisor) {
  double* const slopes = of.slopes + place * kOverlapSums;
  for (int k = 0; k < kEntropy; ++k) slopes[k] = of.of_ratio * part.slope[k];
  const double of_entropy = of.of_entropy * of.weight_of(place % of.classes);
  slopes[kEntropy] = of.of_entropy == 0.0 ? 0.0
                     : of.divides         ? (divisor == 0.0 ? 0.0 : of_entropy / divisor)
                                          : of_entropy;
}

}  // namespace cudaloss
