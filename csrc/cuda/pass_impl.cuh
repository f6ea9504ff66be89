// From a Pass to one kernel launch, and a second where sums must be folded.
#pragma once

#include "cuda/launch.h"
#include "cuda/pass_plan.h"
#include "cuda/whole_pass.cuh"

namespace cudaloss::cuda {

template <class Element>
Port<Element> port(const Pass& r, Place place, const Operand& operand, int n) {
  Port<Element> made = {};
  made.data = static_cast<decltype(made.data)>(const_cast<void*>(operand.data));
  made.spacing = spacing(r.segments, r.inner, place, operand, n);
  if constexpr (std::is_same_v<decltype(made.data), void*>) made.dtype = operand.dtype;
  if constexpr (std::is_same_v<Element, AnyHalf>) made.is_bfloat = operand.dtype == DType::BFloat16;
  return made;
}

inline Operand as_operand(const Result& result) { return {result.data, result.dtype}; }

template <class F, class P, class A, class B, int N>
PassParameters<A, B, F, P> parameters(const Pass& r, const PassPlan& plan) {
  PassParameters<A, B, F, P> p = {};
  p.grid = plan.grid;
  p.segments = plan.segments;
  p.inner = plan.inner;
  p.input = port<A>(r, kInput, r.input, N);
  p.target = port<B>(r, kTarget, r.target, N);
  p.whole = !std::is_same_v<A, Any<F>> && p.input.spacing.whole && p.target.spacing.whole;
  p.linear = is_linear(r);
  p.input_is_first = same_strides(r.segments, r.inner, kInput, kFirst);
  p.target_is_second = same_strides(r.segments, r.inner, kTarget, kSecond);
  p.mask = port<uint8_t>(r, kMask, {r.selection.mask.data, DType::Bool}, N);
  p.weight = {r.selection.weight.data, p.inner.stride[kWeight], r.selection.weight.dtype};
  for (int d = 0; d < p.inner.rank; ++d) {
    if (p.inner.step[d][kWeight] != 0) p.weight_dims = d + 1;
  }
  p.ignore_nan = r.selection.ignore_nan;
  p.scale = r.scale;
  p.denominator = r.denominator;
  p.scale_is_known = !r.denominator.counted && !r.denominator.normalizer.data;
  p.known_scale = ratio(r.scale, r.denominator.constant.value, F());
  p.scattered_grad_output = is_scattered(r);
  p.grad_output = {r.grad_output, !p.scattered_grad_output && !varies(r.segments, kGradOutput)};
  p.hold_unit_gradients = r.hold_unit_gradients;
  p.sums_gradients = r.summed_gradient != 0;
  p.sums_losses = r.reduction.data && !p.sums_gradients;
  p.sign = static_cast<F>(r.summed_gradient);
  p.grad_input = port<A>(r, kFirst, as_operand(r.grad_input), N);
  p.grad_target = port<B>(r, kSecond, as_operand(r.grad_target), N);
  p.losses = port<Any<F>>(r, kFirst, as_operand(r.losses), N);
  return p;
}

template <class Kernel, class Parameters, class LossV, class LossG, class P>
void launch_pass(Kernel kernel, const Pass& r, Parameters p, const LossV& loss, const LossG& loss_of_gradients, Type<P>,
                 const Memory& memory, Stream stream) {
  const SegmentLoss store = {r.denominator, r.scale, r.summed_gradient == 0, r.reduction};
  int64_t blocks = p.grid.blocks(plan::kPassThreads);
  if (r.hold_unit_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
  const auto start = [&](const Fold<P, SegmentLoss>& fold) {
    p.fold = fold;
    launch(kernel, blocks, plan::kPassThreads, stream, loss, loss_of_gradients, p);
  };
  if (!r.reduction.data) return start({nullptr, nullptr, store});
  launch_folded<P>(p.grid, blocks, store, memory, stream, start);
}

// A pass on the way to its kernel. TV is the arithmetic of the losses, TG that of the gradients.
template <template <class> class Loss>
struct PassLauncher {
  const Pass& r;
  const PassPlan& plan;
  const Memory& memory;
  Stream stream;

  template <PassKernel kKernel, Beside kBeside, class TV, class TG, class A, class B>
  void whole() const {
    constexpr int N = pass_vector(kKernel);
    using P = Partial<TV>;
    start<TV, TG, A, B, N>(whole_pass_kernel<kBeside, TV, TG, P, A, B, N, Loss<TV>, Loss<TG>>);
  }
  template <PassKernel kKernel, class TV, class TG, class A, class B>
  void strided() const {
    constexpr int N = pass_vector(kKernel);
    start<TV, TG, A, B, N>(pass_kernel<TV, TG, Partial<TV>, A, B, N, Loss<TV>, Loss<TG>>);
  }

 private:
  template <class TV, class TG, class A, class B, int N, class Kernel>
  void start(Kernel kernel) const {
    using P = Partial<TV>;
    launch_pass(kernel, r, parameters<Scalar<TG>, P, A, B, N>(r, plan), Loss<TV>(r.parameter), Loss<TG>(r.parameter),
                Type<P>(), memory, stream);
  }
};

template <template <class> class Loss>
void pass(const Pass& r, const Memory& memory, Stream stream) {
  using K = PassKernel;
  using B = Beside;
  const PassPlan plan = plan_of(r);
  const PassLauncher<Loss> to = {r, plan, memory, stream};
  switch (plan.kernel) {
    case K::Floats:
      return to.template whole<K::Floats, B::Nothing, float, Wide, float, float>();
    case K::MaskedFloats:
      return to.template whole<K::MaskedFloats, B::Mask, float, Wide, float, float>();
    case K::WeightedFloats:
      return to.template whole<K::WeightedFloats, B::Weight, float, Wide, float, float>();
    case K::MaskedHalves:
      return to.template whole<K::MaskedHalves, B::Mask, Brief, Brief, AnyHalf, AnyHalf>();
    case K::MaskedHalfAndFloat:
      return to.template whole<K::MaskedHalfAndFloat, B::Mask, float, Brief, AnyHalf, float>();
    case K::MaskedFloatAndUInt8:
      return to.template whole<K::MaskedFloatAndUInt8, B::Mask, float, Wide, float, uint8_t>();
    case K::FloatBesideAnything:
      return to.template whole<K::FloatBesideAnything, B::Anything, float, Wide, float, Stored>();
    case K::HalfBesideAnything:
      return to.template whole<K::HalfBesideAnything, B::Anything, float, Brief, AnyHalf, Stored>();
    case K::StridedFloats:
      return to.template strided<K::StridedFloats, float, Wide, float, float>();
    case K::StridedFloatsOnce:
      return to.template strided<K::StridedFloatsOnce, Wide, Wide, float, float>();
    case K::StridedAny:
      return to.template strided<K::StridedAny, Wide, Wide, Any<float>, Any<float>>();
    case K::StridedDoubles:
      return to.template strided<K::StridedDoubles, double, double, Any<double>, Any<double>>();
  }
}

}  // namespace cudaloss::cuda
