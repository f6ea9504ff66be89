// The kernels for dense operands in the same order, without masks or weights: a sum of losses, with their gradients, or
// a map to either. engine_impl.cuh starts them. They are separate because the general pass is slower (H200, smooth L1,
// fp32): 2.3 times as long for 2^6 elements, 1.5 for 2^12, 1.4 for 2^20, 1.03 to 1.07 for 2^28.
#pragma once

#include "core/plan.h"
#include "cuda/accessor.cuh"
#include "cuda/grad_output.cuh"

namespace cudaloss::cuda {

template <class A, class B>
struct Dense {
  Accessor<A> input;
  Accessor<B> target;
  bool whole;  // both operands can be read in whole vectors
  int64_t count;

  // Tells the compiler what the host already knows.
  __device__ __forceinline__ void are_side_by_side() { input.spacing.stride = target.spacing.stride = 1; }

  // One branch around both loads: with a branch for each, the second would wait for the first.
  template <int N>
  __device__ __forceinline__ Vectors<A, B, N> load(int64_t begin, int length) const {
    if (whole && length == N) return {input.template load_vector<N>(begin), target.template load_vector<N>(begin)};
    return load_each<N>(begin, length);
  }
  template <int N>
  __device__ __forceinline__ Vectors<A, B, N> load_each(int64_t begin, int length) const {
    return {input.template load_each<N>(begin, length), target.template load_each<N>(begin, length)};
  }
};

template <class A, class B>
struct Gradients {
  Accessor<A> input;  // without data: not wanted
  Accessor<B> target;

  __device__ __forceinline__ void are_side_by_side() { input.spacing.stride = target.spacing.stride = 1; }

  // Stores the gradients of a vector. The target's come from the input's; if the loss does not mirror them, from the
  // terms, computed again: both are seldom wanted, and keeping the terms would cost registers in all other passes.
  template <class Loss, int N, class Factor>
  __device__ __forceinline__ void store(int64_t begin, int length, const Loss& loss, const Vectors<A, B, N>& read,
                                        const Factor& factor, typename Loss::F (&gradient)[N]) const {
    if (input.data) input.store(begin, length, gradient);
    if (!target.data) return;
#pragma unroll
    for (int i = 0; i < N; ++i) {
      if constexpr (Loss::kMirrors) {
        gradient[i] = -gradient[i];
      } else {
        gradient[i] = loss.grad_target(loss.terms(anew(read.a.element[i]), anew(read.b.element[i])), factor(i));
      }
    }
    target.store(begin, length, gradient);
  }
};

// ---- a sum that only reads ---------------------------------------------------------------------------------

template <class Loss, class A, class B, int N>
__device__ __forceinline__ double sum_of_losses(const Loss& loss, const Vectors<A, B, N>& operands) {
  typename Loss::Arithmetic value[N];
#pragma unroll
  for (int i = 0; i < N; ++i) value[i] = loss.value(loss.terms(operands.a.element[i], operands.b.element[i]));
  return tree_sum(value);
}

// This thread's part of the whole vectors of one tile; all loads start before the first is used. If the last tile has
// fewer vectors, the missing ones are read from the tile's first: a branch around a load would serialise the loads.
template <bool kWhole, bool kLastTile, class A, class B, int N, class Loss>
__device__ __forceinline__ double tile_loss(const Loss& loss, const Dense<A, B>& operands, int64_t first,
                                            int64_t vectors) {
  constexpr int kVectors = plan::kSum.vectors;
  // Starts all loads at once, except loads of single halves, which would take 80 registers.
  constexpr int kTogether = kWhole || N < 8 ? kVectors : 2;
  double sum = 0.0;
#pragma unroll 1
  for (int begin = 0; begin < kVectors; begin += kTogether) {
    Vectors<A, B, N> read[kTogether];
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t vector = first + threadIdx.x + (begin + u) * plan::kSum.threads;
      const int64_t at = (kLastTile && vector >= vectors ? first : vector) * N;
      if constexpr (kWhole) {
        read[u] = {operands.input.template load_past_l1<N>(at), operands.target.template load_past_l1<N>(at)};
      } else {
        read[u] = operands.template load_each<N>(at, N);
      }
    }
#pragma unroll
    for (int u = 0; u < kTogether; ++u) {
      const int64_t vector = first + threadIdx.x + (begin + u) * plan::kSum.threads;
      if (!kLastTile || vector < vectors) sum += sum_of_losses<Loss, A, B, N>(loss, read[u]);
    }
  }
  return sum;
}

template <class P, class A, class B, int N, class Loss>
__global__ void __launch_bounds__(plan::kSum.threads)
    sum_kernel(Loss loss, Dense<A, B> operands, Fold<P, Quotient> fold) {
  release_next();
  operands.are_side_by_side();
  constexpr int64_t kTileVectors = plan::kSum.tile(N) / N;
  using T = typename Loss::Arithmetic;
  const int64_t vectors = operands.count / N;
  double sum = 0.0;
  for (int64_t first = blockIdx.x * kTileVectors; first < vectors; first += gridDim.x * kTileVectors) {
    const bool is_full = first + kTileVectors <= vectors;
    if (!operands.whole) {
      sum += tile_loss<false, true, A, B, N>(loss, operands, first, vectors);
    } else if (is_full) {  // in the branch for the last tile it would take 8 % longer at 2^17 elements
      sum += tile_loss<true, false, A, B, N>(loss, operands, first, vectors);
    } else {
      sum += tile_loss<true, true, A, B, N>(loss, operands, first, vectors);
    }
  }
  const int64_t single = vectors * N + threadIdx.x;  // the rest after whole vectors
  if (blockIdx.x == gridDim.x - 1 && single < operands.count) {
    sum += sum_of_losses<Loss, A, B, 1>(loss, operands.template load_each<1>(single, 1));
  }
  grid_reduce_and_store<plan::kSum.threads>(block_sum<plan::kSum.threads, P>(in_warp<T>(sum)), fold);
}

// ---- a sum and its gradients -------------------------------------------------------------------------------

// The launch policy for a sum and its gradients, and how many blocks a processor must hold, so that the end of one
// overlaps the others. Losses of a difference: three, with 42 registers a thread; two if the loads are heavier (bf16
// with fp32: 4.36 TB/s, with three 4.08), and for exact losses and halves known at run time. Losses of two operands: as
// many as their registers allow without spilling (a bf16 step of binary cross entropy of logits spills 12 bytes).
// log-cosh of 2^28 fp32 elements takes 773 us with 12 blocks, 931 with 9; focal, which is heavy, 868 with 20 blocks of
// 64 threads, 1,055 with 12 of 128; bf16 focal 557 with 4 elements a thread, 1,724 with 8; KL divergence of
// probabilities 873 as a heavy loss, 1,466 as a light one.
struct TrainPolicy {
  plan::LaunchPolicy launch;
  int blocks, vector;
};
template <class LossV, class A, class B>
constexpr TrainPolicy train_policy() {
  using T = typename LossV::Arithmetic;
  constexpr bool is_light = sizeof(A) == sizeof(B) && sizeof(A) < 8 && !std::is_same_v<T, FloatFloat>;
  constexpr int vector = plan::vector_elements(sizeof(A), sizeof(B));
  if (kIsOfDifference<LossV>) return {plan::kTrain, is_light && !std::is_same_v<A, AnyHalf> ? 3 : 2, vector};
  if (std::is_same_v<T, float> && std::is_same_v<A, float>) {
    return kIsHeavy<LossV> ? TrainPolicy{plan::kTrainSmallBlocks, 20, vector}
                           : TrainPolicy{plan::kTrainOperands, 12, vector};
  }
  if (std::is_same_v<T, FastFloat>) return {plan::kTrainSmallBlocks, 18, kIsHeavy<LossV> ? vector / 2 : vector};
  return {plan::kTrainOperands, 8, vector};
}

// Each block has a tile. Without gradients this is also the fastest way to the loss of few elements. LossV has the
// arithmetic of the loss, where rounding errors average out; LossG that of the gradients, where each one is visible.
// Many aligned operands have their own instance (kWhole), because the loads of misaligned ones would cost it registers.
template <int kThreads, int kUnroll, int kBlocks, bool kWhole, class P, class A, class B, int N, class LossV,
          class LossG>
__global__ void __launch_bounds__(kThreads, kBlocks)
    train_kernel(LossV loss, LossG loss_of_gradients, Constant<typename LossG::F> scale, Dense<A, B> operands,
                 Gradients<A, B> gradients, Prediction prediction, Fold<P, Quotient> fold) {
  release_next();
  if (prediction.record) {
    scale = times(scale, constant_of(prediction.expected(), typename LossG::F()));
    if (blockIdx.x == 0 && threadIdx.x == 0) note_once(prediction, {}, false);
  }
  operands.are_side_by_side();
  gradients.are_side_by_side();
  using TV = typename LossV::Arithmetic;
  if (kWhole) operands.whole = gradients.input.spacing.vectorized = gradients.target.spacing.vectorized = true;
  const int64_t vectors = operands.count / N;
  const int threads = blockDim.x;
  double sum = 0.0;
  constexpr bool kShares = kSharesTerms<LossV, LossG>;
  const bool wants_gradients = gradients.input.data || gradients.target.data;
  const auto make = [&](int64_t begin, const auto& read) {
    constexpr int kCount = sizeof(read.a) / sizeof(read.a.element[0]);
    // Keeps the compiler from making the terms before the branch, which would take many registers.
    const auto terms_apart = [&](int i) {
      const auto a = read.a.element[i];
      const auto b = read.b.element[i];
      return kShares ? loss.terms(anew(a), anew(b)) : loss.terms(a, b);
    };
    TV value[kCount];
    typename LossG::F gradient[kCount];
    if (kShares && wants_gradients) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto terms = loss.terms(read.a.element[i], read.b.element[i]);
        value[i] = loss.value(terms);
        if constexpr (kShares) gradient[i] = loss_of_gradients.grad_input(terms, scale);
      }
    } else {
#pragma unroll
      for (int i = 0; i < kCount; ++i) value[i] = loss.value(terms_apart(i));
    }
    sum += tree_sum(value);
    if (!wants_gradients) return;
    if constexpr (!kShares) {
#pragma unroll
      for (int i = 0; i < kCount; ++i) {
        const auto terms = loss_of_gradients.terms(read.a.element[i], read.b.element[i]);
        gradient[i] = loss_of_gradients.grad_input(terms, scale);
      }
    }
    gradients.store(begin, kCount, loss_of_gradients, read, [&](int) { return scale; }, gradient);
  };
  for (int64_t first = int64_t{blockIdx.x} * threads * kUnroll; first < vectors;
       first += int64_t{gridDim.x} * threads * kUnroll) {
    Vectors<A, B, N> read[kUnroll];
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t vector = first + u * threads + threadIdx.x;
      read[u] = operands.template load<N>((vector < vectors ? vector : first) * N, N);
    }
#pragma unroll
    for (int u = 0; u < kUnroll; ++u) {
      const int64_t vector = first + u * threads + threadIdx.x;
      if (vector >= vectors) break;
      make(vector * N, read[u]);
    }
  }
  const int64_t single = vectors * N + threadIdx.x;  // the rest after whole vectors
  if (blockIdx.x == gridDim.x - 1 && single < operands.count) make(single, operands.template load<1>(single, 1));
  grid_reduce_and_store<kThreads>(block_sum<kThreads, P>(in_warp<TV>(sum)), fold);
}

// ---- a map -------------------------------------------------------------------------------------------------

struct MapParameters {
  Result losses;  // or gradients
  double scale;   // for losses
  GradOutput grad_output;
};

// Single losses, or the gradients for `grad_output`. If the gradients hold those for it, the kernel ends at once.
// Otherwise they are computed again, because a product would round a second time. LossH is of losses that are stored as
// halves.
template <class A, class B, int N, class LossV, class LossH, class LossG>
__global__ void __launch_bounds__(plan::kMap.threads, (kIsOfDifference<LossV> && N == 4 ? 3 : 2))
    map_kernel(LossV loss, LossH loss_of_halves, LossG loss_of_gradients, Constant<typename LossG::F> scale,
               Dense<A, B> operands, Gradients<A, B> gradients, MapParameters p) {
  using F = typename LossG::F;
  operands.are_side_by_side();
  gradients.are_side_by_side();
  const GradOutput& outgoing = p.grad_output;
  Constant<F> incoming = {F(1), F(0)};
  if (outgoing.scalar && outgoing.operand.data) incoming = outgoing.at(0, F());
  outgoing.note();
  if (outgoing.holds(incoming)) return;
  scale = times(scale, incoming);
  constexpr int64_t kTile = plan::kMap.tile(N);
#pragma unroll 1
  for (int64_t tile = blockIdx.x; tile * kTile < operands.count; tile += gridDim.x) {
    const int64_t begin = tile * kTile + threadIdx.x * N;
    const int length = static_cast<int>(min(int64_t{N}, operands.count - begin));
    if (length <= 0) return;
    const auto read = operands.template load<N>(begin, length);
    if (p.losses.data) {
      F value[N];
      const auto make = [&](const auto& own) {
#pragma unroll
        for (int i = 0; i < N; ++i) {
          value[i] = rounded(own.value(own.terms(read.a.element[i], read.b.element[i])) * constant_of(p.scale, F()));
        }
      };
      // The result's dtype (the promoted one, or the caller's) is known only at run time.
      if (!std::is_same_v<LossV, LossH> && is_half(p.losses.dtype)) {
        make(loss_of_halves);
      } else {
        make(loss);
      }
      dispatch(p.losses.dtype, [&](auto type) {
        using Element = typename decltype(type)::type;
        const bool whole = reinterpret_cast<uintptr_t>(p.losses.data) % kVectorBytes == 0;
        Accessor<Element>{static_cast<Element*>(p.losses.data), {1, whole}}.store(begin, length, value);
      });
      continue;
    }
    Constant<F> each_incoming[N];
    if (!outgoing.scalar) outgoing.each(begin, 1, length, each_incoming);
    const auto factor = [&](int i) { return outgoing.scalar ? scale : times(scale, each_incoming[i]); };
    F gradient[N];
#pragma unroll
    for (int i = 0; i < N; ++i) {
      const auto terms = loss_of_gradients.terms(read.a.element[i], read.b.element[i]);
      gradient[i] = loss_of_gradients.grad_input(terms, factor(i));
    }
    gradients.store(begin, length, loss_of_gradients, read, factor, gradient);
  }
}

}  // namespace cudaloss::cuda
