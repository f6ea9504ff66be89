// Chooses the kernel for a Pass, and how its work is shared out. Host code.
#pragma once

#include <algorithm>

#include "core/pass.h"
#include "core/plan.h"
#include "cuda/partition.h"

namespace cudaloss::cuda {

// First the commonest passes, with dense operands in the same order, in whole vectors: fp32 operands, which may be
// slices, and whose target may be broadcast; halves (fp16 or bfloat16), a half with fp32, fp32 with uint8. Each can
// have a mask in the same order; fp32 also fp32 weights or an fp32 third operand, which may be broadcast, with such a
// mask. Then fp32 or a half with any extras: ignore_nan, masks and weights of any strides, operands that are not dense,
// a target that is broadcast; and the same with a third operand of any dtype (2^27 fp32 elements, H200: ThirdFloats
// takes 0.8 times as long). Each kernel is 20 to 40 KB of machine code for each loss and architecture. A loss that does
// not have all kernels lacks MaskedHalfAndFloat, MaskedFloatAndUInt8 and WeightedFloats, and the two kernels with
// extras serve instead: fp32 weights then take up to 9 % longer, a half with fp32 and a mask 2 to 15 %, uint8 targets
// 13 to 28 % (H100, 2^27 elements, three losses). Last, kernels for all losses: sums of the gradients of an operand
// that is broadcast; then of any strides, single losses and small sums. Their arithmetic rounds once.
enum class PassKernel {
  Floats,
  SlicedFloats,
  MaskedFloats,
  MaskedHalves,
  MaskedHalfAndFloat,
  MaskedFloatAndUInt8,
  WeightedFloats,
  ThirdFloats,
  FloatWithExtras,
  HalfWithExtras,
  FloatWithThird,
  HalfWithThird,
  SummedRows,
  SummedRowsOfHalves,
  SummedColumns,
  SummedColumnsOfHalves,
  StridedFloats,
  StridedAny,
  StridedDoubles
};

// The elements that a thread reads at once.
constexpr int pass_vector(PassKernel kernel) {
  switch (kernel) {
    case PassKernel::StridedDoubles:
      return plan::vector_elements(8, 8);
    case PassKernel::MaskedHalves:
    case PassKernel::MaskedHalfAndFloat:
    case PassKernel::HalfWithExtras:
    case PassKernel::HalfWithThird:
      return plan::vector_elements(2, 4);
    default:
      return plan::vector_elements(4, 4);
  }
}

// The order above decides: at most a mask; whole vectors; any strides.
constexpr bool reads_whole_vectors(PassKernel kernel) { return kernel < PassKernel::SummedRows; }
// Whether a vector is one element of several segments.
constexpr bool is_by_columns(PassKernel kernel) {
  return kernel == PassKernel::SummedColumns || kernel == PassKernel::SummedColumnsOfHalves;
}
constexpr VectorsPerThread vectors_per_thread(PassKernel kernel) {
  if (!reads_whole_vectors(kernel)) return {1, plan::kManyVectors};
  return {plan::kPassUnroll, kernel < PassKernel::WeightedFloats ? plan::kFewVectors : plan::kManyVectors};
}

// Whether grad_output is neither one for all nor the next one for each segment.
inline bool is_scattered(const Pass& r) {
  if (!r.grad_output.data) return false;
  if (varies(r.inner, kGradOutput)) return true;
  return varies(r.segments, kGradOutput) && !is_linear(Dims{}, r.segments, kGradOutput);
}

inline bool has_float64(const Pass& r) {
  const auto is_double = [](const void* data, DType dtype) { return data && dtype == DType::Float64; };
  return r.input.dtype == DType::Float64 || r.target.dtype == DType::Float64 ||
         is_double(r.selection.weight.data, r.selection.weight.dtype) || is_double(r.third.data, r.third.dtype) ||
         r.loss_dtype == DType::Float64 || (is_scattered(r) && r.grad_output.dtype == DType::Float64);
}

// Whether whole vectors of such a target can be beside those of a float or a half.
inline bool is_stored(DType dtype) { return is_half(dtype) || dtype == DType::Float32 || dtype == DType::UInt8; }

// The dimensions along whose first a vector is, and the others.
struct VectorDims {
  const Dims &along, &across;
};
inline VectorDims vector_dims(const Pass& r, PassKernel kernel) {
  return is_by_columns(kernel) ? VectorDims{r.segments, r.inner} : VectorDims{r.inner, r.segments};
}

// The kernel for the sums of one operand's gradients. By columns if segments are side by side. StridedDoubles if the
// other operand is not read in whole vectors, or if there are options: of gradients of both signs, a sum may consist
// mostly of their rounding errors.
inline PassKernel summed_kernel_of(const Pass& r, const OffsetCalculator& segments, const OffsetCalculator& inner) {
  using K = PassKernel;
  const bool by_columns = lies_across(r.segments, r.inner), of_input = r.summed == Summed::GradInput;
  const VectorDims dims = vector_dims(r, by_columns ? K::SummedColumns : K::SummedRows);
  const Operand& whole = of_input ? r.target : r.input;
  const Result& gradient = of_input ? r.grad_target : r.grad_input;
  constexpr int n = pass_vector(K::SummedRows);
  const auto has_vectors = [&](Place place, const auto& has) {
    return spacing(dims.across, dims.along, place, {has.data, has.dtype}, n).vectorized;
  };
  const bool are_whole = has_vectors(of_input ? kTarget : kInput, whole) && dims.along.size[0] % n == 0 &&
                         (!gradient.data || has_vectors(of_input ? kSecondResult : kResult, gradient));
  const Selection& selection = r.selection;
  if (!are_whole || selection.mask.data || selection.weight.data || selection.ignore_nan || r.third.data ||
      is_scattered(r) || (by_columns && varies(r.segments, kGradOutput)) || r.inner.rank > kFewDims ||
      r.segments.rank > kFewDims || !inner.narrow || !segments.narrow ||
      !is_stored(of_input ? r.input.dtype : r.target.dtype)) {
    return K::StridedDoubles;
  }
  if (whole.dtype == DType::Float32) return by_columns ? K::SummedColumns : K::SummedRows;
  if (is_half(whole.dtype)) return by_columns ? K::SummedColumnsOfHalves : K::SummedRowsOfHalves;
  return K::StridedDoubles;
}

// Whether gradients are dense and in the pass's order; below, also the operands.
inline bool has_linear_gradients(const Pass& r) {
  const auto serves = [&](Place place, const void* data) { return !data || is_linear(r.segments, r.inner, place); };
  return serves(kResult, r.grad_input.data) && serves(kSecondResult, r.grad_target.data);
}
inline bool is_linear(const Pass& r) {
  return has_linear_gradients(r) && is_linear(r.segments, r.inner, kInput) &&
         (!r.target.data || is_linear(r.segments, r.inner, kTarget));
}

// Whether the mask, if there is one, is in the order of linear operands.
inline bool has_plain_mask(const Pass& r, int n) {
  const Operand mask = {r.selection.mask.data, DType::Bool};
  return !mask.data ||
         (spacing(r.segments, r.inner, kMask, mask, n).vectorized && is_linear(r.segments, r.inner, kMask));
}

// Whether the target has one element for each vector.
inline bool is_target_spread(const Pass& r) { return r.inner.rank > 0 && r.inner.stride[0][kTarget] == 0; }

// Whether all operands have many elements and are read in whole vectors of n, except possibly one last vector; or the
// target is spread.
inline bool reads_vectors(const Pass& r, int n) {
  const auto serves = [&](Place place, const void* data, DType dtype) {
    return !data || spacing(r.segments, r.inner, place, {data, dtype}, n).vectorized;
  };
  return r.inner.rank > 0 && distinct_terms(r.inner) > plan::kExactCount && r.segments.rank <= kFewDims &&
         !r.losses.data && r.summed == Summed::Losses && !is_scattered(r) &&
         serves(kInput, r.input.data, r.input.dtype) &&
         (is_target_spread(r) || serves(kTarget, r.target.data, r.target.dtype)) &&
         serves(kResult, r.grad_input.data, r.grad_input.dtype) &&
         serves(kSecondResult, r.grad_target.data, r.grad_target.dtype) && has_whole_vectors(r.segments, r.inner, n) &&
         !lies_across(r.segments, r.inner) &&
         (r.segments.count() <= 1 || vectors_of(r.inner, n) >= plan::kBlockVectors);
}

// The elements that a kernel reads at once if all its operands are in whole vectors.
inline int vector_of(const Pass& r) {
  return pass_vector(is_half(r.input.dtype) ? PassKernel::HalfWithExtras : PassKernel::FloatWithExtras);
}

// `segments` and `inner` are the offsets of vectors of n.
inline PassKernel kernel_of(const Pass& r, int n, const OffsetCalculator& segments, const OffsetCalculator& inner,
                            bool all_kernels, bool is_usual) {
  using K = PassKernel;
  const DType input = r.input.dtype, target = r.target.dtype;
  if (has_float64(r)) return K::StridedDoubles;
  if (r.summed != Summed::Losses) return summed_kernel_of(r, segments, inner);
  const bool are_floats = input == DType::Float32 && target == DType::Float32;
  const K strided = are_floats && !r.third.data ? K::StridedFloats : K::StridedAny;
  if (!(input == DType::Float32 || is_half(input)) || !is_stored(target)) return strided;
  // A float target's gradient needs more arithmetic than the kernels for halves have.
  if (is_half(input) && target == DType::Float32 && r.grad_target.data) return strided;
  if (!is_usual || !reads_vectors(r, n)) return strided;
  const bool is_narrow = inner.narrow && segments.narrow;
  const Selection& selection = r.selection;
  const bool has_mask = selection.mask.data, is_weighted = selection.weight.data;
  const bool are_plain = are_floats && !r.third.data && !is_weighted && !has_mask && !selection.ignore_nan;
  if (are_plain && inner.rank <= kFewDims && is_narrow && has_linear_gradients(r)) {
    return is_linear(r.segments, r.inner, kInput) && !is_target_spread(r) ? K::Floats : K::SlicedFloats;
  }
  if (inner.rank > kFewDims) return strided;
  const bool is_plain = is_linear(r) && !selection.ignore_nan && has_plain_mask(r, n);
  if (r.third.data) {
    // Its own gradient is stored as the input's, and so has to be of the same kind.
    if (!is_narrow || (r.of_third && is_half(r.grad_input.dtype) != is_half(input))) return strided;
    if (is_plain && are_floats && !is_weighted && r.third.dtype == DType::Float32) return K::ThirdFloats;
    return is_half(input) ? K::HalfWithThird : K::FloatWithThird;
  }
  if (is_plain) {
    if (!is_weighted) {
      if (are_floats) return has_mask ? K::MaskedFloats : K::Floats;
      if (is_half(input) && is_half(target)) return K::MaskedHalves;
      if (is_half(input) && target == DType::Float32 && all_kernels) return K::MaskedHalfAndFloat;
      if (input == DType::Float32 && target == DType::UInt8 && all_kernels) return K::MaskedFloatAndUInt8;
    } else if (are_floats && selection.weight.dtype == DType::Float32 && is_narrow && all_kernels) {
      return K::WeightedFloats;
    }
  }
  if (!is_narrow) return strided;
  return is_half(input) ? K::HalfWithExtras : K::FloatWithExtras;
}

struct PassPlan {
  PassKernel kernel;
  Partition partition;
  OffsetCalculator segments, inner;
};

// For a loss with all kernels, or only those of the commonest passes; for its usual form, or for a form with only
// strided kernels.
inline PassPlan plan_of(const Pass& r, bool all_kernels, bool is_usual, int threads) {
  const int whole = vector_of(r);
  PassPlan plan = {};
  plan.segments = offsets_of(r.segments);
  plan.inner = vector_offsets(r.inner, whole);
  plan.kernel = kernel_of(r, whole, plan.segments, plan.inner, all_kernels, is_usual);
  const int vector = pass_vector(plan.kernel);
  if (is_by_columns(plan.kernel)) {
    Dims groups = r.segments;  // of `vector` segments
    if (groups.rank > 0) {
      groups.size[0] /= vector;
      for (int64_t& stride : groups.stride[0]) stride *= vector;
    }
    plan.segments = offsets_of(groups);
    plan.inner = offsets_of(r.inner);
    const int64_t rows = r.inner.count();
    plan.partition = partition_across(groups.count(), rows, plan::kColumnThreads, rows / plan::kLeastColumnRows);
    return plan;
  }
  if (vector != whole) plan.inner = vector_offsets(r.inner, vector);
  const bool is_whole = reads_whole_vectors(plan.kernel);
  plan.partition = partition_of(r.segments, r.inner, vector, vectors_per_thread(plan.kernel), plan::kMaxBlocks,
                                is_whole ? threads : plan::kStridedThreads, is_whole);
  return plan;
}

}  // namespace cudaloss::cuda
