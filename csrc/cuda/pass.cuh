// The general pass: any strides, masks, weights, a reduction a segment, the gradients from the same reading.
#pragma once

#include "core/plan.h"
#include "cuda/elementwise.cuh"
#include "cuda/groups.cuh"
#include "cuda/port.cuh"

namespace cudaloss::cuda {

template <class F>
CUDALOSS_INLINE F weighted(F value, F weight) {
  return value * weight;
}
CUDALOSS_INLINE Brief weighted(Brief value, float weight) { return {value.value * weight}; }
CUDALOSS_INLINE Wide weighted(Wide value, float weight) { return product(value.hi, value.lo, weight, 0.0f); }

// A Pass as its kernel takes it. F is the scalar arithmetic, P what sums are kept in.
template <class A, class B, class F, class P>
struct PassParameters {
  Grid grid;
  Steps segments, inner;
  Port<A> input;
  Port<B> target;
  bool whole;                             // both of them
  bool input_is_first, target_is_second;  // laid out alike
  bool linear;                            // all four, and densely
  Port<uint8_t> mask;
  Weights<F> weight;
  int weight_dims;  // the last dimension along which it varies, and all before
  bool ignore_nan;

  double scale;
  Denominator denominator;
  Constant<F> known_scale;  // scale over denominator, where the host knows that
  bool scale_is_known;
  GradOutput grad_output;
  bool scattered_grad_output;  // its strides must be followed; else it is one for all, or the next for each segment
  bool hold_unit_gradients;

  bool sums_losses, sums_gradients;
  F sign;  // of the gradients that are summed
  Port<A> grad_input;
  Port<B> grad_target;
  Port<Any<F>> losses;
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
};

// Where a vector is: in its segment, and that among the segments.
template <int kSteps>
struct Position {
  Coordinates<kSteps> segment, inner;
};

template <int kSteps, class A, class B, class F, class P>
__device__ __forceinline__ Position<kSteps> position(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                     uint32_t vector) {
  Position<kSteps> found = {};
  if (p.grid.segments > 1) found.segment = coordinates<kSteps>(p.segments, segment);
  found.inner = coordinates<kSteps>(p.inner, vector);
  return found;
}

template <int kSteps, class A, class B, class F, class P>
__device__ __forceinline__ int64_t offset(const PassParameters<A, B, F, P>& p, const Position<kSteps>& at,
                                          Place place) {
  const int64_t within = offset(p.inner, at.inner, place);
  return p.grid.segments > 1 ? within + offset(p.segments, at.segment, place) : within;
}

template <class A, class B, class F, class P>
__device__ __forceinline__ uint32_t narrow_offset(const PassParameters<A, B, F, P>& p, const Position<kFewSteps>& at,
                                                  Place place) {
  const uint32_t within = narrow_offset(p.inner, at.inner, place);
  return p.grid.segments > 1 ? within + narrow_offset(p.segments, at.segment, place) : within;
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

template <int N, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, N> read(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                    uint32_t vector) {
  const auto at = position<kMaxSteps>(p, segment, vector);
  Reading<A, B, F, N> r;
  r.length = static_cast<int>(min(uint32_t{N}, p.inner.vector_size - vector_index(p.inner, at.inner) * N));
  const int64_t of_input = offset(p, at, kInput), of_target = offset(p, at, kTarget);
  // One branch around both loads: a branch at each would have the second wait for the first.
  if (!std::is_same_v<A, Any<F>> && p.whole && r.length == N) {
    r.operands = {p.input.template load_whole<N>(of_input), p.target.template load_whole<N>(of_target)};
  } else {
    r.operands = {p.input.template load<N>(of_input, r.length), p.target.template load<N>(of_target, r.length)};
  }
  if (p.mask.data) r.mask = load_mask<N>(p.mask, offset(p, at, kMask), r.length);
  if (p.weight.data) p.weight.load(offset(p, at, kWeight), r.length, r.weight);
  r.first = p.input_is_first ? of_input : offset(p, at, kFirst);
  r.second = p.target_is_second ? of_target : offset(p, at, kSecond);
  r.grad_output = p.scattered_grad_output ? offset(p, at, kGradOutput) : 0;
  return r;
}

// The sum of the vector's losses, which are left in `value`. One weight for all of them multiplies the sum.
template <class TV, class A, class B, class F, int N, class Loss>
__device__ __forceinline__ double losses_of(const Wanted& wanted, bool alike, unsigned selected, const Loss& loss,
                                            const Reading<A, B, F, N>& reading, TV (&value)[N]) {
  const bool at_once = alike && !wanted.single_losses;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    value[i] = loss.value(reading.operands.template difference<TV>(i));
    if (wanted.weighted && !at_once) value[i] = weighted(value[i], alike ? reading.weight[0] : reading.weight[i]);
    value[i] = select((selected >> i & 1) != 0, value[i], TV());
  }
  const double sum = tree_sum(value);
  return at_once && selected != 0 ? sum * static_cast<double>(reading.weight[0]) : sum;
}

template <class TG, class A, class B, class F, class P, int N, class Loss>
__device__ __forceinline__ void gradients_of(const PassParameters<A, B, F, P>& p, const Wanted& wanted, bool alike,
                                             unsigned selected, const Loss& loss, const Reading<A, B, F, N>& reading,
                                             Constant<F> scale, F (&gradient)[N]) {
  if (alike) scale = times(scale, Constant<F>{reading.weight[0], F(0)});
  Constant<F> incoming[N];
  if (wanted.scattered_grad_output) {
    p.grad_output.each(reading.grad_output, p.inner.stride[kGradOutput], reading.length, incoming);
  }
#pragma unroll
  for (int i = 0; i < N; ++i) {
    Constant<F> factor = scale;
    if (wanted.weighted && !alike) factor = times(factor, Constant<F>{reading.weight[i], F(0)});
    if (wanted.scattered_grad_output) factor = times(factor, incoming[i]);
    const F found = loss.grad(reading.operands.template difference<TG>(i), factor);
    gradient[i] = select((selected >> i & 1) != 0, found, F(0));
  }
}

// Everything that is made of one vector; what it adds to the segment's sum.
template <class TV, class TG, class A, class B, class F, class P, int N, class LossV, class LossG>
__device__ __forceinline__ double process(const PassParameters<A, B, F, P>& p, const Wanted& wanted, const LossV& loss,
                                          const LossG& loss_of_gradients, const Reading<A, B, F, N>& reading,
                                          Constant<F> scale) {
  const bool alike = wanted.weighted && p.weight.stride == 0;  // one weight for the whole vector
  const unsigned selected = selected_in<N>(p, wanted, reading);
  double sum = 0.0;
  if (wanted.losses || wanted.single_losses) {
    TV value[N];
    sum = losses_of(wanted, alike, selected, loss, reading, value);
    if constexpr (!std::is_same_v<TV, Brief>) {  // single losses are never that brief
      if (wanted.single_losses) {
        const Constant<F> factor = constant_of(p.scale, F());
        F single[N];
#pragma unroll
        for (int i = 0; i < N; ++i) single[i] = rounded(value[i] * factor);
        p.losses.store(reading.first, reading.length, single);
      }
    }
  }
  if (wanted.gradients || wanted.summed_gradients) {
    F gradient[N];
    gradients_of<TG>(p, wanted, alike, selected, loss_of_gradients, reading, scale, gradient);
    if (wanted.summed_gradients) sum = static_cast<double>(p.sign) * tree_sum(gradient);
    const auto store = [&](const auto& port, int64_t offset) {
      if (!port.data) return;
      if (!std::is_same_v<A, Any<F>> && wanted.whole) return port.store_whole(offset, gradient);
      port.store(offset, reading.length, gradient);
    };
    store(p.grad_input, reading.first);
#pragma unroll
    for (int i = 0; i < N; ++i) gradient[i] = -gradient[i];
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

// A share of the work, whose threads' sums `turns(segment, begin, end)` adds up.
template <int kLanes, class TV, class A, class B, class F, class P, class Turns>
__device__ __forceinline__ void run(const PassParameters<A, B, F, P>& p, const Turns& turns) {
  const Grid& grid = p.grid;
  const int shift = kLanes ? 31 - __builtin_clz(kLanes ? kLanes : 1) : grid.lanes_shift;
  const uint32_t groups_a_block = plan::kPassThreads >> shift;
  if (p.grad_output.scalar && is_held(p, 0)) return;  // at once, where one grad_output holds them all
  // Once, unless few blocks look after gradients that are mostly left alone.
#pragma unroll 1
  for (uint32_t first = blockIdx.x * groups_a_block; first < grid.groups; first += gridDim.x * groups_a_block) {
    const Share share = share_of(grid, first + (threadIdx.x >> shift));
    P sum = {};
    if (share.alive && !is_held(p, share.segment)) {
      const uint32_t begin = share.part * grid.part_vectors;
      sum = turns(share.segment, begin, min(grid.vectors, begin + grid.part_vectors));
    }
    if (p.fold.store.output.data) hand_in<kLanes, TV>(sum, grid, share, p.fold);
  }
}

template <class TV, class TG, class P, class A, class B, int N, class LossV, class LossG>
__global__ void __launch_bounds__(plan::kPassThreads, 2)
    pass_kernel(LossV loss, LossG loss_of_gradients, const __grid_constant__ PassParameters<A, B, Scalar<TG>, P> p) {
  Wanted wanted = {};
  wanted.losses = p.sums_losses;
  wanted.gradients = p.grad_input.data || p.grad_target.data;
  wanted.summed_gradients = p.sums_gradients;
  wanted.single_losses = p.losses.data != nullptr;
  wanted.masked = p.mask.data != nullptr;
  wanted.without_nan = p.ignore_nan;
  wanted.weighted = p.weight.data != nullptr;
  wanted.scattered_grad_output = p.scattered_grad_output;
  run<0, TV>(p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
    const uint32_t lane = threadIdx.x & (p.grid.lanes - 1);
    const Constant<Scalar<TG>> scale = factor_in(p, segment);
    P sum = {};
#pragma unroll 1
    for (uint32_t vector = begin + lane; vector < end; vector += p.grid.lanes) {
      const auto reading = read<N>(p, segment, vector);
      sum = AddPartials()(sum, P{process<TV, TG>(p, wanted, loss, loss_of_gradients, reading, scale)});
    }
    return sum;
  });
}

}  // namespace cudaloss::cuda
