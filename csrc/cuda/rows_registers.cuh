// Rows whose exponentials stay in registers: read once, written once. A row has some lanes of a warp, a warp, or a
// block.
#pragma once

#include "cuda/row_parameters.cuh"
#include "cuda/row_softmax.cuh"

namespace cudaloss::cuda {

// What the warps of a block tell each other of their row.
template <class E, int kWarps>
struct BlockRow {
  float max[kWarps], below[kWarps];
  RowNumber<E> sum[kWarps];
  Gain gain;
};

// The block's sums, in all threads of its first warp; of one warp's lanes, in all of them.
template <class E, int kLanes>
struct RowLanes {
  static constexpr int kWarps = kLanes > 32 ? kLanes / 32 : 1, kInWarp = kLanes > 32 ? 32 : kLanes;
  using N = RowNumber<E>;
  BlockRow<E, kWarps>& shared;

  __device__ __forceinline__ float max(float x) const {
    x = max_over<kInWarp>(x);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) shared.max[threadIdx.x / 32] = x;
      __syncthreads();
      x = shared.max[0];
#pragma unroll
      for (int warp = 1; warp < kWarps; ++warp) x = max_or_nan(x, shared.max[warp]);
    }
    return x;
  }
  __device__ __forceinline__ void sums(N& sum, float& below, bool smooths) const {
    sum = sum_over<kInWarp>(sum);
    if (smooths) below = sum_over<kInWarp>(below);
    if constexpr (kWarps > 1) {
      const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
      if (lane == 0) {
        shared.sum[warp] = sum;
        shared.below[warp] = below;
      }
      __syncthreads();
      if (warp != 0) return;
      sum = sum_over<kWarps>(shared.sum[lane % kWarps]);
      below = sum_over<kWarps>(shared.below[lane % kWarps]);
    }
  }
  // The first warp's, in all threads.
  __device__ __forceinline__ Gain told(const Gain& gain) const {
    if constexpr (kWarps == 1) return gain;
    if (threadIdx.x == 0) shared.gain = gain;
    __syncthreads();
    return shared.gain;
  }
};

template <class E, int kLanes, int kVectors, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_in_registers(const __grid_constant__ RowParameters<double> p,
                      const __grid_constant__ typename Loss::InFloat loss) {
  constexpr int n = RowSpan<E>::kVector, kRows = kThreads / kLanes;
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  __shared__ BlockRow<E, RowLanes<E, kLanes>::kWarps> shared;
  const RowLanes<E, kLanes> lanes = {shared};
  const int lane = threadIdx.x % kLanes;
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kRows; first < p.rows; first += gridDim.x * kRows) {
    const Task<float> task = task_of<float, true>(p, first + threadIdx.x / kLanes);
    const RowSpan<E> span = span_of<E>(p, task.at);
    const bool reads = task.target >= 0;
    const int32_t from = lane * n - span.skew();
    float x[kVectors][n], target = 0.0f;
    if (reads) target = widen<float>(span.input[task.target]);
    if (reads) {
      span.load_all(from, kLanes * n, x);
    } else {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int k = 0; k < n; ++k) x[i][k] = -INFINITY;
      }
    }
    float below = 0.0f;
    if (loss.smooths && reads) {
      const float base = select(target == -INFINITY, 0.0f, target);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        const int32_t j = from + i * kLanes * n;
        float part = 0.0f;
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const bool is_there = static_cast<uint32_t>(j + k) < static_cast<uint32_t>(p.classes);
          part += select(is_there, base - x[i][k], 0.0f);
        }
        below += part;
      }
    }
    float max = -INFINITY;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      patch(x[i], task.target - (from + i * kLanes * n), -INFINITY);
#pragma unroll
      for (int k = 0; k < n; ++k) max = max_or_nan(max, x[i][k]);
    }
    max = lanes.max(max);
    const Reference reference = reference_of(max);
    const Elements<E> elements(reference);
    if (reference.shift != 0.0f) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int k = 0; k < n; ++k) x[i][k] -= reference.shift;
      }
    }
    typename Elements<E>::Sum of_exp;
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        x[i][k] = elements.exp(x[i][k]);
        of_exp.add(x[i][k]);
      }
    }
    RowNumber<E> total = of_exp.total();
    lanes.sums(total, below, loss.smooths);
    RowResult<E> result = {};
    if (kLanes <= 32 || threadIdx.x < 32) {
      result = reads ? finished<E, Loss>(loss, {max, total}, target, below, task.class_weight, task.factor)
                     : finished_without<E>(task.counts);
      if (lane == 0 && !task.held) hand_in(p, task.at, as_double(result.loss) * double{task.weight}, sum);
    }
    const Gain gain = lanes.told(result.gain);
    if (!span.gradient || task.held) continue;
    if (gain.unlifts) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int k = 0; k < n; ++k) x[i][k] *= Elements<E>::kBack;
      }
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + i * kLanes * n;
#pragma unroll
      for (int k = 0; k < n; ++k) x[i][k] = gain.times(x[i][k]);
      patch(x[i], task.target - j, gain.at_target);
      if (j < p.classes) span.template store<false>(j, x[i]);
    }
  }
  hand_in_sum<kThreads, (kLanes < kThreads)>(p, sum);
}

}  // namespace cudaloss::cuda
