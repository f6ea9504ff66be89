// Rows of vectors with contiguous elements of one dtype, in whole words of 16 bytes. A row has some lanes of a warp, a
// warp or a block, whose threads keep u and v in registers from the sums to the gradients. If a row does not fit in a
// block's registers, the last tile stays there and the others are read again, backwards, because they are then still in
// the L2.
#pragma once

#include "cuda/accessor.cuh"
#include "cuda/any_vectors.cuh"

namespace cudaloss::cuda {

template <int kLanes>
__device__ __forceinline__ VectorSums joined_sums(VectorSums sums) {
#pragma unroll
  for (int distance = kLanes / 2; distance > 0; distance /= 2) {
    sums.uu += __shfl_xor_sync(~0u, sums.uu, distance);
    sums.vv += __shfl_xor_sync(~0u, sums.vv, distance);
    sums.third += __shfl_xor_sync(~0u, sums.third, distance);
  }
  return sums;
}

// A thread's part of a tile, which kLanes threads share.
template <class E, int kLanes, int kVectors>
struct VectorTile {
  static constexpr int n = kVectorBytes / sizeof(E), kStep = kLanes * n, kSize = kVectors * kStep;
  float u[kVectors][n], v[kVectors][n];

  // 0 after the row's end. Without a guard all loads start before the first is used.
  __device__ __forceinline__ void load(const VectorParameters<double>& g, const Accessor<E> (&of)[3],
                                       const int64_t (&begin)[3], int32_t from) {
    if (from + (kVectors - 1) * kStep < g.rows.classes) {
      g.differences ? take<true, true>(g, of, begin, from) : take<true, false>(g, of, begin, from);
    } else {
      g.differences ? take<false, true>(g, of, begin, from) : take<false, false>(g, of, begin, from);
    }
  }
  template <bool kWhole, bool kDifferences>
  __device__ __forceinline__ void take(const VectorParameters<double>& g, const Accessor<E> (&of)[3],
                                       const int64_t (&begin)[3], int32_t from) {
    const float eps = static_cast<float>(g.eps);
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + i * kStep;
#pragma unroll
      for (int k = 0; k < n; ++k) u[i][k] = v[i][k] = 0.0f;
      if (!kWhole && j >= g.rows.classes) continue;
      const auto x = of[0].template load_vector<n>(begin[0] + j), t = of[1].template load_vector<n>(begin[1] + j);
      if constexpr (kDifferences) {
        const auto z = of[2].template load_vector<n>(begin[2] + j);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          u[i][k] = widen<float>(x.element[k]) - widen<float>(t.element[k]) + eps;
          v[i][k] = widen<float>(x.element[k]) - widen<float>(z.element[k]) + eps;
        }
      } else {
#pragma unroll
        for (int k = 0; k < n; ++k) u[i][k] = widen<float>(x.element[k]), v[i][k] = widen<float>(t.element[k]);
      }
    }
  }

  __device__ __forceinline__ void add(VectorSums& sums) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < n; ++k) {
        const double of_u = u[i][k], of_v = v[i][k];
        sums.uu = fused(of_u, of_u, sums.uu);
        sums.vv = fused(of_v, of_v, sums.vv);
        sums.third = fused(of_u, of_v, sums.third);
      }
    }
  }

  // Writes multiple(u, v) to `gradient`.
  template <class Multiple>
  __device__ __forceinline__ void store(const Accessor<E>& gradient, int64_t begin, int32_t from, int32_t classes,
                                        const Multiple& multiple) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t j = from + i * kStep;
      if (j >= classes) continue;
      float value[n];
#pragma unroll
      for (int k = 0; k < n; ++k) value[k] = multiple(u[i][k], v[i][k]);
      gradient.template store_vector<n>(begin + j, value);
    }
  }
};

template <class E>
struct ContiguousVectors {
  VectorParameters<double> g;
  Accessor<E> operands[3], first, second;  // without data: not wanted
};

// kGradients: gradients are wanted, so u and v stay in registers.
template <class E, int kLanes, int kVectors, int kThreads, int kBlocks, bool kGradients>
__global__ void __launch_bounds__(kThreads, kBlocks)
    vectors_in_registers(const __grid_constant__ ContiguousVectors<E> of) {
  using Tile = VectorTile<E, kLanes, kVectors>;
  constexpr int kRows = kThreads / kLanes, kWarps = kLanes > 32 ? kLanes / 32 : 1;
  const VectorParameters<double>& g = of.g;
  const RowParameters<double>& p = g.rows;
  __shared__ VectorSums warps[2][kWarps];  // for two rows in turn: a warp may be ahead
  __shared__ VectorGains<float> of_block;
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  const int32_t from = static_cast<int32_t>(threadIdx.x % kLanes) * Tile::n;
  const int32_t tiles = kWarps > 1 ? (p.classes + Tile::kSize - 1) / Tile::kSize : 1;
  double sum = 0.0;
  int buffer = 0;
  RowFactor<float> factor;
#pragma unroll 1
  for (uint32_t row = blockIdx.x * kRows; row < p.rows; row += gridDim.x * kRows) {
    Task<float> task = task_at<float>(p, row + (kRows > 1 ? threadIdx.x / kLanes : 0));
    if (kRows == 1 && task.held) continue;
    const int64_t begin[3] = {offset(p, task.at, kInput), offset(p, task.at, kTarget),
                              g.differences ? offset(p, task.at, kThird) : 0};
    Tile tile;
    VectorSums sums = {};
#pragma unroll 1
    for (int32_t t = 0; t < tiles; ++t) {
      if (kRows == 1 || !task.held) {
        tile.load(g, of.operands, begin, from + t * Tile::kSize);
        tile.add(sums);
      }
      if (kWarps == 1) break;
    }
    task.counts = !task.held && (!p.mask || p.mask[offset(p, task.at, kMask)] != 0);
    sums = joined_sums<(kWarps > 1 ? 32 : kLanes)>(sums);
    VectorGains<float> gains;
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) warps[buffer][threadIdx.x / 32] = sums;
      __syncthreads();
    }
    if (kWarps == 1 || threadIdx.x < 32) {  // fp64 is slow on many GPUs: only one warp computes it
      if constexpr (kWarps > 1) sums = joined_sums<kWarps>(warps[buffer][threadIdx.x % kWarps]);
      read_factors(p, factor, task);
      double loss;
      gains = finished(g, task, sums, loss);
      if (threadIdx.x % kLanes == 0 && !task.held) add_loss(p, task.at, weighted(p, task, loss), sum);
      if (kWarps > 1 && threadIdx.x == 0) of_block = gains;
    }
    if constexpr (kWarps > 1 && kGradients) {
      __syncthreads();
      gains = of_block;
    }
    buffer ^= 1;
    if constexpr (kGradients) {
      if (task.held) continue;
      for (int32_t t = tiles - 1; t >= 0; --t) {
        if (t != tiles - 1) tile.load(g, of.operands, begin, from + t * Tile::kSize);
        if (of.first.data) {
          tile.store(of.first, offset(p, task.at, kResult), from + t * Tile::kSize, p.classes,
                     [&](float u, float v) { return gains.input(u, v); });
        }
        if (of.second.data) {
          tile.store(of.second, offset(p, task.at, kSecondResult), from + t * Tile::kSize, p.classes,
                     [&](float u, float v) { return gains.target(u, v); });
        }
        if (kWarps == 1) break;
      }
    }
  }
  reduce_losses<kThreads, (kRows > 1) ? SumsOf::Block : SumsOf::Thread>(p, sum);
}

}  // namespace cudaloss::cuda
