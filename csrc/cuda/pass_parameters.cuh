// From a Pass and its plan to the parameters of a general kernel, and its launch. Host code.
#pragma once

#include <algorithm>

#include "cuda/general_pass.cuh"
#include "cuda/launch.h"
#include "cuda/pass_plan.h"

namespace cudaloss::cuda {

// How many dimensions there are up to the last along which `place` varies.
inline int dims_of(const OffsetCalculator& offsets, Place place) {
  int dims = offsets.rank;
  while (dims > 0 && offsets.step[dims - 1][place] == 0) --dims;
  return dims;
}

template <class F, class P, class A, class B, int N>
PassParameters<A, B, F, P> parameters(const Pass& r, const PassPlan& plan) {
  PassParameters<A, B, F, P> p = {};
  const VectorDims dims = vector_dims(r, plan.kernel);
  const auto accessor = [&](auto element, Place place, const Operand& operand) {
    return accessor_of<typename decltype(element)::type>(operand, spacing(dims.across, dims.along, place, operand, N));
  };
  p.partition = plan.partition;
  p.segments = plan.segments;
  p.inner = plan.inner;
  p.input = accessor(Type<A>(), kInput, r.input);
  p.target = accessor(Type<B>(), kTarget, r.target);
  p.whole = p.input.spacing.vectorized && p.target.spacing.vectorized;
  p.linear = is_linear(r);
  p.input_is_first = same_strides(r.segments, r.inner, kInput, kResult);
  p.target_is_second = same_strides(r.segments, r.inner, kTarget, kSecondResult);
  p.mask = accessor(Type<uint8_t>(), kMask, {r.selection.mask.data, DType::Bool});
  const auto weights = [&](Place place, const Operand& operand) -> Weights<F> {
    return {operand.data, spacing(dims.across, dims.along, place, operand, N), operand.dtype};
  };
  p.weight = weights(kWeight, r.selection.weight);
  p.third = weights(kThird, r.third);
  p.weight_dims = dims_of(p.inner, kWeight);
  p.third_dims = dims_of(p.inner, kThird);
  const auto dims_if_needed = [&](Place place) {
    return is_linear(r.segments, r.inner, place) ? 0 : std::max(1, dims_of(p.inner, place));
  };
  p.input_dims = dims_if_needed(kInput);
  p.target_dims = dims_if_needed(kTarget);
  p.ignore_nan = r.selection.ignore_nan;
  p.scale = r.scale;
  p.denominator = r.denominator;
  p.scale_is_known = !r.denominator.counted && !r.denominator.normalizer.data;
  p.known_scale = ratio(r.scale, r.denominator.constant.value, F());
  p.scattered_grad_output = is_scattered(r);
  p.grad_output = GradOutput(r, !p.scattered_grad_output && !varies(r.segments, kGradOutput));
  p.sums_losses = r.reduction.data && r.summed == Summed::Losses;
  p.summed = r.summed;
  p.of_third = r.of_third;
  p.grad_input = accessor(Type<A>(), kResult, as_operand(r.grad_input));
  p.grad_target = accessor(Type<B>(), kSecondResult, as_operand(r.grad_target));
  p.losses = accessor(Type<Any<F>>(), kResult, as_operand(r.losses));
  return p;
}

// Starts `kernel(functors..., parameters)` with the plan, and the fold if it is needed.
template <class T, class A, class B, int N, class Kernel, class... Functors>
void launch_pass(const Pass& r, const PassPlan& plan, int threads, const Memory& memory, Stream stream, Kernel kernel,
                 const Functors&... functors) {
  using P = Partial<T>;
  auto p = parameters<Scalar<T>, P, A, B, N>(r, plan);
  const SegmentLoss store = {r.denominator, r.scale, r.summed == Summed::Losses, r.reduction};
  int64_t blocks = p.partition.blocks(threads);
  if (r.hold_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
  const auto start = [&](const Fold<P, SegmentLoss>& fold) {
    p.fold = fold;
    launch(kernel, r.denominator.counted ? Start::Behind : Start::Alone, blocks, threads, stream, functors..., p);
  };
  if (!r.reduction.data) return start({nullptr, nullptr, store});
  Partition sums = p.partition;
  if (is_by_columns(plan.kernel)) {  // N segments a thread
    sums.segments *= N;
    sums.groups *= N;
  }
  launch_folded<P>(sums, blocks, store, memory, stream, start, threads);
}

}  // namespace cudaloss::cuda
