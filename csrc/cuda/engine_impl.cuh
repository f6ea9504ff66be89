// The CUDA engine: from a Pass, whose dtypes and strides are known at run time, to one kernel launch, and a second
// where sums must be folded. Included by the source of each loss, which setup.py writes.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "cuda/dense_impl.cuh"
#include "cuda/engine.h"
#include "cuda/launch.h"
#include "cuda/pass_plan.h"
#include "cuda/vectorized_pass.cuh"

namespace cudaloss::cuda {

template <class Element>
Accessor<Element> accessor(const Pass& r, Place place, const Operand& operand, int n) {
  return accessor_of<Element>(operand, spacing(r.segments, r.inner, place, operand, n));
}

// The last dimension along which a place varies, and all before.
inline int dims_of(const OffsetCalculator& offsets, Place place) {
  int dims = offsets.rank;
  while (dims > 0 && offsets.step[dims - 1][place] == 0) --dims;
  return dims;
}

template <class F, class P, class A, class B, int N>
PassParameters<A, B, F, P> parameters(const Pass& r, const PassPlan& plan) {
  PassParameters<A, B, F, P> p = {};
  p.partition = plan.partition;
  p.segments = plan.segments;
  p.inner = plan.inner;
  p.input = accessor<A>(r, kInput, r.input, N);
  p.target = accessor<B>(r, kTarget, r.target, N);
  p.whole = !std::is_same_v<A, Any<F>> && p.input.spacing.vectorized && p.target.spacing.vectorized;
  p.linear = is_linear(r);
  p.input_is_first = same_strides(r.segments, r.inner, kInput, kFirst);
  p.target_is_second = same_strides(r.segments, r.inner, kTarget, kSecond);
  p.mask = accessor<uint8_t>(r, kMask, {r.selection.mask.data, DType::Bool}, N);
  p.third = {r.third.data, p.inner.stride[kThird], r.third.dtype};
  const bool weight_is_third = plan.kernel == PassKernel::ThirdFloats;  // which is read in the place of a weight
  for (OffsetCalculator* offsets : {&p.segments, &p.inner}) {
    if (!weight_is_third) break;
    for (auto& step : offsets->step) step[kWeight] = step[kThird];
    offsets->stride[kWeight] = offsets->stride[kThird];
  }
  const Operand& weight = weight_is_third ? r.third : r.selection.weight;
  p.weight = {weight.data, p.inner.stride[kWeight], weight.dtype};
  p.weight_dims = dims_of(p.inner, kWeight);
  p.target_dims = is_linear(r.segments, r.inner, kTarget) ? 0 : dims_of(p.inner, kTarget);
  p.ignore_nan = r.selection.ignore_nan;
  p.scale = r.scale;
  p.denominator = r.denominator;
  p.scale_is_known = !r.denominator.counted && !r.denominator.normalizer.data;
  p.known_scale = ratio(r.scale, r.denominator.constant.value, F());
  p.scattered_grad_output = is_scattered(r);
  p.grad_output = {r.grad_output, !p.scattered_grad_output && !varies(r.segments, kGradOutput)};
  p.hold_unit_gradients = r.hold_unit_gradients;
  p.sums_losses = r.reduction.data && r.summed == Summed::Losses;
  p.summed = r.summed;
  p.of_third = r.of_third;
  p.grad_input = accessor<A>(r, kFirst, as_operand(r.grad_input), N);
  p.grad_target = accessor<B>(r, kSecond, as_operand(r.grad_target), N);
  p.losses = accessor<Any<F>>(r, kFirst, as_operand(r.losses), N);
  return p;
}

// A pass on the way to its kernel. TV is the arithmetic of the losses, TG that of the gradients.
template <template <class> class Loss>
struct PassLauncher {
  const Pass& r;
  const PassPlan& plan;
  const Memory& memory;
  Stream stream;

  template <PassKernel kKernel, Extras kExtras, class TV, class TG, class A, class B>
  void whole() const {
    constexpr int N = pass_vector(kKernel);
    start<TV, TG, A, B, N>(vectorized_pass_kernel<kExtras, Kept<TV>, A, B, N, Value<TV>, Value<TG>>);
  }
  template <PassKernel kKernel, class TV, class TG, class A, class B>
  void strided() const {
    constexpr int N = pass_vector(kKernel);
    start<TV, TG, A, B, N>(strided_pass_kernel<Kept<TV>, A, B, N, Value<TV>, Value<TG>>);
  }

 private:
  template <class T>
  using Value = Functor<Loss, ArithmeticOf<Loss, T>>;
  template <class T>
  using Kept = Partial<ArithmeticOf<Loss, T>>;

  template <class TV, class TG, class A, class B, int N, class Kernel>
  void start(Kernel kernel) const {
    using P = Kept<TV>;
    auto p = parameters<Scalar<TG>, P, A, B, N>(r, plan);
    const SegmentLoss store = {r.denominator, r.scale, r.summed == Summed::Losses, r.reduction};
    constexpr int threads = kPassThreads<Value<TV>>;
    int64_t blocks = p.partition.blocks(threads);
    if (r.hold_unit_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
    const auto start = [&](const Fold<P, SegmentLoss>& fold) {
      p.fold = fold;
      launch(kernel, r.denominator.counted ? Start::Behind : Start::Alone, blocks, threads, stream,
             Value<TV>(r.numbers), Value<TG>(r.numbers), p);
    };
    if (!r.reduction.data) return start({nullptr, nullptr, store});
    launch_folded<P>(p.partition, blocks, store, memory, stream, start, threads);
  }
};

// kDense: the loss has all kernels of dense.cuh, not those of the commonest training steps alone.
template <template <class> class Loss, bool kDense>
void pass(const Pass& r, const Memory& memory, Stream stream) {
  using K = PassKernel;
  using B = Extras;
  if constexpr (kHasUsual<Loss<float>>) {
    if (Loss<float>::is_usual(r.numbers)) return pass<Loss<float>::template Usual, kDense>(r, memory, stream);
  }
  if (r.of_third && !kHasGradThird<Loss<float>>) throw std::logic_error(kNoGradThird);
  if (is_dense(r) && launch_dense<Loss, kDense>(r, memory, stream)) return;
  const PassPlan plan = plan_of(r, kDense, kPassThreads<Functor<Loss, float>>);
  const PassLauncher<Loss> to = {r, plan, memory, stream};
  switch (plan.kernel) {
    case K::Floats:
      return to.template whole<K::Floats, B::None, float, FloatFloat, float, float>();
    case K::MaskedFloats:
      return to.template whole<K::MaskedFloats, B::Mask, float, FloatFloat, float, float>();
    case K::WeightedFloats:
      return to.template whole<K::WeightedFloats, B::Weight, float, FloatFloat, float, float>();
    case K::MaskedHalves:
      return to.template whole<K::MaskedHalves, B::Mask, FastFloat, FastFloat, AnyHalf, AnyHalf>();
    case K::MaskedHalfAndFloat:
      return to.template whole<K::MaskedHalfAndFloat, B::Mask, float, FastFloat, AnyHalf, float>();
    case K::ThirdFloats:
      if constexpr (Functor<Loss, float>::kHasThird) {
        return to.template whole<K::ThirdFloats, B::Third, float, FloatFloat, float, float>();
      }
      break;
    case K::MaskedFloatAndUInt8:
      if constexpr (kDense)
        return to.template whole<K::MaskedFloatAndUInt8, B::Mask, float, FloatFloat, float, uint8_t>();
      break;
    case K::FloatWithExtras:
      return to.template whole<K::FloatWithExtras, B::Any, float, FloatFloat, float, Stored>();
    case K::HalfWithExtras:
      return to.template whole<K::HalfWithExtras, B::Any, float, FastFloat, AnyHalf, Stored>();
    case K::StridedFloats:
      if constexpr (kDense) return to.template strided<K::StridedFloats, float, FloatFloat, float, float>();
      break;
    case K::StridedFloatsOnce:
      return to.template strided<K::StridedFloatsOnce, FloatFloat, FloatFloat, float, float>();
    case K::StridedAny:
      return to.template strided<K::StridedAny, FloatFloat, FloatFloat, Any<float>, Any<float>>();
    case K::StridedDoubles:
      return to.template strided<K::StridedDoubles, double, double, Any<double>, Any<double>>();
  }
  throw std::logic_error("cudaloss: the plan names a kernel that the loss does not have");
}

}  // namespace cudaloss::cuda
