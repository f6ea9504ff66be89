// The request of the tensor layer to an engine: pointers, sizes and strides; masks, weights, a reduction for each index
// of the leading dimensions.
#pragma once

#include <cstdint>

#include "core/dtype.h"
#include "core/functor.h"

namespace cudaloss {

// The most result dimensions of a pass; PyTorch serves operands with more.
constexpr int kMaxDims = 6;

struct Operand {
  const void* data;  // null: not there
  DType dtype;
};

struct Result {
  void* data;  // null: not wanted
  DType dtype;
};

// Everything that has its own strides. A pass has three results: single losses or the input's gradient, the target's
// gradient, and that of a third vector.
enum Place { kInput, kTarget, kWeight, kMask, kThird, kGradOutput, kResult, kSecondResult, kThirdResult, kPlaces };

// Dimensions, the fastest first, with everyone's strides in elements; the stride is 0 if an operand is broadcast.
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

// Whether the operand at `place` has more than one element along `dims`.
inline bool varies(const Dims& dims, Place place) {
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d][place] != 0) return true;
  }
  return false;
}

// How many terms of a sum over `dims` can differ apart from their weights. Broadcast repeats share their rounding
// error, so it does not average out.
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

// scale / divisor, for gradients of type F. In fp64 a product with the reciprocal would show its second rounding.
template <class F>
CUDALOSS_INLINE double factor_of(double scale, const Divisor& divisor) {
  if constexpr (sizeof(F) < sizeof(double)) return scale * divisor.reciprocal;
  return divisor.reciprocal == 0.0 ? 0.0 : scale / divisor.value;
}

struct Denominator {
  Divisor constant;        // the number of elements, or 1
  Operand normalizer;      // 0-d, read where it is; without data: none
  bool is_count;           // the normalizer is a count of all processes, and 0 divides nothing: gradients are 0
  const Divisor* counted;  // the result of a Count; null: none
  bool counted_each;       // one for each segment, or one for all
  bool of_few_rows;        // of indices: as many as count; the pass counts them itself

  CUDALOSS_INLINE Divisor at(int64_t segment) const {
    if (counted) return counted[counted_each ? segment : 0];
    if (!normalizer.data) return constant;
    const double value = number_at<double>(normalizer, 0);
    return is_count && value == 0.0 ? Divisor{1.0, 0.0} : divisor_of(value);
  }
};

// The further arguments of a loss of rows, which reads all classes of a row, or all elements of its vectors. The
// dimensions of a request, and all strides in them, are then those of the rows. Weight and mask have one element a row.
struct Rows {
  int64_t classes;                // 0: a pointwise loss
  int64_t class_stride[kPlaces];  // of input, target (not of indices), third (class weights, or a vector), gradients
  int64_t ignore_index;           // rows whose target index is this do not count
  double z_loss, softcap;         // a softcap of 0: none
};

// One process's part of classes that processes share: where its classes begin, and the targets' logits, which are
// results beside the losses and have gradients beside grad_output.
struct Part {
  int64_t all_classes, first_class;  // 0 classes: the pass has whole rows
  Result targets;        // logits at the targets, -inf if another process has it; in the layout of the losses
  Operand grad_targets;  // their gradients, in the layout of grad_output
};

// Which elements count, and how much. An operand without data is not there.
struct Selection {
  Operand mask;     // bool
  Operand weight;   // floating
  bool ignore_nan;  // elements whose (floating) target is NaN do not count
};

// The grad_output for which a forward makes its gradients: the last one that a backward of such a call got. If another
// one comes, the gradients are made again from the operands, so their bits do not depend on it.
struct Prediction {
  double* slots;         // the last grad_outputs, of several kinds of calls, at first 1; null: a forward expects 1
  int64_t first, count;  // a forward expects that of slot `first`; a backward may change these slots
  double* record;  // of a call: the grad_output that its forward expected, and its slot or -1; null: it expected 1

  CUDALOSS_INLINE double expected() const { return slots ? slots[first] : 1.0; }
  CUDALOSS_INLINE double recorded() const { return record ? record[0] : 1.0; }
  // Whether the gradients are for this grad_output, to the bit: -0 is not 0.
  CUDALOSS_INLINE bool is_for(double grad_output) const {
    return bit_cast<uint64_t>(grad_output) == bit_cast<uint64_t>(recorded());
  }
  CUDALOSS_INLINE void write_record() const {
    record[0] = expected();
    record[1] = slots ? static_cast<double>(first) : -1.0;
  }
  // Checks the slot: hooks on saved tensors can change the record, and a backward can run on another stream.
  CUDALOSS_INLINE void write_slot(double grad_output) const {
    const double slot = record[1] - static_cast<double>(first);
    if (slot >= 0.0 && slot < static_cast<double>(count)) slots[first + static_cast<int64_t>(slot)] = grad_output;
  }
};

// Whether the gradients of a forward are right: its prediction, and the grad_output that came. Without data, because it
// is not one number for all: nobody knows.
struct Held {
  Operand grad_output;
  Prediction prediction;
};

// For each segment: the sum of the weights of the selected elements, or their number. `multiplicity`, not `inner`, has
// the dimensions along which weight and mask (and the target, if its NaNs matter) do not vary.
struct Count {
  Selection selection;
  Operand target;
  Operand third;  // class weights: a row has the one of its target; without data: 1
  Rows rows;      // a target of indices counts by its ignore_index
  Dims segments, inner;
  double multiplicity;
  // If nothing is selected, the reciprocal is 0: gradients of finite data are then 0, not NaN.
  Divisor* output;
  Held held;  // if the gradients are already right, nobody reads the output and nothing is counted
};

// What a reduction sums.
enum class Summed { Losses, GradInput, GradTarget };

// For each segment, and each element of `inner` in it: its loss times its weight times `scale` over the denominator.
// The reduction, the single losses and the gradients are made only if they have data.
struct Pass {
  Operand input, target;
  Selection selection;
  Dims segments, inner;
  int64_t loss;  // the id of its row
  Numbers numbers;
  Operand third;  // replaces numbers.third
  Rows rows;
  Part part;
  // Of the loss, which decides the arithmetic. Of gradients that no forward has made: the input's.
  DType loss_dtype;
  int64_t all_classes() const { return part.all_classes ? part.all_classes : rows.classes; }
  double scale;
  Denominator denominator;

  Operand grad_output;    // a factor of the gradients; without data: 1
  bool hold_gradients;    // the gradients already hold those for the prediction's record
  Prediction prediction;  // a forward's, or with hold_gradients of the gradients' forward; without a record: none

  Result reduction;    // one for each segment: the sum of the losses,
  Summed summed;       // or of one operand's gradients
  Result losses;       // at kResult; not together with gradients
  Result grad_input;   // at kResult
  Result grad_target;  // at kSecondResult
  Result grad_third;   // at kThirdResult; only of vectors
  bool of_third;       // only of elements: make the third operand's gradients, in the place of the input's

  bool wants_gradients() const { return grad_input.data || grad_target.data || grad_third.data; }
};

}  // namespace cudaloss
