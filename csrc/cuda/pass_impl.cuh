// From a Pass to one kernel launch, and a second where sums must be folded.
#pragma once

#include "cuda/launch.h"
#include "cuda/whole_pass.cuh"

namespace cudaloss::cuda {

inline bool varies(const Dims& dims, Place place) {
  for (int d = 0; d < dims.rank; ++d) {
    if (dims.stride[d][place] != 0) return true;
  }
  return false;
}

// Whether grad_output is neither one for all nor the next one for each segment.
inline bool is_scattered(const Pass& r) {
  if (!r.grad_output.data) return false;
  if (varies(r.inner, kGradOutput)) return true;
  return varies(r.segments, kGradOutput) && !is_linear(Dims{}, r.segments, kGradOutput);
}

inline bool wants_float64(const Pass& r) {
  const auto is_double = [](const void* data, DType dtype) { return data && dtype == DType::Float64; };
  if (r.summed_gradient != 0) return true;  // terms of both signs: what each loses in rounding may be all that is left
  return r.input.dtype == DType::Float64 || r.target.dtype == DType::Float64 ||
         is_double(r.selection.weight.data, r.selection.weight.dtype) ||
         is_double(r.reduction.data, r.reduction.dtype) || is_double(r.losses.data, r.losses.dtype) ||
         (is_scattered(r) && r.grad_output.dtype == DType::Float64);
}

// Operands of the commonest pairs of dtypes that are read in whole vectors have kernels of their own, and floats of any
// layout. All others share two that look at each operand's dtype.
enum class PassKind {
  WholeDoubles,
  WholeFloats,
  WholeFloatAndUInt8,
  WholeHalves,
  WholeBFloats,
  WholeHalfAndFloat,
  WholeBFloatAndFloat,
  Floats,
  AnyFloats,
  AnyDoubles
};

// Elements that a thread reads at once.
constexpr int pass_vector(PassKind kind) {
  switch (kind) {
    case PassKind::WholeDoubles:
    case PassKind::AnyDoubles:
      return plan::vector_elements(8, 8);
    case PassKind::WholeFloats:
    case PassKind::WholeFloatAndUInt8:
    case PassKind::Floats:
    case PassKind::AnyFloats:
      return plan::vector_elements(4, 4);
    default:
      return plan::vector_elements(2, 4);
  }
}

// Whether a pass is one of whole_pass.cuh's: everything of many elements, in whole vectors of n but for one last.
inline bool reads_whole(const Pass& r, int n) {
  const auto serves = [&](Place place, const void* data, DType dtype) {
    return !data || spacing(r.segments, r.inner, place, {data, dtype}, n).whole;
  };
  return r.inner.rank > 0 && vector_steps(r.inner, n).rank <= kFewSteps && r.segments.rank <= kFewSteps &&
         !r.losses.data && r.summed_gradient == 0 && !is_scattered(r) && r.inner.count() > plan::kExactCount &&
         serves(kInput, r.input.data, r.input.dtype) && serves(kTarget, r.target.data, r.target.dtype) &&
         serves(kFirst, r.grad_input.data, r.grad_input.dtype) &&
         serves(kSecond, r.grad_target.data, r.grad_target.dtype) &&
         (r.inner.size[0] % n == 0 || (r.inner.rank == 1 && r.segments.rank == 0)) &&
         grid_of(r.segments, r.inner, n, plan::kManyTurns, plan::kMaxBlocks).lanes == plan::kPassThreads;
}

// Whether input, target and gradients lie densely and alike.
inline bool is_linear(const Pass& r) {
  const auto serves = [&](Place place, const void* data) { return !data || is_linear(r.segments, r.inner, place); };
  return serves(kInput, r.input.data) && serves(kTarget, r.target.data) && serves(kFirst, r.grad_input.data) &&
         serves(kSecond, r.grad_target.data);
}

inline PassKind kind_of(const Pass& r) {
  const auto is = [&](DType input, DType target) { return r.input.dtype == input && r.target.dtype == target; };
  const auto whole = [&](PassKind kind, PassKind otherwise) {
    return reads_whole(r, pass_vector(kind)) ? kind : otherwise;
  };
  using K = PassKind;
  if (wants_float64(r))
    return is(DType::Float64, DType::Float64) ? whole(K::WholeDoubles, K::AnyDoubles) : K::AnyDoubles;
  if (is(DType::Float32, DType::Float32)) return whole(K::WholeFloats, K::Floats);
  if (is(DType::Float32, DType::UInt8)) return whole(K::WholeFloatAndUInt8, K::AnyFloats);
  if (is(DType::Float16, DType::Float16)) return whole(K::WholeHalves, K::AnyFloats);
  if (is(DType::BFloat16, DType::BFloat16)) return whole(K::WholeBFloats, K::AnyFloats);
  // With the gradients of halves alone, whose arithmetic is less.
  if (r.grad_target.data) return K::AnyFloats;
  if (is(DType::Float16, DType::Float32)) return whole(K::WholeHalfAndFloat, K::AnyFloats);
  if (is(DType::BFloat16, DType::Float32)) return whole(K::WholeBFloatAndFloat, K::AnyFloats);
  return K::AnyFloats;
}

// Whether a mask, if there is one, lies as linear operands do.
inline bool has_plain_mask(const Pass& r, int n) {
  const Operand mask = {r.selection.mask.data, DType::Bool};
  return !mask.data || (spacing(r.segments, r.inner, kMask, mask, n).whole && is_linear(r.segments, r.inner, kMask));
}

// What a pass in whole vectors of n has beside linear operands.
inline Beside beside(const Pass& r, int n) {
  const Selection& selection = r.selection;
  if (!is_linear(r) || selection.ignore_nan || !has_plain_mask(r, n)) return Beside::Anything;
  if (!selection.weight.data) return selection.mask.data ? Beside::Mask : Beside::Nothing;
  const DType arithmetic = wants_float64(r) ? DType::Float64 : DType::Float32;
  const bool plain = selection.weight.dtype == arithmetic && vector_steps(r.inner, n).narrow;
  return plain ? Beside::Weight : Beside::Anything;
}

inline Grid pass_grid(const Pass& r) {
  const PassKind kind = kind_of(r);
  const int n = pass_vector(kind);
  const bool light = reads_whole(r, n) && beside(r, n) < Beside::Weight;
  return grid_of(r.segments, r.inner, n, light ? plan::kFewTurns : plan::kManyTurns, plan::kMaxBlocks);
}

template <class Element>
struct MakePort {
  static Port<Element> of(const Pass& r, Place place, const Operand& operand, int n) {
    return {static_cast<Element*>(const_cast<void*>(operand.data)), spacing(r.segments, r.inner, place, operand, n)};
  }
};
template <class F>
struct MakePort<Any<F>> {
  static Port<Any<F>> of(const Pass& r, Place place, const Operand& operand, int n) {
    return {const_cast<void*>(operand.data), spacing(r.segments, r.inner, place, operand, n), operand.dtype};
  }
};

inline Operand as_operand(const Result& result) { return {result.data, result.dtype}; }

template <class F, class P, class A, class B, int N>
PassParameters<A, B, F, P> parameters(const Pass& r, const Grid& grid) {
  PassParameters<A, B, F, P> p = {};
  p.grid = grid;
  p.segments = steps_of(r.segments);
  p.inner = vector_steps(r.inner, N);
  p.input = MakePort<A>::of(r, kInput, r.input, N);
  p.target = MakePort<B>::of(r, kTarget, r.target, N);
  p.whole = std::is_same_v<Loaded<A>, A> && p.input.spacing.whole && p.target.spacing.whole;
  p.linear = is_linear(r);
  p.input_is_first = same_strides(r.segments, r.inner, kInput, kFirst);
  p.target_is_second = same_strides(r.segments, r.inner, kTarget, kSecond);
  p.mask = MakePort<uint8_t>::of(r, kMask, {r.selection.mask.data, DType::Bool}, N);
  p.weight = {r.selection.weight.data, p.inner.stride[kWeight], r.selection.weight.dtype};
  for (int d = 0; d < p.inner.rank; ++d) {
    if (p.inner.step[d][kWeight] != 0) p.weight_dims = d + 1;
  }
  p.ignore_nan = r.selection.ignore_nan;
  p.scale = r.scale;
  p.denominator = r.denominator;
  p.scale_is_known = !r.denominator.counted && !r.denominator.normalizer.data;
  p.known_scale = ratio(r.scale, r.denominator.constant, F());
  p.scattered_grad_output = is_scattered(r);
  p.grad_output = {r.grad_output, !p.scattered_grad_output && !varies(r.segments, kGradOutput)};
  p.hold_unit_gradients = r.hold_unit_gradients;
  p.sums_gradients = r.summed_gradient != 0;
  p.sums_losses = r.reduction.data && !p.sums_gradients;
  p.sign = static_cast<F>(r.summed_gradient);
  p.grad_input = MakePort<A>::of(r, kFirst, as_operand(r.grad_input), N);
  p.grad_target = MakePort<B>::of(r, kSecond, as_operand(r.grad_target), N);
  p.losses = MakePort<Any<F>>::of(r, kFirst, as_operand(r.losses), N);
  return p;
}

template <class Kernel, class Parameters, class LossV, class LossG, class P>
void launch_pass(Kernel kernel, const Pass& r, Parameters p, const LossV& loss, const LossG& loss_of_gradients, Type<P>,
                 const Workspace& workspace, Stream stream) {
  const SegmentLoss store = {r.denominator, r.scale, r.summed_gradient == 0, r.reduction};
  int64_t blocks = p.grid.blocks(plan::kPassThreads);
  if (r.hold_unit_gradients) blocks = std::min(blocks, plan::kPersistentBlocks);
  const auto start = [&](const Fold<P, SegmentLoss>& fold) {
    p.fold = fold;
    launch(kernel, blocks, plan::kPassThreads, stream, loss, loss_of_gradients, p);
  };
  if (!r.reduction.data) return start({nullptr, nullptr, store});
  launch_folded<P>(p.grid, blocks, store, workspace, stream, start);
}

// TV is the arithmetic of the losses, TG that of the gradients.
template <PassKind kKind, class TV_, class TG_, class A_, class B_>
struct PassTypes {
  using TV = TV_;
  using TG = TG_;
  using P = Partial<TV>;
  using A = A_;
  using B = B_;
  static constexpr int N = pass_vector(kKind);
};

template <class Types, template <class> class Loss>
struct PassLauncher {
  using TV = typename Types::TV;
  using TG = typename Types::TG;
  using P = typename Types::P;
  using A = typename Types::A;
  using B = typename Types::B;
  static constexpr int N = Types::N;

  const Pass& r;
  const Workspace& workspace;
  Stream stream;

  template <class Kernel>
  void start(Kernel kernel) const {
    launch_pass(kernel, r, parameters<Scalar<TG>, P, A, B, N>(r, pass_grid(r)), Loss<TV>(r.parameter),
                Loss<TG>(r.parameter), Type<P>(), workspace, stream);
  }
  template <Beside kBeside>
  void start_whole() const {
    start(whole_pass_kernel<kBeside, TV, TG, P, A, B, N, Loss<TV>, Loss<TG>>);
  }
  void whole() const {
    switch (beside(r, N)) {
      case Beside::Nothing:
        return start_whole<Beside::Nothing>();
      case Beside::Mask:
        return start_whole<Beside::Mask>();
      case Beside::Weight:
        return start_whole<Beside::Weight>();
      case Beside::Anything:
        return start_whole<Beside::Anything>();
    }
  }
  // Of any strides; single losses, and sums of few, in arithmetic that rounds once.
  void any() const { start(pass_kernel<TV, TG, P, A, B, N, Loss<TV>, Loss<TG>>); }
};

template <template <class> class Loss>
void pass(const Pass& r, const Workspace& workspace, Stream stream) {
  using K = PassKind;
  const auto whole = [&](auto types) { PassLauncher<decltype(types), Loss>{r, workspace, stream}.whole(); };
  const auto any = [&](auto types) { PassLauncher<decltype(types), Loss>{r, workspace, stream}.any(); };
  const bool exact = r.losses.data || r.inner.count() <= plan::kExactCount;
  switch (kind_of(r)) {
    case K::WholeDoubles:
      return whole(PassTypes<K::WholeDoubles, double, double, double, double>());
    case K::WholeFloats:
      return whole(PassTypes<K::WholeFloats, float, Wide, float, float>());
    case K::WholeFloatAndUInt8:
      return whole(PassTypes<K::WholeFloatAndUInt8, float, Wide, float, uint8_t>());
    case K::WholeHalves:
      return whole(PassTypes<K::WholeHalves, Brief, Brief, Half, Half>());
    case K::WholeBFloats:
      return whole(PassTypes<K::WholeBFloats, Brief, Brief, BFloat16, BFloat16>());
    case K::WholeHalfAndFloat:
      return whole(PassTypes<K::WholeHalfAndFloat, float, Brief, Half, float>());
    case K::WholeBFloatAndFloat:
      return whole(PassTypes<K::WholeBFloatAndFloat, float, Brief, BFloat16, float>());
    case K::Floats:
      if (!exact) return any(PassTypes<K::Floats, float, Wide, float, float>());
      return any(PassTypes<K::Floats, Wide, Wide, float, float>());
    case K::AnyFloats:
      if (!exact) return any(PassTypes<K::AnyFloats, float, Wide, Any<float>, Any<float>>());
      return any(PassTypes<K::AnyFloats, Wide, Wide, Any<float>, Any<float>>());
    case K::AnyDoubles:
      return any(PassTypes<K::AnyDoubles, double, double, Any<double>, Any<double>>());
  }
}

}  // namespace cudaloss::cuda
