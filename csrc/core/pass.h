// What the tensor layer asks of an engine: pointers, sizes and strides; masks, weights, a reduction for each index of
// the leading dimensions.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/functor.h"

namespace cudaloss {

// Result dimensions that a pass takes; operands of more are not ours.
constexpr int kMaxDims = 6;

struct Operand {
  const void* data;  // null: not there
  DType dtype;
};

struct Result {
  void* data;  // null: not wanted
  DType dtype;
};

// Who has strides of his own.
enum Place { kInput, kTarget, kWeight, kMask, kThird, kGradOutput, kFirst, kSecond, kPlaces };

// Dimensions, the fastest first, with the strides in elements of everyone; 0 where one is broadcast.
struct Dims {
  int rank;
  int64_t size[kMaxDims];
  int64_t stride[kMaxDims][kPlaces];

  CUDALOSS_INLINE int64_t count() const {
    int64_t product = 1;
    for (int d = 0; d < rank; ++d) product *= size[d];
    return product;
  }
};

// Whether the operand at `place` is more than one element along `dims`.
inline bool varies(const Dims& dims, Place place) {
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d][place] != 0) return true;
  }
  return false;
}

// How many terms of a sum over `dims` can differ but in their weights. A rounding error that all the terms have which
// an element of input and one of target make does not average out among these.
inline int64_t distinct_terms(const Dims& dims) {
  int64_t product = 1;
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d][kInput] != 0 || dims.stride[d][kTarget] != 0) product *= dims.size[d];
  }
  return product;
}

// Element i of an operand of any dtype.
template <class F>
CUDALOSS_INLINE F number_at(const Operand& operand, int64_t i) {
  F number = F();
  dispatch_any(operand.dtype, [&](auto type) {
    number = widen<F>(static_cast<const typename decltype(type)::type*>(operand.data)[i]);
  });
  return number;
}

// What a sum is divided by.
struct Divisor {
  double value, reciprocal;
};
CUDALOSS_INLINE Divisor divisor_of(double value) { return {value, 1.0 / value}; }

// scale over the divisor, for gradients of F. fp64 shows that a product with the reciprocal is rounded once more.
template <class F>
CUDALOSS_INLINE double factor_of(double scale, const Divisor& divisor) {
  if constexpr (sizeof(F) < sizeof(double)) return scale * divisor.reciprocal;
  return divisor.reciprocal == 0.0 ? 0.0 : scale / divisor.value;
}

struct Denominator {
  Divisor constant;        // the number of elements, or 1
  Operand normalizer;      // 0-d, read where it lies; without data: none
  const Divisor* counted;  // what a Count found; null: none
  bool counted_each;       // one for each segment, or one for all
  bool of_few_rows;        // of indices: as many as count, which the pass finds itself

  CUDALOSS_INLINE Divisor at(int64_t segment) const {
    if (counted) return counted[counted_each ? segment : 0];
    return normalizer.data ? divisor_of(number_at<double>(normalizer, 0)) : constant;
  }
};

// What a loss of whole rows has besides: it reads all classes of a row, or of vectors all their elements. The
// dimensions of a request, and everyone's strides in them, are those of the rows; a weight and a mask are those of
// rows.
struct Rows {
  int64_t classes;                // 0: a pointwise loss
  int64_t class_stride[kPlaces];  // of input, target (not of indices), third (class weights, or a vector), gradients
  int64_t ignore_index;           // the rows of this target, of indices, do not count
  double z_loss, softcap;         // a softcap of 0 is none
};

// Of classes that processes share, those of one: where they begin among all, and what of a row's target is known or
// wanted beside its losses and their grad_output.
struct Part {
  int64_t all_classes, first_class;  // of 0 classes: the pass has whole rows
  Result targets;        // the logits at the targets, -inf where another process has that; as the losses lie
  Operand grad_targets;  // their gradients, as grad_output lies
};

// Which elements count, and how much. An operand without data is not there.
struct Selection {
  Operand mask;     // bool
  Operand weight;   // floating
  bool ignore_nan;  // elements whose target, a floating one, is NaN do not count
};

// The sum of the weights in play, or the number of elements selected, for each segment. Dimensions along which neither
// weight nor mask (nor target, if NaN there matters) varies are no part of `inner`, but of `multiplicity`.
struct Count {
  Selection selection;
  Operand target;
  Operand third;  // class weights, of which each row has its target's; without data: 1
  Rows rows;      // of which a target of indices counts by its ignore_index
  Dims segments, inner;
  double multiplicity;
  // Where nothing is in play, the reciprocal is 0: gradients of finite data are then 0, not NaN.
  Divisor* output;
  Operand unless_one;  // 0-d: where it is 1, nobody reads the output, and nothing is counted; without data: none
};

// What a reduction adds up.
enum class Summed { Losses, GradInput, GradTarget };

// For each segment, and each element of `inner` in it: its loss times its weight times `scale` over the denominator.
// Whatever has no data is not wanted: the reduction, the single losses, the gradients.
struct Pass {
  Operand input, target;
  Selection selection;
  Dims segments, inner;
  int64_t loss;  // the id of its row
  Numbers numbers;
  Operand third;  // in the place of numbers.third
  Rows rows;
  Part part;
  int64_t all_classes() const { return part.all_classes ? part.all_classes : rows.classes; }
  double scale;
  Denominator denominator;

  Operand grad_output;       // a factor of the gradients; without data: 1
  bool hold_unit_gradients;  // the gradients wanted hold those for a grad_output of 1 already

  Result reduction;    // one a segment: the sum of the losses,
  Summed summed;       // or of one operand's gradients
  Result losses;       // at kFirst; not together with gradients
  Result grad_input;   // at kFirst
  Result grad_target;  // at kSecond
  bool of_third;       // the gradients of the third operand are wanted, in the place of the input's
};

}  // namespace cudaloss
