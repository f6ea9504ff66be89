// One call of an op: its arguments, whether the kernels serve it, and the engine's request for it.
#pragma once

#include <optional>

#include "core/plan.h"
#include "torch/layout.h"

namespace cudaloss::tensors {

enum class Reduction { None, Mean, Sum };

// What a loss reads for one of its terms: an element of each operand; all classes of a row; only the target's class; or
// a vector of each operand, which can be a distribution's logits or a box.
enum class Reads { Element, Classes, Index, Vectors, Distributions, Boxes };
inline Reads reads_of(int64_t loss) {
  switch (loss) {
#define CUDALOSS_ROW_LOSS(name, id, reads) \
  case id:                                 \
    return Reads::reads;
#include "row_losses.inc"
#undef CUDALOSS_ROW_LOSS
    default:
      return Reads::Element;
  }
}

// How an op works, in one int: each further argument costs the dispatcher 0.25 us, a string or a ScalarType 0.5.
// src/cudaloss/_call/modes.py packs it.
struct Mode {
  Reduction reduction;
  ScalarType dtype;            // of the loss
  bool for_input, for_target;  // the gradients to make
  bool ignore_nan;
  bool may_decline;  // the caller has not checked the operands: the op may return undefined tensors, None in Python
  bool is_below_autograd;    // the caller is the op's autograd, or knows that nothing requires a gradient
  bool for_third;            // a vector's in the same pass; an element's in a pass of its own, in a backward
  bool mean_over_count;      // a mean divides by the number of selected elements, not by the sum of their weights
  bool normalizer_is_count;  // of all processes, which divide their sum by 0 if nothing counts
  bool expects;              // a forward may make its gradients for the grad_output that it expects
  int flags;                 // of the loss itself
  int64_t batch_dims;
  int64_t loss;  // the id of its row in _losses/

  explicit Mode(int64_t packed)
      : reduction(static_cast<Reduction>(packed & 3)),
        dtype(kDTypes[packed >> 2 & 3]),
        for_input(packed >> 4 & 1),
        for_target(packed >> 5 & 1),
        ignore_nan(packed >> 6 & 1),
        may_decline(packed >> 7 & 1),
        is_below_autograd(packed >> 15 & 1),
        for_third(packed >> 29 & 1),
        mean_over_count(packed >> 24 & 1),
        normalizer_is_count(packed >> 30 & 1),
        expects(packed >> 31 & 1),
        flags(packed >> 25 & 0xf),
        batch_dims(packed >> 8 & 0x7f),
        loss(packed >> 16 & 0xff) {
    require(packed >= 0 && (packed & 3) < 3, "mode must be packed by _call/modes.py");
  }

 private:
  static constexpr ScalarType kDTypes[] = {ScalarType::Float, ScalarType::Double, ScalarType::Half,
                                           ScalarType::BFloat16};
};

using Maybe = std::optional<Tensor>;

struct Call {
  const Tensor &input, &target;
  Mode mode;
  Numbers numbers;
  double scale;
  const Maybe &weight, &mask, &normalizer;
  const std::optional<double>& divisor;  // a normalizer that is a number
  const Maybe& third;                    // replaces numbers.third; class weights, or the third operand of vectors
  int64_t ignore_index = -100;           // for rows; their z_loss is numbers.third
  double softcap = 0.0;
  Reads reads = reads_of(mode.loss);
  bool of_rows = reads != Reads::Element;

  bool of_classes = reads == Reads::Classes || reads == Reads::Index, of_vectors = of_rows && !of_classes;

  bool elementwise() const { return mode.reduction == Reduction::None; }
  // For losses of classes: the target is a class index for each row, not probabilities.
  bool has_indices() const { return of_classes && !is_floating(any_dtype_of(target.scalar_type())); }
  bool ignores_nan() const { return mode.ignore_nan && is_floating(any_dtype_of(target.scalar_type())); }
  // Whether the denominator must be counted before the pass.
  bool counts() const {
    return mode.reduction == Reduction::Mean && !normalizer && !divisor &&
           ((weight && !mode.mean_over_count) || mask || ignores_nan() || has_indices());
  }
  // Whether a pass over few rows can count by itself, if its engine does so.
  bool counts_few(int64_t rows) const {
    return has_indices() && counts() && mode.batch_dims == 0 && !weight && !mask && !third && rows <= plan::kFewRows;
  }
  // The divisor of the sum over `count` elements if nothing must be counted for it.
  double known_divisor(int64_t count) const {
    if (mode.reduction != Reduction::Mean) return 1.0;
    return divisor ? *divisor : static_cast<double>(count);
  }
};

// Why the general kernels do not serve a call over this layout; null if they do.
inline const char* fault_of(const Call& call, const Layout& layout) {
  if (layout.fault()) return layout.fault();
  if (!same_device(call.input, call.target)) return "input and target must be on one device";
  for (const Maybe* beside : {&call.weight, &call.mask, &call.normalizer, &call.third}) {
    if (*beside && !same_device(call.input, **beside)) return "all operands must be on one device";
  }
  if (call.mask && call.mask->scalar_type() != ScalarType::Bool) return "mask must be bool";
  if (call.normalizer && call.normalizer->dim() != 0) return "normalizer must be 0-d";
  if (call.mode.batch_dims > layout.rank()) return "batch_dims must be at most the rank";
  if (call.of_classes && call.third && (call.third->dim() != 1 || call.third->numel() != layout.classes())) {
    return "class weights must be one for each class";
  }
  if (call.of_vectors && !is_floating(any_dtype_of(call.target.scalar_type()))) return "target must be floating";
  if (call.reads == Reads::Index && !call.has_indices()) return "target must have an index for each row";
  return nullptr;
}

// Whether the op declines a call with this fault. Raises if the caller has checked the operands already.
inline bool declines(const Call& call, const char* fault) {
  if (!fault) return false;
  require(call.mode.may_decline, fault);
  return true;
}

// For an op that autograd does not see: its caller must say that he knows, or be a graph that AOTAutograd runs.
constexpr char kUnseen[] = "autograd does not see this op: call the loss's own, torch.ops.cudaloss.*";
inline void require_below_autograd(const Call& call) { require(call.mode.is_below_autograd, kUnseen); }
inline void require_no_grad() { require(!aoti_torch_grad_mode_is_enabled(), kUnseen); }

// Whether everything is dense and in the input's order of memory, so that there is one dimension.
inline bool is_flat(const Call& call, const Tensor* grad_output, std::initializer_list<const Maybe*> gradients) {
  const auto lies = [&](const Tensor& tensor) { return same_order(call.input, tensor); };
  if (call.of_rows || call.weight || call.mask || call.third || call.mode.batch_dims > 0 || !lies(call.target))
    return false;
  if (grad_output && call.elementwise() && !lies(*grad_output) &&
      !(same_sizes(call.input, *grad_output) && is_broadcast_scalar(*grad_output))) {
    return false;
  }
  return std::all_of(gradients.begin(), gradients.end(), [&](const Maybe* x) { return !*x || lies(**x); });
}

inline Layout layout_of(const Call& call, const Tensor* grad_output = nullptr,
                        std::initializer_list<const Maybe*> gradients = {}) {
  if (is_flat(call, grad_output, gradients)) return Layout(call.input);
  Layout layout = call.of_rows ? Layout(Layout::OfRows(), call.input, call.target) : Layout(call.input, call.target);
  if (call.weight) layout.add(kWeight, *call.weight);
  if (call.mask) layout.add(kMask, *call.mask);
  if (call.third && !call.of_classes) layout.add(kThird, *call.third);
  return layout;
}

inline Rows rows_of(const Call& call, const Layout& layout) {
  Rows rows = {layout.classes(), {}, call.ignore_index, call.numbers.third, call.softcap};
  std::copy(layout.class_strides(), layout.class_strides() + kPlaces, rows.class_stride);
  if (call.of_classes && call.third) rows.class_stride[kThird] = call.third->strides()[0];
  return rows;
}

inline Selection selection_of(const Call& call) {
  return {call.mask ? any_operand(*call.mask) : kNoOperand, call.weight ? operand(*call.weight) : kNoOperand,
          call.ignores_nan()};
}

inline int64_t segments_of(const Call& call, const Layout& layout) {
  int64_t segments = 1;
  for (int64_t dim = 0; dim < call.mode.batch_dims; ++dim) segments *= layout.sizes()[dim];
  return segments;
}

// Whether `denominators` can be the result of a forward of this call: one for each segment, or one for all. With rows
// of indices also none, because their plain calls keep none.
inline bool has_denominators(const Call& call, const Layout& layout, const Maybe& denominators) {
  if (!call.counts() || (!denominators && call.has_indices())) return true;
  if (!denominators || !same_device(call.input, *denominators)) return false;
  const auto sizes = denominators->sizes();
  return denominators->scalar_type() == ScalarType::Double && denominators->is_contiguous() && sizes.size() == 2 &&
         (sizes[0] == segments_of(call, layout) || sizes[0] == 1) && sizes[1] == 2;
}

// The denominators, one for each segment, if they must be counted.
template <class Engine>
void count_into(const Call& call, const Layout& layout, Divisor* output, const Held& held = {}) {
  Count count = {
      selection_of(call), any_operand(call.target), kNoOperand, rows_of(call, layout), {}, {}, 1.0, output, held};
  if (call.third && call.has_indices()) count.third = operand(*call.third);
  if (call.mode.mean_over_count) count.selection.weight = kNoOperand;
  const auto is_leading = [&](int dim) { return dim < call.mode.batch_dims; };
  count.segments = layout.in_order(is_leading);
  count.inner = layout.by_memory([&](int dim) { return !is_leading(dim); });
  // Does not read again along dimensions where nothing varies.
  Dims varying = {};
  for (int dim = 0; dim < count.inner.rank; ++dim) {
    const int64_t* stride = count.inner.stride[dim];
    if ((stride[kWeight] && count.selection.weight.data) || stride[kMask] ||
        ((call.ignores_nan() || call.has_indices()) && stride[kTarget])) {
      varying.size[varying.rank] = count.inner.size[dim];
      std::copy(stride, stride + kPlaces, varying.stride[varying.rank++]);
    } else {
      count.multiplicity *= static_cast<double>(count.inner.size[dim]);
    }
  }
  count.inner = varying;
  Engine::count(count, call.input);
}
// The same as a tensor: (segments, 2) in float64, each with its reciprocal.
template <class Engine>
Maybe counted(const Call& call, const Layout& layout, const Held& held = {}) {
  if (!call.counts()) return {};
  const int64_t sizes[] = {segments_of(call, layout), 2}, strides[] = {2, 1};
  Tensor found = empty({sizes, 2}, {strides, 2}, ScalarType::Double, call.input);
  if (sizes[0] > 0) count_into<Engine>(call, layout, static_cast<Divisor*>(found.mutable_data_ptr()), held);
  return found;
}
inline const Divisor* divisors_in(const Maybe& denominators) {
  const bool has_any = denominators && denominators->numel() > 0;
  return has_any ? static_cast<const Divisor*>(denominators->const_data_ptr()) : nullptr;
}

// The pass over all elements, with one denominator or `several`; null if none were counted. The caller adds the
// dimensions and the results.
inline Pass pass_of(const Call& call, const Layout& layout, const Divisor* counted, bool several) {
  Pass pass = {};
  pass.input = operand(call.input);
  pass.target = any_operand(call.target);
  pass.selection = selection_of(call);
  pass.loss = call.mode.loss;
  pass.numbers = call.numbers;
  pass.third = !call.third ? kNoOperand : call.of_vectors ? any_operand(*call.third) : operand(*call.third);
  pass.rows = rows_of(call, layout);
  pass.loss_dtype = dtype_of(call.mode.dtype);
  pass.scale = call.scale;
  if (!call.counts()) counted = nullptr;
  int64_t count = 1;
  for (int dim = static_cast<int>(call.mode.batch_dims); dim < layout.rank(); ++dim) count *= layout.sizes()[dim];
  pass.denominator = {divisor_of(counted ? 1.0 : call.known_divisor(count)),
                      call.normalizer ? any_operand(*call.normalizer) : kNoOperand,
                      call.mode.normalizer_is_count,
                      counted,
                      counted && several,
                      !counted && call.counts_few(count)};
  return pass;
}

// A segment for each index of the leading dimensions.
inline void set_dims(Pass& pass, const Call& call, const Layout& layout) {
  const int64_t leading = call.elementwise() ? 0 : call.mode.batch_dims;
  pass.segments = layout.in_order([&](int dim) { return dim < leading; });
  pass.inner = layout.by_memory([&](int dim) { return dim >= leading; });
}

}  // namespace cudaloss::tensors
