// What the kernels of the general pass share: masks, weights, a reduction for each segment, the gradients from the same
// reading.
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

// A Pass in the form for its kernel. F is the scalar arithmetic, P the type of the sums.
template <class A, class B, class F, class P>
struct PassParameters {
  Partition partition;
  OffsetCalculator segments, inner;
  Accessor<A> input;
  Accessor<B> target;
  bool whole;                             // whole vectors for both
  bool input_is_first, target_is_second;  // same layout
  bool linear;                            // all four are dense and in order
  Accessor<uint8_t> mask;
  Weights<F> weight;
  Weights<F> third;             // the loss's third operand; without data: a number
  int weight_dims, third_dims;  // the dimensions up to the last along which they vary
  int input_dims, target_dims;  // the same for an operand that is not dense; otherwise 0
  bool ignore_nan;

  double scale;
  Denominator denominator;
  Constant<F> known_scale;  // scale over denominator, if the host knows it
  bool scale_is_known;
  GradOutput grad_output;
  bool scattered_grad_output;  // read with its strides; otherwise one for all, or the next one for each segment

  bool sums_losses;
  Summed summed;
  bool of_third;
  Accessor<A> grad_input;
  Accessor<B> grad_target;
  Accessor<Any<F>> losses;
  Fold<P, SegmentLoss> fold;
};

// What each reading must produce. It is a compile-time constant if the kernel's template decides it.
struct Wanted {
  bool losses, gradients;
  bool masked, without_nan, weighted;
};

// The data of one vector that one thread has read.
template <class A, class B, class F, int N>
struct Reading {
  int64_t first, second, grad_output;  // offsets
  int length;
  Vector<uint8_t, N> mask;  // as in memory, until it is needed
  Vectors<Loaded<A>, Loaded<B>, N> operands;
  F weight[N];
  F third[N];
};

// The place of a vector: in its segment, and of the segment among the others.
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

template <class A, class B, class F, class P>
__device__ __forceinline__ Constant<F> grad_output_in(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  if (!p.grad_output.operand.data || p.scattered_grad_output) return {F(1), F(0)};
  return p.grad_output.at(segment, F());
}

// The factor of all gradients of a segment, without the weights.
template <class A, class B, class F, class P>
__device__ __forceinline__ Constant<F> factor_in(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  const Constant<F> grad_output = grad_output_in(p, segment);
  if (p.scale_is_known) return times(p.known_scale, grad_output);
  return times(constant_of(factor_of<F>(p.scale, p.denominator.at(segment)), F()), grad_output);
}

// Whether the gradients of a segment are already right.
template <class A, class B, class F, class P>
__device__ __forceinline__ bool is_held(const PassParameters<A, B, F, P>& p, uint32_t segment) {
  return !p.scattered_grad_output && p.grad_output.holds(grad_output_in(p, segment));
}

// Runs a block's shares of the work, and adds the sums that `visit(segment, begin, end)` returns in each thread.
template <int kLanes, class TV, int kThreads, class A, class B, class F, class P, class Visit>
__device__ __forceinline__ void run(const PassParameters<A, B, F, P>& p, const Visit& visit) {
  release_next();
  wait_for_prior();
  p.grad_output.note();
  const Partition& partition = p.partition;
  const int shift = kLanes ? 31 - __builtin_clz(kLanes ? kLanes : 1) : partition.lanes_shift;
  const uint32_t groups_a_block = kThreads >> shift;
  // One turn, except if few blocks check gradients that mostly stay unchanged.
#pragma unroll 1
  for (uint32_t first = blockIdx.x * groups_a_block; first < partition.groups; first += gridDim.x * groups_a_block) {
    const Share share = share_of(partition, first + (threadIdx.x >> shift));
    const bool held = share.alive && is_held(p, share.segment);
    if (held && p.grad_output.scalar) return;  // all are right if there is one grad_output
    P sum = {};
    if (share.alive && !held) {
      const uint32_t begin = share.part * partition.part_vectors;
      sum = visit(share.segment, begin, min(partition.vectors, begin + partition.part_vectors));
    }
    if (p.fold.store.output.data) reduce_share<kLanes, TV, kThreads>(sum, partition, share, p.fold);
  }
}

}  // namespace cudaloss::cuda
