// The pass over operands that are read in whole vectors; kPassUnroll of each thread's vectors are in flight.
#pragma once

#include "cuda/general_pass.cuh"

namespace cudaloss::cuda {

// What a pass can have beside dense operands in the same order. None: nothing, but the target may be broadcast. Slice:
// operands may be slices, and the target may have one element for a whole vector; as two branches in the kernel before
// it this made hinge and mse with a target for each column 4 to 10 % slower (2^30 and 2^27 fp32 elements, H200). Mask:
// in the same order. With a target that is broadcast beside it, a masked pass took 1.1 times as long (fp32; bf16 1.07
// to 1.2). Weight, Third: weights or third operands in the arithmetic's own dtype, and such a mask. Any: anything
// except third operands: ignore_nan, masks of any strides, weights of any dtype, operands that are not dense or are
// broadcast. AnyThird: the same, and third operands of any dtype.
enum class Extras { None, Slice, Mask, Weight, Third, Any, AnyThird };
template <Extras kExtras>
constexpr bool kHasThird = kExtras == Extras::Third || kExtras == Extras::AnyThird;

// The threads of a block. A processor holds at least 1,024 threads.
template <class Loss>
constexpr int kPassThreads = kIsOfDifference<Loss> ? plan::kPassThreads : plan::kPassThreadsOfOperands;
// The vectors whose loads are in flight together. For a loss of two operands the terms take the second's registers.
// With any extras two vectors of 8 elements would spill 120 bytes a thread: quantile of 2^28 bf16 elements with fp32
// targets would take 0.77 ms and its step 1.02, not 0.52 and 0.74 (H100).
template <class Loss, Extras kExtras, int N>
constexpr int kPassUnroll = kIsOfDifference<Loss> && (kExtras < Extras::Any || N < 8) ? plan::kPassUnroll : 1;

// The same for a target that may be broadcast. One load in flight reads at 3.3 TB/s, two at 3.8, three at 4.0 (hinge of
// 2^30 fp32 elements). With three, log-cosh trains 6 % faster, the sum alone of soft margin takes 8 % longer, and a
// heavy loss would spill.
template <class Loss>
constexpr int kPlainUnroll = kIsOfDifference<Loss> || kIsHeavy<Loss> ? plan::kPassUnroll : plan::kPassUnroll + 1;

// The offset of a vector in one operand, from the first dimensions only: it varies along these.
template <Place kPlace, class A, class B, class F, class P>
__device__ __forceinline__ int64_t offset_by(const PassParameters<A, B, F, P>& p, int dims, uint32_t segment,
                                             uint32_t vector) {
  uint32_t sum = 0;
#pragma unroll
  for (int d = 0; d < kFewDims; ++d) {
    if (d >= dims) break;
    const uint32_t rest = p.inner.size[d].quotient(vector);
    sum += (vector - rest * p.inner.size[d].divisor) * static_cast<uint32_t>(p.inner.step[d][kPlace]);
    vector = rest;
  }
  if (p.partition.segments == 1) return sum;
  return sum + narrow_offset(p.segments, coordinates<kFewDims>(p.segments, segment), kPlace);
}

// If a vector's elements share one, gives it to all.
template <class F, int N>
__device__ __forceinline__ void spread(const Weights<F>& weights, F (&each)[N]) {
#pragma unroll
  for (int i = 1; i < N; ++i) each[i] = weights.of(i, each);
}
template <class B, int N>
__device__ __forceinline__ void spread(const Accessor<B>& accessor, Vector<Loaded<B>, N>& vector) {
  const bool is_one = accessor.spacing.stride == 0;
#pragma unroll
  for (int i = 1; i < N; ++i) vector.element[i] = select(is_one, vector.element[0], vector.element[i]);
}

template <Extras kExtras, int N, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, N> read_vectors(const PassParameters<A, B, F, P>& p, uint32_t segment,
                                                            uint32_t vector) {
  Reading<A, B, F, N> r;
  r.length = N;
  const int64_t linear = (int64_t{segment} * p.partition.vectors + vector) * N;
  if constexpr (kExtras >= Extras::Any) {
    const auto at = position<kFewDims>(p, segment, vector);
    const int64_t of_input = p.linear ? linear : narrow_offset(p, at, kInput);
    const int64_t of_target = p.linear ? linear : narrow_offset(p, at, kTarget);
    r.operands = {p.input.template load_vector<N>(of_input), p.target.template load_vector<N>(of_target)};
    if (p.weight.data) p.weight.load(narrow_offset(p, at, kWeight), N, r.weight);
    if (p.mask.data) r.mask = load_mask<N>(p.mask, narrow_offset(p, at, kMask), N);
    if constexpr (kExtras == Extras::AnyThird) p.third.load(narrow_offset(p, at, kThird), N, r.third);
  } else {
    if constexpr (kExtras <= Extras::Slice) {  // leaves the L1 to a target that is broadcast
      constexpr bool kSliced = kExtras == Extras::Slice;
      const bool has_offset = kSliced && p.input_dims;
      const int64_t of_input = has_offset ? offset_by<kInput>(p, p.input_dims, segment, vector) : linear;
      const int64_t of_target = p.target_dims ? offset_by<kTarget>(p, p.target_dims, segment, vector) : linear;
      r.operands.a = p.input.template load_past_l1<N>(of_input);
      if (kSliced && p.target.spacing.stride == 0) {  // `spread` copies it when it is there
        r.operands.b.element[0] = p.target.data[of_target];
      } else {
        r.operands.b = p.target.template load_vector<N>(of_target);
      }
    } else {
      r.operands = {p.input.template load_vector<N>(linear), p.target.template load_vector<N>(linear)};
      if (p.mask.data) r.mask = p.mask.template load_vector<N>(linear);
    }
    if constexpr (kExtras == Extras::Weight) {
      p.weight.load_own(offset_by<kWeight>(p, p.weight_dims, segment, vector), r.weight);
    }
    if constexpr (kExtras == Extras::Third) {
      p.third.load_own(offset_by<kThird>(p, p.third_dims, segment, vector), r.third);
    }
  }
  return r;
}

// The offsets of a vector's gradients.
template <Extras kExtras, int N, class A, class B, class F, class P>
__device__ __forceinline__ void set_offsets(const PassParameters<A, B, F, P>& p, uint32_t segment, uint32_t vector,
                                            Reading<A, B, F, N>& r) {
  r.first = r.second = (int64_t{segment} * p.partition.vectors + vector) * N;
  if (kExtras >= Extras::Any && !p.linear) {
    const auto at = position<kFewDims>(p, segment, vector);
    r.first = narrow_offset(p, at, kResult);
    r.second = narrow_offset(p, at, kSecondResult);
  }
}

// Element i after the last whole vector, if there is only one row.
template <Extras kExtras, class A, class B, class F, class P>
__device__ __forceinline__ Reading<A, B, F, 1> read_single(const PassParameters<A, B, F, P>& p, int64_t i) {
  Reading<A, B, F, 1> r;
  r.first = r.second = i;
  r.length = 1;
  r.operands = {p.input.template load_vector<1>(i), p.target.template load_vector<1>(i * p.target.spacing.stride)};
  if (kExtras > Extras::Slice && p.mask.data) r.mask.element[0] = p.mask.data[i * p.inner.stride[kMask]];
  if (kExtras >= Extras::Weight && kExtras != Extras::Third && p.weight.data)
    p.weight.load(i * p.inner.stride[kWeight], 1, r.weight);
  if constexpr (kHasThird<kExtras>) p.third.load(i * p.inner.stride[kThird], 1, r.third);
  return r;
}

// kLength elements of a vector.
template <int kBegin, int kLength, class A, class B, class F, int N>
__device__ __forceinline__ Reading<A, B, F, kLength> part_of(const Reading<A, B, F, N>& r) {
  Reading<A, B, F, kLength> part;
  part.first = r.first + kBegin;
  part.second = r.second + kBegin;
  part.length = kLength;
#pragma unroll
  for (int i = 0; i < kLength; ++i) {
    part.mask.element[i] = r.mask.element[kBegin + i];
    part.weight[i] = r.weight[kBegin + i];
    part.third[i] = r.third[kBegin + i];
    part.operands.a.element[i] = r.operands.a.element[kBegin + i];
    part.operands.b.element[i] = r.operands.b.element[kBegin + i];
  }
  return part;
}

// Makes all results of one vector, and returns its part of the segment's sum. kThird: each element has its own third
// operand.
template <bool kThird, class A, class B, class F, class P, int N, class LossV, class LossG>
__device__ __forceinline__ double process(const PassParameters<A, B, F, P>& p, const Wanted& wanted, const LossV& loss,
                                          const LossG& loss_of_gradients, const Reading<A, B, F, N>& reading,
                                          Constant<F> scale) {
  using TV = typename LossV::Arithmetic;
  const bool alike = wanted.weighted && p.weight.are_alike();
  const unsigned selected = selected_in<N>(p, wanted, reading);
  const auto own = [&](const auto& loss, int i) -> decltype(auto) {
    if constexpr (kThird) {
      return loss.with(reading.third[i]);
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
  const auto factor = [&](int i) {
    return wanted.weighted && !alike ? times(scale, Constant<F>{reading.weight[i], F(0)}) : scale;
  };
  const auto first_gradient = [&](const auto& loss, const auto& terms, int i) {
    if constexpr (kThird && kHasGradThird<LossG>) {
      if (p.of_third) return loss.grad_third(terms, factor(i));
    }
    return loss.grad_input(terms, factor(i));
  };
  const auto is_selected = [&](int i) { return (selected >> i & 1) != 0; };
  const auto in_play = [&](TV value, int i) {
    if (wanted.weighted && !alike) value = weighted(value, reading.weight[i]);
    return select(is_selected(i), value, TV());
  };
  double sum = 0.0;
  const auto finish_losses = [&](const TV(&value)[N]) {
    sum = tree_sum(value);
    if (alike && selected != 0) sum *= static_cast<double>(reading.weight[0]);
  };
  F gradient[N];
  if (wanted.losses && !(kSharesTerms<LossV, LossG> && wanted.gradients)) {
    TV value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) value[i] = in_play(own(loss, i).value(terms_of(own(loss, i), i)), i);
    finish_losses(value);
  }
  if (!wanted.gradients) return sum;
  if (alike) scale = times(scale, Constant<F>{reading.weight[0], F(0)});
  if constexpr (kSharesTerms<LossV, LossG>) {
    TV value[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto& of_element = own(loss, i);
      const auto terms = terms_of(of_element, i);
      value[i] = in_play(of_element.value(terms), i);
      gradient[i] = select(is_selected(i), first_gradient(of_element, terms, i), F(0));
    }
    if (wanted.losses) finish_losses(value);
  } else {
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto& of_element = own(loss_of_gradients, i);
      gradient[i] = select(is_selected(i), first_gradient(of_element, terms_of(of_element, i), i), F(0));
    }
  }
  if (p.grad_input.data) p.grad_input.store_vector(reading.first, gradient);
  if (!p.grad_target.data) return sum;
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if constexpr (LossG::kMirrors) {
      gradient[i] = -gradient[i];
    } else {
      const auto& of_element = own(loss_of_gradients, i);
      gradient[i] = select(is_selected(i), of_element.grad_target(terms_anew(of_element, i), factor(i)), F(0));
    }
  }
  p.grad_target.store_vector(reading.second, gradient);
  return sum;
}

// The blocks that a processor must hold. With 64 registers AnyThird would spill 16 to 160 bytes a thread (Gaussian NLL,
// binary cross entropy), so it has 80.
template <Extras kExtras, class Loss, class A, class B>
constexpr int kVectorizedBlocks = !kIsOfDifference<Loss>     ? (kExtras == Extras::AnyThird ? 6 : 8)
                                  : kExtras <= Extras::Slice ? train_policy<Loss, A, B>().blocks
                                                             : 2;

template <Extras kExtras, class P, class A, class B, int N, class LossV, class LossG>
__global__ void __launch_bounds__(kPassThreads<LossV>, (kVectorizedBlocks<kExtras, LossV, A, B>))
    vectorized_pass_kernel(LossV loss, LossG loss_of_gradients,
                           const __grid_constant__ PassParameters<A, B, typename LossG::F, P> p) {
  using F = typename LossG::F;
  constexpr bool kThird = kHasThird<kExtras>;
  Wanted wanted = {};
  wanted.losses = p.sums_losses;
  wanted.gradients = p.grad_input.data || p.grad_target.data;
  wanted.masked = kExtras > Extras::Slice && p.mask.data;
  wanted.without_nan = kExtras >= Extras::Any && p.ignore_nan;
  wanted.weighted = kExtras == Extras::Weight || (kExtras >= Extras::Any && p.weight.data);
  const auto make = [&](const auto& read, Constant<F> scale) {
    auto reading = read;
    if constexpr (std::is_same_v<B, Stored>) reading.operands.b = p.target.decoded(read.operands.b);
    if constexpr (kExtras == Extras::Slice) spread(p.target, reading.operands.b);
    if constexpr (kThird) spread(p.third, reading.third);
    if constexpr (kThird) spread(p.weight, reading.weight);
    constexpr int kLength = sizeof(reading.weight) / sizeof(F);
    // All 8 elements at once would spill 200 bytes a thread.
    if constexpr (((kIsHeavy<LossV> && kExtras <= Extras::Mask) || kExtras == Extras::AnyThird) && kLength == 8) {
      const auto low = part_of<0, 4>(reading), high = part_of<4, 4>(reading);
      const double sum = process<kThird>(p, wanted, loss, loss_of_gradients, low, scale);
      return P{sum + process<kThird>(p, wanted, loss, loss_of_gradients, high, scale)};
    } else {
      return P{process<kThird>(p, wanted, loss, loss_of_gradients, reading, scale)};
    }
  };
  run<kPassThreads<LossV>, typename LossV::Arithmetic, kPassThreads<LossV>>(
      p, [&](uint32_t segment, uint32_t begin, uint32_t end) {
        constexpr int kUnroll = kExtras <= Extras::Slice ? kPlainUnroll<LossV> : kPassUnroll<LossV, kExtras, N>;
        constexpr uint32_t kLanes = kPassThreads<LossV>;
        const uint32_t lane = threadIdx.x;
        const uint32_t whole_end = min(end, p.inner.whole_end);
        P sum = {};
        Constant<F> scale = {};
    // At least once: the elements after the last whole vector need the scale too.
#pragma unroll 1
        for (uint32_t base = begin; base == begin || base < whole_end; base += kLanes * kUnroll) {
          Reading<A, B, F, N> reading[kUnroll];
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            reading[u] = read_vectors<kExtras, N>(p, segment, min(base + u * kLanes + lane, whole_end - 1));
          }
          // After the loads, because it may have to wait for one.
          if (base == begin && wanted.gradients) scale = factor_in(p, segment);
#pragma unroll
          for (int u = 0; u < kUnroll; ++u) {
            const uint32_t vector = base + u * kLanes + lane;
            if (vector >= whole_end) break;
            set_offsets<kExtras, N>(p, segment, vector, reading[u]);
            sum = sum + make(reading[u], scale);
          }
        }
        const uint32_t single = p.inner.whole_end * N + lane;
        if (whole_end < end && end == p.partition.vectors && single < p.inner.vector_size) {
          sum = sum + make(read_single<kExtras>(p, single), scale);
        }
        return sum;
      });
}

}  // namespace cudaloss::cuda
