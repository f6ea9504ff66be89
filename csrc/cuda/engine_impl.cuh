// The CUDA engine: turns a Pass, whose dtypes and strides are known at run time, into one kernel launch, and a second
// if sums must be folded. Included by the source of each loss, which setup.py writes.
#pragma once

#include <algorithm>
#include <stdexcept>
#include <type_traits>

#include "cuda/dense.cuh"
#include "cuda/engine.h"
#include "cuda/launch.h"
#include "cuda/pass_parameters.cuh"
#include "cuda/pass_plan.h"
#include "cuda/strided.h"
#include "cuda/vectorized_pass.cuh"

namespace cudaloss::cuda {

// Whether all operands are dense and in the same order, without other options, and the host knows the divisor.
inline bool is_dense(const Pass& r) {
  const Dims& inner = r.inner;
  const auto lies = [&](Place place, const void* data) {
    return !data || inner.rank == 0 || inner.stride[0][place] == 1;
  };
  return r.segments.rank == 0 && inner.rank <= 1 && r.summed == Summed::Losses && !r.selection.mask.data &&
         !r.selection.weight.data && !r.selection.ignore_nan && !r.third.data && !r.denominator.counted &&
         !r.denominator.normalizer.data && lies(kInput, r.input.data) && lies(kTarget, r.target.data) &&
         lies(kResult, r.losses.data ? r.losses.data : r.grad_input.data) && lies(kSecondResult, r.grad_target.data);
}

// Whether the arithmetic for the two input dtypes is precise enough for the result. It is fp64 only for fp64 operands.
inline bool is_native(const Pass& r) {
  if (r.input.dtype != DType::Float64 && r.loss_dtype == DType::Float64) return false;
  if (r.input.dtype == r.target.dtype) return true;
  // A half's gradient beside an fp32 target uses a half's arithmetic; the target's own gradient would need fp32's.
  return is_half(r.input.dtype) && r.target.dtype == DType::Float32 && !r.grad_target.data;
}

// A dense pass that looks for its kernel; there may be none.
template <template <class> class Loss>
struct DenseLauncher {
  const Pass& r;
  const Memory& memory;
  Stream stream;
  const int64_t count = r.inner.count();

  template <class T>
  using Value = Functor<Loss, ArithmeticOf<Loss, T>>;

  template <class TV, class A, class B>
  bool sum() const {
    using P = Partial<ArithmeticOf<Loss, TV>>;
    constexpr int N = vector<A, B>();
    const int64_t blocks = plan::sum_blocks(count, N);
    folded<P>(blocks, quotient(), memory, stream, [&](const auto& fold) {
      launch(sum_kernel<P, A, B, N, Value<TV>>, Start::Alone, blocks, plan::kSum.threads, stream, Value<TV>(r.numbers),
             operands<A, B>(), fold);
    });
    return true;
  }

  template <bool kWhole, class TV, class TG, class A, class B>
  bool train() const {
    using P = Partial<ArithmeticOf<Loss, TV>>;
    constexpr TrainPolicy policy = train_policy<Value<TV>, A, B>();
    constexpr int N = policy.vector;
    const int64_t blocks = plan::train_blocks(count, N, policy.launch);
    folded<P>(blocks, quotient(), memory, stream, [&](const auto& fold) {
      launch(train_kernel<policy.launch.threads, policy.launch.vectors, policy.blocks, kWhole, P, A, B, N, Value<TV>,
                          Value<TG>>,
             Start::Alone, blocks, plan::train_threads(count, N, policy.launch), stream, Value<TV>(r.numbers),
             Value<TG>(r.numbers), scale<TG>(), operands<A, B>(), gradients<A, B>(), r.prediction, fold);
    });
    return true;
  }

  template <class TV, class TH, class TG, class A, class B>
  bool map() const {
    constexpr int N = vector<A, B>();
    const bool each = r.grad_output.data && r.inner.rank > 0 && r.inner.stride[0][kGradOutput] != 0;
    int64_t blocks = plan::ceil_div(count, plan::kMap.tile(N));
    if (r.hold_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
    launch(map_kernel<A, B, N, Value<TV>, Value<TH>, Value<TG>>, Start::Alone, blocks, plan::kMap.threads, stream,
           Value<TV>(r.numbers), Value<TH>(r.numbers), Value<TG>(r.numbers), scale<TG>(), operands<A, B>(),
           gradients<A, B>(), MapParameters{r.losses, r.scale, GradOutput(r, !each)});
    return true;
  }

  // Many aligned elements of fp32 or of one half, whose training step is dense for every loss.
  bool are_many() const {
    return count > plan::kExactCount && is_aligned() && r.input.dtype == r.target.dtype &&
           r.input.dtype != DType::Float64;
  }
  // Whether a forward, which never uses the maps, made these gradients in the general pass. Then that must make them
  // again, because its arithmetic of halves is another one.
  template <bool kAll>
  bool made_in_general_pass() const {
    if (!r.hold_gradients || !is_half(r.input.dtype)) return false;
    if (!kAll) return !are_many();
    const bool are_few = count <= plan::kExactCount;
    return r.input.dtype == r.target.dtype ? are_few && r.loss_dtype == DType::Float32 : are_few || !is_aligned();
  }
  // The training step of many elements, or only its loss.
  bool train_many() const {
    if (!r.reduction.data || !are_many()) return false;
    if (r.input.dtype == DType::Float32) return train<true, float, FloatFloat, float, float>();
    if (r.input.dtype == DType::BFloat16) return train<true, FastFloat, FastFloat, BFloat16, BFloat16>();
    return train<true, FastFloat, FastFloat, Half, Half>();
  }

  // Single losses, or only gradients, of fp32 operands or halves. The strided kernels, which serve the rest, take 1.3
  // times as long for fp32 losses and 3 to 4 times for halves (2^27 elements, H100).
  bool map_alike() const {
    if (r.reduction.data) return false;
    if (r.target.dtype == DType::Float32 && r.input.dtype == DType::Float32) {
      return map<FloatFloat, FloatFloat, FloatFloat, float, float>();
    }
    return is_half(r.target.dtype) && map<FloatFloat, FastFloat, FastFloat, AnyHalf, AnyHalf>();
  }

  bool is_aligned() const {
    return is_aligned(r.input.data) && is_aligned(r.target.data) && is_aligned(r.grad_input.data) &&
           is_aligned(r.grad_target.data);
  }

 private:
  static bool is_aligned(const void* data) { return reinterpret_cast<uintptr_t>(data) % kVectorBytes == 0; }
  template <class A, class B>
  static constexpr int vector() {
    return plan::vector_elements(sizeof(A), sizeof(B));
  }
  Quotient quotient() const { return {r.denominator.constant, r.scale, r.reduction}; }
  template <class T>
  Constant<Scalar<T>> scale() const {
    return ratio(r.scale, r.denominator.constant.value, Scalar<T>());
  }
  template <class Element>
  Accessor<Element> accessor(const Operand& operand) const {
    return accessor_of<Element>(operand, {1, is_aligned(operand.data)});
  }
  template <class A, class B>
  Dense<A, B> operands() const {
    return {accessor<A>(r.input), accessor<B>(r.target), is_aligned(r.input.data) && is_aligned(r.target.data), count};
  }
  template <class A, class B>
  Gradients<A, B> gradients() const {
    return {accessor<A>(as_operand(r.grad_input)), accessor<B>(as_operand(r.grad_target))};
  }
};

// Launches one of the kernels for the dtypes of training code: 16 for each loss; the two halves share kernels that
// their conversion does not slow down. Returns false for other dtypes, which the general pass serves.
template <template <class> class Loss>
bool launch_any_dense(const DenseLauncher<Loss>& to) {
  const Pass& r = to.r;
  const DType input = r.input.dtype, target = r.target.dtype;
  const bool trains = r.grad_input.data || r.grad_target.data;
  if (to.map_alike()) return true;
  if (!r.reduction.data) {
    if (input == DType::Float64) return to.template map<double, double, double, double, double>();
    return to.template map<FloatFloat, FloatFloat, FastFloat, AnyHalf, float>();
  }
  if (input == DType::Float64) return to.template train<false, double, double, double, double>();
  const bool is_aligned = to.is_aligned(), are_floats = input == DType::Float32, are_alike = input == target;
  const bool are_few = to.count <= plan::kExactCount;
  if (are_few || (trains && !is_aligned)) {
    if (are_floats && are_few) return to.template train<false, FloatFloat, FloatFloat, float, float>();
    if (are_floats) return to.template train<false, float, FloatFloat, float, float>();
    // The general pass computes small fp32 sums exactly, also of halves, whose sum this kernel computes for a half.
    if (!are_alike || (are_few && r.loss_dtype == DType::Float32)) return false;
    return to.template train<false, float, FastFloat, AnyHalf, AnyHalf>();
  }
  const bool few = to.count <= plan::kTrain.tile(plan::vector_elements(size_of(input), size_of(target)));
  if (trains || (few && is_aligned && input != DType::Float16)) {
    if (are_floats) return to.template train<true, float, FloatFloat, float, float>();
    if (input == DType::Float16) return are_alike && to.template train<true, FastFloat, FastFloat, Half, Half>();
    if (is_half(target)) return to.template train<true, FastFloat, FastFloat, BFloat16, BFloat16>();
    return to.template train<true, float, FastFloat, BFloat16, float>();
  }
  if (are_floats) return to.template sum<float, float, float>();
  if (!is_half(target)) return to.template sum<float, AnyHalf, float>();
  if (input == DType::BFloat16) return to.template sum<FastFloat, BFloat16, BFloat16>();
  return to.template sum<FastFloat, Half, Half>();
}

// kAll: launches any of these, otherwise only one of the three for many elements, or of the two maps.
template <template <class> class Loss, bool kAll>
bool launch_dense(const Pass& r, const Memory& memory, Stream stream) {
  const DenseLauncher<Loss> to = {r, memory, stream};
  if (!is_native(r) || to.template made_in_general_pass<kAll>()) return false;
  if constexpr (kAll) {
    return launch_any_dense(to);
  } else {
    return to.train_many() || to.map_alike();
  }
}

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
  constexpr bool kHasThird = Functor<Loss, float>::kHasThird;
  switch (to.plan.kernel) {
    case K::Floats:
      return to.template start<K::Floats, B::None, float, FloatFloat, float, float>();
    case K::SlicedFloats:
      return to.template start<K::SlicedFloats, B::Slice, float, FloatFloat, float, float>();
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
    case K::FloatWithExtras:
      return to.template start<K::FloatWithExtras, B::Any, float, FloatFloat, float, Stored>();
    case K::HalfWithExtras:
      return to.template start<K::HalfWithExtras, B::Any, float, FastFloat, AnyHalf, Stored>();
    case K::ThirdFloats:
      if constexpr (kHasThird) return to.template start<K::ThirdFloats, B::Third, float, FloatFloat, float, float>();
      break;
    case K::FloatWithThird:
      if constexpr (kHasThird)
        return to.template start<K::FloatWithThird, B::AnyThird, float, FloatFloat, float, Stored>();
      break;
    case K::HalfWithThird:
      if constexpr (kHasThird)
        return to.template start<K::HalfWithThird, B::AnyThird, FastFloat, FastFloat, AnyHalf, Stored>();
      break;
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
