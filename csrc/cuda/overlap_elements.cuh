// Overlap of each element's own probability: a block has some tiles of one class of a sample.
// H200, (8, 1, 256, 256, 128) fp32, forward and step: 0.138 and 0.33 ms (the bytes at torch.add's speed: 0.12 and
// 0.31).
#pragma once

#include "cuda/overlap_voxels.cuh"

namespace cudaloss::cuda {

namespace overlaps {

template <class E>
using ElementArithmetic = std::conditional_t<sizeof(E) == 2, FastFloat, Beside<E>>;

// How a tile of one class is read. Dense: no mask, and target and gradient of the input's dtype, all of them contiguous
// in whole vectors; Any: everything else.
enum class Reading { Dense, Any };
// Of a dense tile a thread has vectors, otherwise every kThreads-th voxel.
template <class E>
constexpr int kOfVector = kVectorBytes / sizeof(E);
template <class E, Reading kReading>
struct ElementTile {
  using F = Beside<E>;
  F x[kVoxels], g[kVoxels];
  bool counts[kVoxels];
  int64_t at[kVoxels];  // in the gradient; -1: beyond the last voxel

  __device__ __forceinline__ void load(const OverlapTask& task, int64_t sample, int32_t j, uint32_t first) {
    const Overlap& p = task.of;
    const int64_t of_input = j * p.input_stride[kClass], of_target = j * p.target_stride[kClass];
    if constexpr (kReading == Reading::Dense) {
      constexpr int n = kOfVector<E>;
      const E* const input = static_cast<const E*>(p.input.data) + sample * p.input_stride[kSample] + of_input;
      const E* const target = static_cast<const E*>(p.target.data) + sample * p.target_stride[kSample] + of_target;
#pragma unroll
      for (int i = 0; i < kVoxels; i += n) {
        const uint32_t v = first + i * kThreads + threadIdx.x * n;
        const bool has = v < task.voxels;
        Vector<E, n> a = {}, b = {};
        if (has) a = *reinterpret_cast<const Vector<E, n>*>(input + v);
        if (has) b = *reinterpret_cast<const Vector<E, n>*>(target + v);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          x[i + k] = widen<F>(a.element[k]), g[i + k] = widen<F>(b.element[k]);
          counts[i + k] = has;
          at[i + k] = has ? sample * p.gradient_stride[kSample] + j * p.gradient_stride[kClass] + v + k : -1;
        }
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVoxels; ++i) {
        const uint32_t v = first + i * kThreads + threadIdx.x;
        counts[i] = false, at[i] = -1;
        if (v >= task.voxels) continue;
        const Voxel voxel = voxel_at(task, sample, v);
        at[i] = voxel.gradient + j * p.gradient_stride[kClass];
        counts[i] = voxel.counts;
        x[i] = is_wrong(p, voxel) ? F(NAN) : widen<F>(logits_at<E>(p, voxel)[of_input]);
        g[i] = target_of<F>(p, voxel, j);
      }
    }
  }
  __device__ __forceinline__ void store(E* gradient) const {
    if constexpr (kReading == Reading::Dense) {
      constexpr int n = kOfVector<E>;
#pragma unroll
      for (int i = 0; i < kVoxels; i += n) {
        Vector<E, n> out;
#pragma unroll
        for (int k = 0; k < n; ++k) out.element[k] = narrow<E>(x[i + k]);
        if (at[i] >= 0) *reinterpret_cast<Vector<E, n>*>(gradient + at[i]) = out;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kVoxels; ++i) {
        if (at[i] >= 0) gradient[at[i]] = narrow<E>(counts[i] ? x[i] : F(0));
      }
    }
  }
};

template <class E, Reading kReading, bool kHasEntropy>
__global__ void __launch_bounds__(kThreads) element_sums(const __grid_constant__ OverlapTask task) {
  using F = Beside<E>;
  const Overlap& p = task.of;
  __shared__ double of_warps[kWarps * kOverlapSums];
  release_next();
  const int64_t sample = blockIdx.x / task.blocks / p.classes;
  const auto j = static_cast<int32_t>(blockIdx.x / task.blocks % p.classes);
  double total[kOverlapSums] = {};
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kTile; first < task.voxels; first += task.blocks * kTile) {
    ElementTile<E, kReading> tile;
    F sums[kOverlapSums] = {};
    tile.load(task, sample, j, first);
#pragma unroll
    for (int i = 0; i < kVoxels; ++i) {
      if (!tile.counts[i]) continue;
      const OverlapElement<F> term = overlap_element<ElementArithmetic<E>>(p.activation, tile.x[i], tile.g[i]);
      sums[kBoth] = fused(term.p, tile.g[i], sums[kBoth]);
      sums[kOfInput] += overlap_of_input(p.squares, term.p);
      sums[kOfTarget] += overlap_of_input(p.squares, tile.g[i]);
      if (kHasEntropy) sums[kEntropy] += term.entropy;
    }
#pragma unroll
    for (int k = 0; k < kOverlapSums; ++k) total[k] += static_cast<double>(sums[k]);
  }
#pragma unroll
  for (int k = 0; k < kOverlapSums; ++k) {
    for (int distance = 16; distance > 0; distance /= 2) total[k] += __shfl_xor_sync(~0u, total[k], distance);
    if (threadIdx.x % 32 == 0) of_warps[threadIdx.x / 32 * kOverlapSums + k] = total[k];
  }
  store_partials(task, of_warps, kOverlapSums);
}

template <class E, Reading kReading>
__global__ void __launch_bounds__(kThreads) element_gradient(const __grid_constant__ OverlapTask task) {
  using F = Beside<E>;
  const Overlap& p = task.of;
  const int64_t sample = blockIdx.x / task.blocks / p.classes;
  const auto j = static_cast<int32_t>(blockIdx.x / task.blocks % p.classes);
  const double* const grads = p.grads + (sample * p.classes + j) * kOverlapSums;
  const double by = p.factor();
  const F of_both = static_cast<F>(grads[kBoth] * by), of_p = static_cast<F>(grads[kOfInput] * by);
  const F of_entropy = static_cast<F>(grads[kEntropy] * by);
  E* const gradient = static_cast<E*>(p.gradient.data);
#pragma unroll 1
  for (uint32_t first = blockIdx.x % task.blocks * kTile; first < task.voxels; first += task.blocks * kTile) {
    ElementTile<E, kReading> tile;
    tile.load(task, sample, j, first);
#pragma unroll
    for (int i = 0; i < kVoxels; ++i) {
      const OverlapElement<F> term = overlap_element<ElementArithmetic<E>>(p.activation, tile.x[i], tile.g[i]);
      const F of_overlap = overlap_slope(p.squares, of_both, of_p, term.p, tile.g[i]) * term.slope;
      tile.x[i] = fused(of_entropy, term.p - tile.g[i], of_overlap);
    }
    tile.store(gradient);
  }
}

}  // namespace overlaps

}  // namespace cudaloss::cuda
