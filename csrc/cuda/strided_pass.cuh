// The general pass: any strides, masks, weights, a reduction a segment, the gradients from the same reading.
#pragma once

#include "core/plan.h"
#include "cuda/dense.cuh"
#include "cuda/groups.cuh"

namespace cudaloss::cuda {

template <class F>
CUDALOSS_INLINE F weighted(F value, F weight) {
  return value * weight;
}
CUDALOSS_INLINE FastFloat weighted(FastFloat value, float weight) { return {value.value * weight}; }
CUDALOSS_INLINE FloatFloat weighted(FloatFloat value, float weight) {
  return product(value.hi, value.lo, weight, 0.0f);
}

// Threads of a block, of which a processor holds 1,024 at least.
template <class Loss>
constexpr int kPassThreads = kIsOfDifference<Loss> ? plan::kPassThreads : plan::kPassThreadsOfOperands;
// Vectors whose loads are in flight together: the terms of a loss of two operands take the registers of a second.
template <class Loss>
constexpr int kPassUnroll = kIsOfDifference<Loss> ? plan::kPassUnroll : 1;

// A Pass as its kernel takes it. F is the scalar arithmetic, P what sums are kept in.
template <class A, class B, class F, class P>
struct PassParameters {
  Partition partition;
  OffsetCalculator segments, inner;
  Accessor<A> input;
  Accessor<B> target;
  bool whole;                             // both of them
  bool input_is_first, target_is_second;  // laid out alike
  bool linear;                            // all four, and densely
  Accessor<uint8_t> mask;
  Weights<F> weight;
  Weights<F> third;  // operands of the loss itself, if not in the place of the weights; without data: a number
  int weight_dims;   // the last dimension along which it varies, and all before
  int target_dims;   // likewise of a target that is broadcast; else 0
  bool ignore_nan;

  double scale;
  Denominator denominator;
  Constant<F> known_scale;  // scale over denominator, where the host knows that
  bool scale_is_known;
  GradOutput grad_output;
  bool scattered_grad_output;  // its strides must be followed; else it is one for all, or the next for each segment
  bool hold_unit_gradients;

  bool sums_losses;
  Summed summed;
  bool of_third;
  Accessor<A> grad_input;
  Accessor<B> grad_target;
  Accessor<Any<F>> losses;
  Fold<P, SegmentLoss> fold;
};

// What is to be made of each reading. Where the kernel's template tells, it is known at compile time.
struct Wanted {
  bool losses, gradients, summed_gradients, single_losses;
  bool masked, without_nan, weighted, scattered_grad_output;
  bool whole;  // every gradient is one access
};

// What one thread has read of one vector.
template <class A, class B, class F, int N>
struct Reading {
  int64_t first, second, grad_output;  // offsets
  int length;
  Vector<uint8_t, N> mask;  // as it lies in memory, until it is needed
  Vectors<Loaded<A>, Loaded<B>, N> operands;
  F weight[N];
  F third[N];
};

// Where a vector is: in its segment, and that among the segments.
template <int kDims>
struct Position {
  Coordinates<kDims> segment, inner;
};

template <int kDims, class A, class B, class F, class P>
__device__ __forceinline__ Position<kDims> position(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                    uint32_t vector) {
  Position<kDims> found = {};
  if (p.partition.segments > 1) found.segment = coordinates<kDims>(p.segments, segment);
  found.inner = coordinates<kDims>(p.inner, vector);
  return found;
}

template <int kDims, class A, class B, class F, class P>
__device__ __forceinline__ int64_t offset(const PassParameters<A, B, F, P>& p, const Position<kDims>& at, Place place) {
  const int64_t within = offset(p.inner, at.inner, place);
  return p.partition.segments > 1 ? within + offset(p.segments, at.segment, place) : within;
}

template <class A, class B, class F, class P>
__device__ __forceinline__ uint32_t narrow_offset(const PassParameters<A, B, F, P>& p, const Position<kFewDims>& at,
                                                  Place place) {
  const uint32_t within = narrow_offset(p.inner, at.inner, place);
  return p.partition.segments > 1 ? within + narrow_offset(p.segments, at.segment, place) : within;
}

// Bit i tells whether element i counts.
template <int N, class A, class B, class F, class P>
__device__ __forceinline__ unsigned selected_in(const PassParameters<A, B, F, P>& p, const Wanted& wanted,
                                                const Reading<A, B, F, N>& r) {
  unsigned selected = (1u << r.length) - 1;
  if (wanted.masked) selected = selected_by<N>(p.mask, r.mask, r.length);
  if (!wanted.without_nan) return selected;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    const F target = widen<F>(r.operands.b.element[i]);
    if (target != target) selected &= ~(1u << i);
  }
  return selected;
}

template <bool kMayHaveThird, int N, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, N> read(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                    uint32_t vector) {
  const auto at = position<kMaxOffsetDims>(p, segment, vector);
  Reading<A, B, F, N> r;
  r.length = static_cast<int>(min(uint32_t{N}, p.inner.vector_size - vector_index(p.inner, at.inner) * N));
  const int64_t of_input = offset(p, at, kInput), of_target = offset(p, at, kTarget);
  // One branch around both loads: a branch at each would have the second wait for the first.
  if (!std::is_same_v<A, Any<F>> && p.whole && r.length == N) {
    r.operands = {p.input.template load_vector<N>(of_input), p.target.template load_vector<N>(of_target)};
  } else {
    r.operands = {p.input.template load<N>(of_input, r.length), p.target.template load<N>(of_target, r.length)};
  }
  if (p.mask.data) r.mask = load_mask<N>(p.mask, offset(p, at, kMask), r.length);
  if (p.weight.data) p.weight.load(offset(p, at, kWeight), r.length, r.weight);
  if constexpr (kMayHaveThird) {
    if (p.third.data) p.third.load(offset(p, at, kThird), r.length, r.third);
  }
  r.first = p.input_is_first ? of_input : offset(p, at, kFirst);
  r.second = p.target_is_second ? of_target : offset(p, at, kSecond);
  r.grad_output = p.scattered_grad_output ? offset(p, at, kGradOutput) : 0;
  return r;
}

// Everything that is made of one vector; what it adds to the segment's sum. kThird: element i has a third operand of
// its own, third(i).
template <bool kThird, class A, class B, class F, class P, int N, class LossV, class LossG, class Third>
__device__ __forceinline__ double process(const PassParameters<A, B, F, P>& p, const Wanted& wanted, const LossV& loss,
                                          const LossG& loss_of_gradients, const Reading<A, B, F, N>& reading,
                                          Constant<F> scale, const Third& third) {
  using TV = typename LossV::Arithmetic;
  const bool alike = wanted.weighted && p.weight.stride == 0;  // one weight for the whole vector
  const bool at_once = alike && !wanted.single_losses;
  const bool wants_value = wanted.losses || wanted.single_losses;
  const bool wants_gradients = wanted.gradients || wanted.summed_gradients;
  const unsigned selected = selected_in<N>(p, wanted, reading);
  const auto own = [&](const auto& loss, int i) -> decltype(auto) {
    if constexpr (kThird) {
      return loss.with(third(i));
    } else {
      return loss;  // by reference: a copy would take registers
    }
  };
  const auto terms_of = [&](const auto& loss, int i) {
    return loss.terms(reading.operands.a.element[i], reading.operands.b.element[i]);
  };
  const auto terms_anew = [&](const auto& loss, int i) {
    return loss.terms(anew(reading.operands.a.element[i]), anew(reading.operands.b.element[i]));
  };
  Constant<F> incoming[N];
  const auto read_factors = [&] {
    if (alike) scale = times(scale, Constant<F>{reading.weight[0], F(0)});
    if (!wanted.scattered_grad_output) return;
    p.grad_output.each(reading.grad_output, p.inner.stride[kGradOutput], reading.length, incoming);
  };
  const auto factor = [&](int i) {
    Constant<F> found = scale;
    if (wanted.weighted && !alike) found = times(found, Constant<F>{reading.weight[i], F(0)});
    return wanted.scattered_grad_output ? times(found, incoming[i]) : found;
  };
  const auto first_gradient = [&](const auto& loss, const auto& terms, int i) {
    if constexpr (kThird && kHasGradThird<LossG>) {
      if (p.of_third) return loss.grad_third(terms, factor(i));
    }
    return loss.grad_input(terms, factor(i));
  };
  const auto is_selected = [&](int i) { return (selected >> i & 1) != 0; };
  const auto in_play = [&](TV value, int i) {
    if (wanted.weighted && !at_once) value = weighted(value, alike ? reading.weight[0] : reading.weight[i]);
    return select(is_selected(i), value, TV());
  };
  double sum = 0.0;
  const auto finish_losses = [&](const TV(&value)[N]) {
    sum = tree_sum(value);
    if (at_once && selected != 0) sum *= static_cast<double>(reading.weight[0]);
    if constexpr (!std::is_same_v<TV, FastFloat>) {  // single losses are never that brief
      if (wanted.single_losses) {
        const Constant<F> factor = constant_of(p.scale, F());
        F single[N];
#pragma unroll
        for (int i = 0; i < N; ++i) single[i] = rounded(value[i] * factor);
        p.losses.store(reading.first, reading.length, single);
      }
    }
  };
  F gradient[N];
  const bool shares = kSharesTerms<LossV, LossG> && wants_gradients;
  if (wants_value && !shares) {
    TV value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = in_play(own(loss, i).value(terms_of(own(loss, i), i)), i);
    finish_losses(value);
  }
  if (!wants_gradients) return sum;
  read_factors();
  if constexpr (kSharesTerms<LossV, LossG>) {
    TV value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto& of_element = own(loss, i);
      const auto terms = terms_of(of_element, i);
      value[i] = in_play(of_element.value(terms), i);
      gradient[i] = select(is_selected(i), first_gradient(of_element, terms, i), F(0));
    }
    if (wants_value) finish_losses(value);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto& of_element = own(loss_of_gradients, i);
      gradient[i] = select(is_selected(i), first_gradient(of_element, terms_of(of_element, i), i), F(0));
    }
  }
  const auto turn_to_target = [&] {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (LossG::kMirrors) {
        gradient[i] = -gradient[i];
      } else {
        const auto& of_element = own(loss_of_gradients, i);
        gradient[i] = select(is_selected(i), of_element.grad_target(terms_anew(of_element, i), factor(i)), F(0));
      }
    }
  };
  if (wanted.summed_gradients) {
    if (p.summed == Summed::GradTarget) turn_to_target();
    return tree_sum(gradient);
  }
  const auto store = [&](const auto& accessor, int64_t offset) {
    if (!std::is_same_v<A, Any<F>> && wanted.whole) return accessor.store_vector(offset, gradient);
    accessor.store(offset, reading.length, gradient);
  };
  if (p.grad_input.data) store(p.grad_input, reading.first);
  if (p.grad_target.data) {
    turn_to_target();
    store(p.grad_target, reading.second);
  }
  return sum;
}

template <class A, class B, class F, class P>
__device__ __forceinline__ Constant<F> grad_output_in(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  if (!p.grad_output.operand.data || p.scattered_grad_output) return {F(1), F(0)};
  return p.grad_output.at(segment, F());
}

// The factor of all gradients of a segment, the weights apart.
template <class A, class B, class F, class P>
__device__ __forceinline__ Constant<F> factor_in(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  const Constant<F> grad_output = grad_output_in(p, segment);
  if (p.scale_is_known) return times(p.known_scale, grad_output);
  return times(constant_of(factor_of<F>(p.scale, p.denominator.at(segment)), F()), grad_output);
}

// Whether the gradients of a segment are right as they are.
template <class A, class B, class F, class P>
__device__ __forceinline__ bool is_held(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  if (!p.hold_unit_gradients || p.scattered_grad_output) return false;
  const Constant<F> grad_output = grad_output_in(p, segment);
  return grad_output.hi == F(1) && grad_output.lo == F(0);
}

// A share of the work, whose threads' sums `visit(segment, begin, end)` adds up.
template <int kLanes, class TV, int kThreads, class A, class B, class F, class P, class Visit>
__device__ __forceinline__ void run(const PassParameters<A, B, F, P>& p, const Visit& visit) {
  release_next();
  wait_for_prior();
  const Partition& partition = p.partition;
  const int shift = kLanes ? 31 - __builtin_clz(kLanes ? kLanes : 1) : partition.lanes_shift;
  const uint32_t groups_a_block = kThreads >> shift;
  // Once, unless few blocks look after gradients that are mostly left alone.
#pragma unroll 1
  for (uint32_t first = blockIdx.x * groups_a_block; first < partition.groups; first += gridDim.x * groups_a_block) {
    const Share share = share_of(partition, first + (threadIdx.x >> shift));
    const bool held = share.alive && is_held(p, share.segment);
    if (held && p.grad_output.scalar) return;  // at once, where one grad_output holds them all
    P sum = {};
    if (share.alive && !held) {
      const uint32_t begin = share.part * partition.part_vectors;
      sum = visit(share.segment, begin, min(partition.vectors, begin + partition.part_vectors));
    }
    if (p.fold.store.output.data) reduce_share<kLanes, TV, kThreads>(sum, partition, share, p.fold);
  }
}

// Operands of any strides, a vector at a time. Where their dtypes are looked at at run time, elements may have third
// operands of their own, and a loss of two operands has 128 registers a thread: of 64 it spills 100 to 450 bytes.
template <class LossV, class A>
constexpr int kStridedBlocks = (kIsOfDifference<LossV> || std::is_same_v<A, float> ? 1024 : 512) / kPassThreads<LossV>;

template <class P, class A, class B, int N, class LossV, class LossG>
__global__ void __launch_bounds__(kPassThreads<LossV>, (kStridedBlocks<LossV, A>))
    strided_pass_kernel(LossV loss, LossG loss_of_gradients,
                        const __grid_constant__ PassParameters<A, B, typename LossG::F, P> p) {
  using F = typename LossG::F;
  constexpr bool kMayHaveThird = LossV::kHasThird && std::is_same_v<A, Any<F>>;
  Wanted wanted = {};
  wanted.losses = p.sums_losses;
  wanted.gradients = p.grad_input.data || p.grad_target.data;
  wanted.summed_gradients = p.summed != Summed::Losses;
  wanted.single_losses = p.losses.data != nullptr;
  wanted.masked = p.mask.data != nullptr;
  wanted.without_nan = p.ignore_nan;
  wanted.weighted = p.weight.data != nullptr;
  wanted.scattered_grad_output = p.scattered_grad_output;
  run<0, typename LossV::Arithmetic, kPassThreads<LossV>>(p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
    const uint32_t lane = threadIdx.x & (p.partition.lanes - 1);
    const Constant<F> scale = factor_in(p, segment);
    P sum = {};
#pragma unroll 1
    for (uint32_t vector = begin + lane; vector < end; vector += p.partition.lanes) {
      const auto reading = read<kMayHaveThird, N>(p, segment, vector);
      const auto third = [&](int i) { return p.third.stride == 0 ? reading.third[0] : reading.third[i]; };
      const auto make = [&](auto has_third) {
        return P{process<has_third>(p, wanted, loss, loss_of_gradients, reading, scale, third)};
      };
      const bool has_thirds = kMayHaveThird && p.third.data;
      sum = sum + (has_thirds ? make(std::bool_constant<kMayHaveThird>()) : make(std::false_type()));
    }
    return sum;
  });
}

}  // namespace cudaloss::cuda
