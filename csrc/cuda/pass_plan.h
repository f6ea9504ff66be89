// Which kernel runs a Pass, and how its work is shared out. Host code.
#pragma once

#include <algorithm>

#include "core/pass.h"
#include "core/plan.h"
#include "cuda/partition.h"

namespace cudaloss::cuda {

// The commonest, over operands that are read in whole vectors, dense and alike: fp32, whose target may be broadcast;
// halves (fp16 or bfloat16), a half against fp32, fp32 against uint8; with a mask that lies as they do, or weights of
// fp32 that may be broadcast and such a mask. Then fp32 or a half with anything beside it: NaN to be looked for, masks
// and weights of any strides, operands that are not dense. Each of these is 20 to 40 KB of machine code a loss and
// architecture. A loss that has not all kernels lacks MaskedHalfAndFloat, MaskedFloatAndUInt8 and WeightedFloats, whose
// work the next two do: fp32 weights take 11 to 16 % longer so, a half against fp32 5 % less to 11 % more, with a mask
// up to 29 % (H200, 2^26 elements). Last, three kernels for all losses: operands of any strides, single losses and sums
// of few, in arithmetic that rounds once.
enum class PassKernel {
  Floats,
  MaskedFloats,
  MaskedHalves,
  MaskedHalfAndFloat,
  MaskedFloatAndUInt8,
  WeightedFloats,
  ThirdFloats,
  FloatWithExtras,
  HalfWithExtras,
  StridedFloats,
  StridedAny,
  StridedDoubles
};

// Elements that a thread reads at once.
constexpr int pass_vector(PassKernel kernel) {
  switch (kernel) {
    case PassKernel::StridedDoubles:
      return plan::vector_elements(8, 8);
    case PassKernel::MaskedHalves:
    case PassKernel::MaskedHalfAndFloat:
    case PassKernel::HalfWithExtras:
      return plan::vector_elements(2, 4);
    default:
      return plan::vector_elements(4, 4);
  }
}

// By the order above: of a mask at most, of whole vectors, of any strides.
constexpr bool reads_whole_vectors(PassKernel kernel) { return kernel < PassKernel::StridedFloats; }
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

inline bool wants_float64(const Pass& r) {
  const auto is_double = [](const void* data, DType dtype) { return data && dtype == DType::Float64; };
  if (r.summed != Summed::Losses)
    return true;  // terms of both signs: what each loses in rounding may be all that is left
  return r.input.dtype == DType::Float64 || r.target.dtype == DType::Float64 ||
         is_double(r.selection.weight.data, r.selection.weight.dtype) || is_double(r.third.data, r.third.dtype) ||
         is_double(r.reduction.data, r.reduction.dtype) || is_double(r.losses.data, r.losses.dtype) ||
         (is_scattered(r) && r.grad_output.dtype == DType::Float64);
}

inline bool is_half(DType dtype) { return dtype == DType::Float16 || dtype == DType::BFloat16; }

// Whether a float's, or a half's, whole vectors may stand beside such a target.
inline bool is_stored(DType dtype) { return is_half(dtype) || dtype == DType::Float32 || dtype == DType::UInt8; }

// Whether input and gradients lie densely and alike, and then whether the target does.
inline bool is_linear_but_target(const Pass& r) {
  const auto serves = [&](Place place, const void* data) { return !data || is_linear(r.segments, r.inner, place); };
  return serves(kInput, r.input.data) && serves(kFirst, r.grad_input.data) && serves(kSecond, r.grad_target.data);
}
inline bool is_linear(const Pass& r) {
  return is_linear_but_target(r) && (!r.target.data || is_linear(r.segments, r.inner, kTarget));
}

// Whether a mask, if there is one, lies as linear operands do.
inline bool has_plain_mask(const Pass& r, int n) {
  const Operand mask = {r.selection.mask.data, DType::Bool};
  return !mask.data ||
         (spacing(r.segments, r.inner, kMask, mask, n).vectorized && is_linear(r.segments, r.inner, kMask));
}

// Whether everything, of many elements, is read in whole vectors of n but for one last.
inline bool reads_vectors(const Pass& r, int n) {
  const auto serves = [&](Place place, const void* data, DType dtype) {
    return !data || spacing(r.segments, r.inner, place, {data, dtype}, n).vectorized;
  };
  return r.inner.rank > 0 && distinct_terms(r.inner) > plan::kExactCount && r.segments.rank <= kFewDims &&
         !r.losses.data && r.summed == Summed::Losses && !is_scattered(r) &&
         serves(kInput, r.input.data, r.input.dtype) && serves(kTarget, r.target.data, r.target.dtype) &&
         serves(kFirst, r.grad_input.data, r.grad_input.dtype) &&
         serves(kSecond, r.grad_target.data, r.grad_target.dtype) && has_whole_vectors(r.segments, r.inner, n) &&
         !lies_across(r.segments, r.inner) &&
         (r.segments.count() <= 1 || vectors_of(r.inner, n) >= plan::kBlockVectors);
}

// Elements that a kernel reads at once where all that it reads lies in whole vectors.
inline int vector_of(const Pass& r) {
  return pass_vector(is_half(r.input.dtype) ? PassKernel::HalfWithExtras : PassKernel::FloatWithExtras);
}

// `segments` and `inner` are the offsets of vectors of n.
inline PassKernel kernel_of(const Pass& r, int n, const OffsetCalculator& segments, const OffsetCalculator& inner,
                            bool all_kernels, bool is_usual) {
  using K = PassKernel;
  const DType input = r.input.dtype, target = r.target.dtype;
  if (wants_float64(r)) return K::StridedDoubles;
  const bool are_floats = input == DType::Float32 && target == DType::Float32;
  const K strided = are_floats && !r.third.data ? K::StridedFloats : K::StridedAny;
  if (!(input == DType::Float32 || is_half(input)) || !is_stored(target)) return strided;
  // The gradient of a float takes more arithmetic than halves have beside it.
  if (is_half(input) && target == DType::Float32 && r.grad_target.data) return strided;
  if (!is_usual || !reads_vectors(r, n)) return strided;
  const bool is_narrow = inner.narrow && segments.narrow;
  const Selection& selection = r.selection;
  const Operand& weight = r.third.data ? r.third : selection.weight;  // either is read in the same way
  const bool are_plain = are_floats && !weight.data && !selection.mask.data && !selection.ignore_nan;
  if (are_plain && inner.rank <= kFewDims && is_narrow && is_linear_but_target(r)) return K::Floats;
  if (inner.rank <= kFewDims && is_linear(r) && !selection.ignore_nan && has_plain_mask(r, n)) {
    if (!weight.data) {
      if (are_floats) return selection.mask.data ? K::MaskedFloats : K::Floats;
      if (is_half(input) && is_half(target)) return K::MaskedHalves;
      if (is_half(input) && target == DType::Float32 && all_kernels) return K::MaskedHalfAndFloat;
      if (input == DType::Float32 && target == DType::UInt8 && all_kernels) return K::MaskedFloatAndUInt8;
    } else if (are_floats && weight.dtype == DType::Float32 && is_narrow) {
      if (!r.third.data && all_kernels) return K::WeightedFloats;
      if (r.third.data && !selection.weight.data) return K::ThirdFloats;
    }
  }
  if (r.third.data || inner.rank > kFewDims || !is_narrow) return strided;
  return is_half(input) ? K::HalfWithExtras : K::FloatWithExtras;
}

struct PassPlan {
  PassKernel kernel;
  Partition partition;
  OffsetCalculator segments, inner;
};

// Of a loss that has all kernels, or but those of the commonest passes; in its usual form, or in one for which nothing
// but strided kernels are there.
inline PassPlan plan_of(const Pass& r, bool all_kernels, bool is_usual, int threads) {
  const int whole = vector_of(r);
  PassPlan plan = {};
  plan.segments = offsets_of(r.segments);
  plan.inner = vector_offsets(r.inner, whole);
  plan.kernel = kernel_of(r, whole, plan.segments, plan.inner, all_kernels, is_usual);
  const int vector = pass_vector(plan.kernel);
  if (vector != whole) plan.inner = vector_offsets(r.inner, vector);
  const bool is_whole = reads_whole_vectors(plan.kernel);
  plan.partition = partition_of(r.segments, r.inner, vector, vectors_per_thread(plan.kernel), plan::kMaxBlocks,
                                is_whole ? threads : plan::kStridedThreads, is_whole);
  return plan;
}

}  // namespace cudaloss::cuda
