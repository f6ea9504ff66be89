// The CUDA engine: turns a Pass, whose dtypes and strides are known at run time, into one kernel launch, and a second
// if sums must be folded. Included by the source of each loss, which setup.py writes.
#pragma once

#include <stdexcept>
#include <type_traits>

#include "cuda/dense_impl.cuh"
#include "cuda/engine.h"
#include "cuda/pass_parameters.cuh"
#include "cuda/strided.h"
#include "cuda/vectorized_pass.cuh"

namespace cudaloss::cuda {

// A pass over whole vectors that looks for its kernel. TV is the arithmetic of the losses, TG that of the gradients.
template <template <class> class Loss>
struct VectorizedLauncher {
  const Pass& r;
  const PassPlan& plan;
  const Memory& memory;
  Stream stream;

  template <PassKernel kKernel, Extras kExtras, class TV, class TG, class A, class B>
  void start() const {
    using LossV = Functor<Loss, ArithmeticOf<Loss, TV>>;
    using LossG = Functor<Loss, ArithmeticOf<Loss, TG>>;
    constexpr int N = pass_vector(kKernel);
    launch_pass<TG, A, B, N>(r, plan, kPassThreads<LossV>, memory, stream,
                             vectorized_pass_kernel<kExtras, Partial<TG>, A, B, N, LossV, LossG>, LossV(r.numbers),
                             LossG(r.numbers));
  }
};

template <template <class> class Loss, bool kAll>
void vectorized_pass(const VectorizedLauncher<Loss>& to) {
  using K = PassKernel;
  using B = Extras;
  switch (to.plan.kernel) {
    case K::Floats:
      return to.template start<K::Floats, B::None, float, FloatFloat, float, float>();
    case K::MaskedFloats:
      return to.template start<K::MaskedFloats, B::Mask, float, FloatFloat, float, float>();
    case K::MaskedHalves:
      return to.template start<K::MaskedHalves, B::Mask, FastFloat, FastFloat, AnyHalf, AnyHalf>();
    case K::MaskedHalfAndFloat:
      if constexpr (kAll) return to.template start<K::MaskedHalfAndFloat, B::Mask, float, FastFloat, AnyHalf, float>();
      break;
    case K::MaskedFloatAndUInt8:
      if constexpr (kAll)
        return to.template start<K::MaskedFloatAndUInt8, B::Mask, float, FloatFloat, float, uint8_t>();
      break;
    case K::WeightedFloats:
      if constexpr (kAll) return to.template start<K::WeightedFloats, B::Weight, float, FloatFloat, float, float>();
      break;
    case K::ThirdFloats:
      if constexpr (Functor<Loss, float>::kHasThird)
        return to.template start<K::ThirdFloats, B::Third, float, FloatFloat, float, float>();
      break;
    case K::FloatWithExtras:
      return to.template start<K::FloatWithExtras, B::Any, float, FloatFloat, float, Stored>();
    case K::HalfWithExtras:
      return to.template start<K::HalfWithExtras, B::Any, float, FastFloat, AnyHalf, Stored>();
    default:
      break;
  }
  throw std::logic_error("cudaloss: the plan names a kernel that the loss does not have");
}

template <class Form, bool kAll>
void pass_in_form(const Pass& r, const Memory& memory, Stream stream) {
  if (is_dense(r) && launch_dense<Form::template Of, kAll>(r, memory, stream)) return;
  constexpr bool kIsUsual = !kHasUsual<typename Form::template Of<float>>;
  const PassPlan plan = plan_of(r, kAll, kIsUsual, kPassThreads<Functor<Form::template Of, float>>);
  if (!reads_whole_vectors(plan.kernel)) return strided_pass(r, Form::kIndex, plan, memory, stream);
  if constexpr (kIsUsual) {
    vectorized_pass<Form::template Of, kAll>({r, plan, memory, stream});
  } else {
    throw std::logic_error("cudaloss: the plan names a kernel that this form of the loss does not have");
  }
}

// kAll: the loss has all kernels of dense.cuh and pass_plan.h, not only those of the commonest calls.
template <template <class> class Loss, bool kAll>
void pass(const Pass& r, const Memory& memory, Stream stream) {
  if (r.of_third && !kHasGradThird<Loss<float>>) throw std::logic_error(kNoGradThird);
  with_form<Loss>(r.numbers, [&](auto form) { pass_in_form<decltype(form), kAll>(r, memory, stream); });
}

}  // namespace cudaloss::cuda
