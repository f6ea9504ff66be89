// The ops of overlap: the sums over the voxels of each sample and class, and the input's gradient from the sums'.
#pragma once

#include "core/overlap.h"
#include "torch/contrast.h"

namespace cudaloss::tensors {

// The arguments of both ops. Tensors have the dimensions (samples, classes, outer, inner); a target of indices, and the
// mask, one class for all.
#define CUDALOSS_OVERLAP                                                                                     \
  Tensor input, Tensor target, Maybe mask, int64_t activation, bool squares, bool entropy, bool has_indices, \
      int64_t ignore_index
#define CUDALOSS_OVERLAP_ARGUMENTS input, target, mask, activation, squares, entropy, has_indices, ignore_index

inline void take_strides(const Tensor& tensor, int64_t (&strides)[kOverlapDims]) {
  for (int d = 0; d < kOverlapDims; ++d) strides[d] = tensor.strides()[d];
}
inline bool has_voxels_of(const Tensor& input, const Tensor& other, bool classes) {
  if (other.dim() != kOverlapDims || !same_device(other, input)) return false;
  for (int d = 0; d < kOverlapDims; ++d) {
    const int64_t size = d == kClass && !classes ? 1 : input.sizes()[d];
    if (other.sizes()[d] != size) return false;
  }
  return true;
}
inline Overlap overlap_of(CUDALOSS_OVERLAP) {
  require_no_grad();
  require(input.dim() == kOverlapDims && input.numel() > 0, "the input must have samples, classes and voxels");
  require(0 <= activation && activation <= 2, "no such activation");
  require(has_voxels_of(input, target, !has_indices), "the target must have the input's voxels");
  require(!mask || (has_voxels_of(input, *mask, false) && mask->scalar_type() == ScalarType::Bool),
          "the mask must be bool, with the input's voxels");
  Overlap pass = {};
  pass.input = operand(input);
  pass.target = any_operand(target);
  require(!has_indices || !(is_floating(pass.target.dtype) || pass.target.dtype == DType::Bool),
          "indices must be integers");
  pass.mask = mask ? static_cast<const uint8_t*>(mask->const_data_ptr()) : nullptr;
  pass.samples = input.sizes()[kSample], pass.classes = input.sizes()[kClass];
  pass.outer = input.sizes()[kOuter], pass.inner = input.sizes()[kInner];
  require(pass.voxels() < INT32_MAX && pass.classes <= kMostOverlapClasses, "too many voxels, or too many classes");
  take_strides(input, pass.input_stride);
  take_strides(target, pass.target_stride);
  if (mask) take_strides(*mask, pass.mask_stride);
  pass.activation = static_cast<Activation>(activation);
  pass.squares = squares;
  pass.entropy = entropy;
  pass.has_indices = has_indices;
  pass.ignore_index = ignore_index;
  return pass;
}
inline bool has_overlap_sums(const Tensor& sums, const Overlap& pass, const Tensor& beside) {
  return sums.dim() == 3 && sums.sizes()[0] == pass.samples && sums.sizes()[1] == pass.classes &&
         sums.sizes()[2] == kOverlapSums && sums.is_contiguous() && sums.scalar_type() == ScalarType::Double &&
         same_device(sums, beside);
}

inline Tensor new_overlap_sums(const Tensor& input) {
  const int64_t samples = input.sizes()[kSample], classes = input.sizes()[kClass];
  const int64_t sizes[] = {samples, classes, kOverlapSums}, strides[] = {classes * kOverlapSums, kOverlapSums, 1};
  return empty(sizes, strides, ScalarType::Double, input);
}

template <class Engine>
Tensor overlap_sums(CUDALOSS_OVERLAP) {
  Overlap pass = overlap_of(CUDALOSS_OVERLAP_ARGUMENTS);
  const Tensor sums = new_overlap_sums(input);
  pass.sums = static_cast<double*>(sums.mutable_data_ptr());
  Engine::overlap(pass, input);
  return sums;
}

// The loss and its derivatives in the sums.
template <class Engine>
std::tuple<Tensor, Tensor> overlap_loss(CUDALOSS_OVERLAP, Maybe weight, double of_both, double under_both,
                                        double under_input, double under_target, double smooth_nr, double smooth_dr,
                                        bool batch, int64_t first_class, double of_ratio, double of_entropy,
                                        int64_t divides, ScalarType dtype) {
  const Tensor sums = overlap_sums<Engine>(CUDALOSS_OVERLAP_ARGUMENTS), slopes = new_overlap_sums(input);
  const Tensor loss = empty({}, {}, dtype, input);
  OverlapLoss of = {};
  of.samples = sums.sizes()[0], of.classes = sums.sizes()[1], of.first_class = first_class;
  of.of_both = of_both, of.under_both = under_both, of.under_input = under_input, of.under_target = under_target;
  of.smooth_nr = smooth_nr, of.smooth_dr = smooth_dr;
  of.batch = batch;
  of.weight = weight ? doubles_of(*weight, of.classes, input) : nullptr;
  of.of_ratio = of_ratio, of.of_entropy = of_entropy;
  of.divides = divides != 0, of.divides_by_weights = divides == 2;
  of.sums = static_cast<const double*>(sums.const_data_ptr());
  of.slopes = static_cast<double*>(slopes.mutable_data_ptr());
  of.loss = result(loss);
  Engine::overlap_loss(of, input);
  return {loss, slopes};
}

template <class Engine>
void overlap_gradient(CUDALOSS_OVERLAP, Tensor grads, Maybe grad_output, Tensor gradient) {
  Overlap pass = overlap_of(CUDALOSS_OVERLAP_ARGUMENTS);
  require(has_overlap_sums(grads, pass, input), "the sums' gradients must be contiguous float64, like the sums");
  require(has_voxels_of(input, gradient, true) && gradient.scalar_type() == input.scalar_type(),
          "the gradient must be like the input");
  require(!grad_output || (grad_output->dim() == 0 && same_device(*grad_output, input)), "grad_output must be 0-d");
  pass.grads = static_cast<const double*>(grads.const_data_ptr());
  pass.grad_output = grad_output ? operand(*grad_output) : kNoOperand;
  pass.gradient = result(gradient);
  take_strides(gradient, pass.gradient_stride);
  Engine::overlap(pass, input);
}

#undef CUDALOSS_OVERLAP
#undef CUDALOSS_OVERLAP_ARGUMENTS

}  // namespace cudaloss::tensors
