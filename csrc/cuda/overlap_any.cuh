// Overlap of a softmax over any number of classes, with a target of shares, or of float64: a voxel's logits are read
// several times.
#pragma once

#include "cuda/overlap_voxels.cuh"
#include "cuda/row_lanes.cuh"

namespace cudaloss::cuda {

namespace overlaps {

template <class F, class E>
struct AnyProbabilities {
  const E* logits;
  int64_t step;
  F max, inverse;

  __device__ __forceinline__ AnyProbabilities(const Overlap& p, const Voxel& voxel)
      : logits(logits_at<E>(p, voxel)), step(p.input_stride[kClass]), max(-F(INFINITY)) {
    for (int64_t j = 0; j < p.classes; ++j) max = max_or_nan(max, widen<F>(logits[j * step]));
    F sum = F(0);
    for (int64_t j = 0; j < p.classes; ++j) sum += exp(j);
    inverse = absolute(max) <= largest(F()) && !is_wrong(p, voxel) ? F(1) / sum : F(NAN);
  }
  __device__ __forceinline__ F exp(int64_t j) const {
    if constexpr (sizeof(F) == sizeof(double)) {
      return ::exp(widen<F>(logits[j * step]) - max);
    } else {
      return expf(widen<F>(logits[j * step]) - max);
    }
  }
};

template <class F, class E>
__global__ void __launch_bounds__(kThreads) any_softmax_sums(const __grid_constant__ OverlapTask task) {
  const Overlap& p = task.of;
  extern __shared__ __align__(16) char memory[];
  release_next();
  const int64_t sample = blockIdx.x / task.blocks, values = p.classes * kOverlapSums;
  double* const of_warps = reinterpret_cast<double*>(memory);
  double* const own_sums = of_warps + threadIdx.x / 32 * values;
  for (int64_t i = threadIdx.x % 32; i < values; i += 32) own_sums[i] = 0.0;
  __syncwarp();
  const uint32_t step = task.blocks * kThreads;
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kThreads; first < task.voxels; first += step) {
    const uint32_t v = first + threadIdx.x;
    const Voxel voxel = voxel_at(task, sample, min(v, task.voxels - 1));
    const bool counts = v < task.voxels && voxel.counts;
    const AnyProbabilities<F, E> row(p, voxel);
    F entropy = F(0);
    if (p.entropy && voxel.index >= 0) {
      F others = F(0);
      for (int64_t j = 0; j < p.classes; ++j) others += j == voxel.index ? F(0) : row.exp(j);
      entropy = overlap_entropy(others, row.exp(voxel.index), row.max - widen<F>(row.logits[voxel.index * row.step]));
      if (!(row.inverse == row.inverse)) entropy = row.inverse;
    }
    for (int64_t begin = 0; begin < p.classes; begin += 16) {
      F sums[kOverlapSums][16] = {};
      for (int i = 0; counts && i < 16; ++i) {
        const int64_t j = begin + i;
        if (j >= p.classes) break;
        const F probability = row.exp(j) * row.inverse, g = target_of<F>(p, voxel, static_cast<int32_t>(j));
        sums[kBoth][i] = probability * g;
        sums[kOfInput][i] = overlap_of_input(p.squares, probability);
        sums[kOfTarget][i] = overlap_of_input(p.squares, g);
        sums[kEntropy][i] = j == voxel.index ? entropy : F(0);
      }
      const int64_t j = begin + threadIdx.x % 16;
#pragma unroll
      for (int k = 0; k < kOverlapSums; ++k) {
        const F sum = sum_of_each<16>(sums[k]);
        if (threadIdx.x % 32 < 16 && j < p.classes) own_sums[j * kOverlapSums + k] += static_cast<double>(sum);
      }
    }
  }
  store_partials(task, of_warps, values);
}

template <class F, class E>
__global__ void __launch_bounds__(kThreads) any_softmax_gradient(const __grid_constant__ OverlapTask task) {
  const Overlap& p = task.of;
  const int64_t sample = blockIdx.x / task.blocks;
  const double* const grads = p.grads + sample * p.classes * kOverlapSums;
  const double by = p.factor();
  const uint32_t step = task.blocks * kThreads;
#pragma unroll 1
  for (uint32_t v = blockIdx.x % task.blocks * kThreads + threadIdx.x; v < task.voxels; v += step) {
    const Voxel voxel = voxel_at(task, sample, v);
    const AnyProbabilities<F, E> row(p, voxel);
    const auto slope = [&](int64_t j, F probability) {
      const double* const own = grads + j * kOverlapSums;
      return overlap_slope(p.squares, static_cast<F>(own[kBoth] * by), static_cast<F>(own[kOfInput] * by), probability,
                           target_of<F>(p, voxel, static_cast<int32_t>(j)));
    };
    F mean = F(0);
    for (int64_t j = 0; j < p.classes; ++j) {
      const F probability = row.exp(j) * row.inverse;
      mean = fused(probability, slope(j, probability), mean);
    }
    const F of_entropy =
        p.entropy && voxel.index >= 0 ? static_cast<F>(grads[voxel.index * kOverlapSums + kEntropy] * by) : F(0);
    E* const gradient = static_cast<E*>(p.gradient.data) + voxel.gradient;
    for (int64_t j = 0; j < p.classes; ++j) {
      const F probability = row.exp(j) * row.inverse, of_overlap = probability * (slope(j, probability) - mean);
      const F found = fused(of_entropy, probability - F(voxel.index == j), of_overlap);
      gradient[j * p.gradient_stride[kClass]] = narrow<E>(voxel.counts ? found : F(0));
    }
  }
}

}  // namespace overlaps

}  // namespace cudaloss::cuda
