// The gradients of an operand that is broadcast, each summed over its segment, and from the same reading those of the
// other operand, which has all elements. One kernel for all losses, with a loop for each: with a branch to the loss at
// each vector it takes twice as long.
#pragma once

#include "cuda/any_loss.cuh"
#include "cuda/general_pass.cuh"

namespace cudaloss::cuda {

// A thread's vectors whose loads are in flight together. (32768, 4096) fp32 of mse with (4096,), both gradients: 0.29
// ms with four, 0.32 with two, which compile in half the time.
template <bool kColumns, class E>
constexpr int kSummedVectors = kColumns && std::is_same_v<E, float> ? 4 : 2;
constexpr int kSummedElements = plan::vector_elements(4, 4);  // of a vector

// Input and target are those of the pass; `whole` is the operand that has all elements.
using SummedParameters = PassParameters<Stored, Stored, float, double>;

template <class E>
struct WholeOperand {
  Accessor<E> data, gradient;  // without data: not wanted
  Place place, gradient_place;

  __device__ __forceinline__ explicit WholeOperand(const SummedParameters& p)
      : data(as(p.summed == Summed::GradInput ? p.target : p.input)),
        gradient(as(p.summed == Summed::GradInput ? p.grad_target : p.grad_input)),
        place(p.summed == Summed::GradInput ? kTarget : kInput),
        gradient_place(p.summed == Summed::GradInput ? kSecondResult : kResult) {}

 private:
  __device__ __forceinline__ static Accessor<E> as(const Accessor<Stored>& from) {
    return accessor_of<E>({from.data, from.dtype}, {1, true});
  }
};

// A loss over the vectors begin, begin + step, ... before end. `other` has the elements of the operand that is
// broadcast. `add` gets its gradients, added up place by place for some vectors.
template <int kVectors, class E, class Loss, class Add>
__device__ __forceinline__ void run_summed(const SummedParameters& p, const Loss& loss, Constant<float> scale,
                                           uint32_t segment, uint32_t begin, uint32_t end, uint32_t step,
                                           const float (&other)[kSummedElements], const Add& add) {
  constexpr int N = kSummedElements;
  const WholeOperand<E> whole(p);
  const bool sums_input = p.summed == Summed::GradInput;
  const auto of_segment = coordinates<kFewDims>(p.segments, segment);
  const auto offset_of = [&](Place place, uint32_t vector) {
    const uint32_t within = p.inner.rank == 1 ? vector * static_cast<uint32_t>(p.inner.step[0][place])
                                              : narrow_offset(p.inner, coordinates<kFewDims>(p.inner, vector), place);
    return within + narrow_offset(p.segments, of_segment, place);
  };
#pragma unroll 1
  for (uint32_t base = begin; base < end; base += kVectors * step) {
    Vector<Loaded<E>, N> read[kVectors];
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const uint32_t vector = base + u * step;
      read[u] = whole.data.template load_vector<N>(offset_of(whole.place, vector < end ? vector : base));
    }
    float sums[N] = {};  // in float: fp64 is slow on most GPUs, and these are few
#pragma unroll
    for (int u = 0; u < kVectors; ++u) {
      const uint32_t vector = base + u * step;
      if (vector >= end) break;
      float summed[N], single[N];
#pragma unroll
      for (int i = 0; i < N; ++i) {
        const float x = widen<float>(read[u].element[i]);
        const auto terms = loss.terms(sums_input ? other[i] : x, sums_input ? x : other[i]);
        if constexpr (Loss::kMirrors) {
          const float of_input = loss.grad_input(terms, scale);
          summed[i] = sums_input ? of_input : -of_input;
          single[i] = -summed[i];
        } else if (sums_input) {
          summed[i] = loss.grad_input(terms, scale);
          if (whole.gradient.data) single[i] = loss.grad_target(terms, scale);
        } else {
          summed[i] = loss.grad_target(terms, scale);
          if (whole.gradient.data) single[i] = loss.grad_input(terms, scale);
        }
      }
      if (whole.gradient.data) whole.gradient.store_vector(offset_of(whole.gradient_place, vector), single);
#pragma unroll
      for (int i = 0; i < N; ++i) sums[i] += summed[i];
    }
    add(sums);
  }
}

// kColumns: neighbouring threads are at neighbouring segments, and a thread's vector is one element of N segments, each
// with its own sum. Otherwise a vector is of one segment. Eight blocks a processor: with six, and 80 registers a
// thread, rows take 1.13 times as long.
template <bool kColumns, class E>
__global__ void __launch_bounds__(plan::kStridedThreads, 8)
    summed_pass_kernel(const __grid_constant__ AnyLoss<FloatFloat> any, const __grid_constant__ SummedParameters p) {
  constexpr int kThreads = plan::kStridedThreads, N = kSummedElements;
  const Accessor<Stored>& broadcast = p.summed == Summed::GradInput ? p.input : p.target;
  const Place place = p.summed == Summed::GradInput ? kInput : kTarget;
  if constexpr (kColumns) {
    release_next();
    wait_for_prior();
    const Share share = share_of(p.partition, blockIdx.x * kThreads + threadIdx.x);
    if (!share.alive) return;
    const uint32_t begin = share.part * p.partition.part_vectors;
    const uint32_t end = min(p.partition.vectors, begin + p.partition.part_vectors);
    const Constant<float> scale = factor_in(p, 0);
    const uint32_t first = narrow_offset(p.segments, coordinates<kFewDims>(p.segments, share.segment), place);
    float other[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      other[i] = broadcast.template load_vector<1>(first + i * broadcast.spacing.stride).element[0];
    }
    double sum[N] = {};
    any.visit([&](const auto& loss) {
      run_summed<kSummedVectors<kColumns, E>, E>(p, loss, scale, share.segment, begin, end, 1, other,
                                                 [&](const float (&gradient)[N]) {
#pragma unroll
                                                   for (int i = 0; i < N; ++i) sum[i] += gradient[i];
                                                 });
    });
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const int64_t segment = int64_t{share.segment} * N + i;
      if (p.partition.parts == 1) {
        p.fold.store(sum[i], segment);
      } else {
        p.fold.partials[int64_t{share.part} * p.partition.segments * N + segment] = sum[i];
      }
    }
  } else {
    run<0, FloatFloat, kThreads>(p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
      const uint32_t lane = threadIdx.x & (p.partition.lanes - 1);
      const Constant<float> scale = factor_in(p, segment);
      const uint32_t first = narrow_offset(p.segments, coordinates<kFewDims>(p.segments, segment), place);
      float other[N];
      other[0] = broadcast.template load_vector<1>(first).element[0];
#pragma unroll
      for (int i = 1; i < N; ++i) other[i] = other[0];
      double sum = 0.0;
      any.visit([&](const auto& loss) {
        run_summed<kSummedVectors<kColumns, E>, E>(p, loss, scale, segment, begin + lane, end, p.partition.lanes, other,
                                                   [&](const float (&gradient)[N]) { sum += tree_sum(gradient); });
      });
      return sum;
    });
  }
}

}  // namespace cudaloss::cuda
