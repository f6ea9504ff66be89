// Rows of vectors with contiguous elements of one dtype, each at the same place in 16 bytes in all operands. A row has
// some lanes of a warp, a warp or a block, whose threads keep u and v in registers from the sums to the gradients. If a
// row does not fit in a block's registers, the last tile stays there and the others are read again, backwards, because
// they are then still in the L2.
#pragma once

#include "cuda/any_vectors.cuh"
#include "cuda/row_span.cuh"

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

// A row's elements in memory, and how to turn them into floats and back.
template <class E>
struct VectorSpan {
  static constexpr int n = RowSpan<E>::kVector;
  RowSpan<E> span;
  Accessor<E> format;

  template <bool kWhole, int kVectors>
  __device__ __forceinline__ void load(int32_t from, int shift, float (&x)[kVectors][n]) const {
    Vector<E, n> words[kVectors];
    if constexpr (kWhole) {
      span.load_all(from, shift, words);
    } else {
      span.load_some(from, shift, words, E{});
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < n; ++k) x[i][k] = format.widened(words[i].element[k]);
    }
  }
};

// A thread's part of a tile, which kLanes threads share.
template <class E, int kLanes, int kVectors>
struct VectorTile {
  static constexpr int n = RowSpan<E>::kVector, kShift = log2_of(kLanes * n), kSize = kVectors << kShift;
  using Floats = float[kVectors][n];
  Floats u, v;

  // From element `from` of a row on; 0 outside it. One branch around the loads of all operands: with a branch for each,
  // a forward of 8,192 fp32 elements took 0.77 ms, not 0.69 (H100).
  __device__ __forceinline__ void load(const VectorParameters<double>& g, const VectorSpan<E> (&of)[3], int32_t from) {
    if (of[0].span.template has_all<kVectors>(from, kShift)) {
      g.differences ? take<true, true>(g, of, from) : take<true, false>(g, of, from);
    } else {
      g.differences ? take<false, true>(g, of, from) : take<false, false>(g, of, from);
    }
  }
  template <bool kWhole, bool kDifferences>
  __device__ __forceinline__ void take(const VectorParameters<double>& g, const VectorSpan<E> (&of)[3], int32_t from) {
    of[0].template load<kWhole>(from, kShift, u);
    of[1].template load<kWhole>(from, kShift, v);
    if constexpr (kDifferences) {
      Floats third;
      of[2].template load<kWhole>(from, kShift, third);
      const float eps = static_cast<float>(g.eps);
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int k = 0; k < n; ++k) {
          const float x = u[i][k], own = kWhole || of[0].span.has(from + (i << kShift) + k) ? eps : 0.0f;
          u[i][k] = x - v[i][k] + own;
          v[i][k] = x - third[i][k] + own;
        }
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

  // Writes multiple(u, v) to a gradient. The last part is kept and stored behind the loop, by one copy of code, as it
  // is loaded: with a copy for each vector, steps with ragged rows of 301 and 511 elements took 1.02 to 1.2 times as
  // long (fp32 and bf16, H200). Rows of classes have the copies (RowTile::store): they have no registers for such a
  // part.
  template <class Multiple>
  __device__ __forceinline__ void store(const VectorSpan<E>& to, int32_t from, const Multiple& multiple) const {
    const int32_t last = to.span.template last_part<kVectors>(from, kShift);
    Vector<E, n> part = {};
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      const int32_t at = from + (i << kShift);
      const bool is_whole = to.span.is_whole(i, from, kShift), is_first = i == 0 && to.span.is_first_part(from);
      if (!is_whole && !is_first && i != last) continue;
      Vector<E, n> words;
#pragma unroll
      for (int k = 0; k < n; ++k) words.element[k] = to.format.narrowed(multiple(u[i][k], v[i][k]));
      if (is_whole) {
        to.span.template put<false>(at, words);
      } else if (is_first) {
        to.span.put_part(at, words);
      } else {
        part = words;
      }
    }
    if (last >= 0) to.span.put_part(from + (last << kShift), part);
  }
};

// Input, target and third: operands and gradients; without data: not wanted.
template <class E>
struct ContiguousVectors {
  VectorParameters<double> g;
  Accessor<E> operands[3], gradients[3];

  __device__ __forceinline__ bool wants_gradients() const {
    return gradients[0].data || gradients[1].data || gradients[2].data;
  }
  template <bool kRagged>
  __device__ __forceinline__ VectorSpan<E> operand(int which, int64_t begin) const {
    return {{operands[which].data + begin, nullptr, g.rows.classes, kRagged}, operands[which]};
  }
  template <bool kRagged>
  __device__ __forceinline__ VectorSpan<E> gradient(int which, int64_t begin) const {
    return {{nullptr, gradients[which].data + begin, g.rows.classes, kRagged}, gradients[which]};
  }
};

// kGradients: gradients can be wanted, so u and v stay in registers. kRagged: 16 bytes can have elements of two rows.
// In one kernel for both kinds of rows, forwards of 8,192 aligned fp32 elements took 1.11 times as long, steps of 4,096
// bf16 elements 1.13 times (H100).
template <class E, int kLanes, int kVectors, int kThreads, int kBlocks, bool kGradients, bool kRagged>
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
  const int32_t lane = static_cast<int32_t>(threadIdx.x % kLanes);
  double sum = 0.0;
  int buffer = 0;
  RowFactor<float> factor;
#pragma unroll 1
  for (uint32_t row = blockIdx.x * kRows; row < p.rows; row += gridDim.x * kRows) {
    Task<float> task = task_at<float>(p, row + (kRows > 1 ? threadIdx.x / kLanes : 0));
    if (kRows == 1 && task.held) continue;
    const VectorSpan<E> rows[3] = {of.template operand<kRagged>(0, offset(p, task.at, kInput)),
                                   of.template operand<kRagged>(1, offset(p, task.at, kTarget)),
                                   of.template operand<kRagged>(2, g.differences ? offset(p, task.at, kThird) : 0)};
    const int32_t skew = rows[0].span.skew(), from = lane * Tile::n - skew;
    const int32_t tiles = kWarps > 1 ? (p.classes + skew + Tile::kSize - 1) / Tile::kSize : 1;
    Tile tile;
    VectorSums sums = {};
#pragma unroll 1
    for (int32_t t = 0; t < tiles; ++t) {
      if (kRows == 1 || !task.held) {
        tile.load(g, rows, from + t * Tile::kSize);
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
      if (kWarps > 1 && kGradients && threadIdx.x == 0) of_block = gains;
    }
    if constexpr (kWarps > 1 && kGradients) {
      __syncthreads();
      gains = of_block;
    }
    buffer ^= 1;
    if constexpr (kGradients) {
      if (task.held || !of.wants_gradients()) continue;
      for (int32_t t = tiles - 1; t >= 0; --t) {
        if (t != tiles - 1) tile.load(g, rows, from + t * Tile::kSize);
        constexpr Place kPlaceOf[] = {kResult, kSecondResult, kThirdResult};
#pragma unroll
        for (int i = 0; i < 3; ++i) {
          if (!of.gradients[i].data) continue;
          tile.store(of.template gradient<kRagged>(i, offset(p, task.at, kPlaceOf[i])), from + t * Tile::kSize,
                     [gains, i](float u, float v) { return gains.gradient(i, u, v); });
        }
        if (kWarps == 1) break;
      }
    }
  }
  reduce_losses<kThreads, (kRows > 1) ? SumsOf::Block : SumsOf::Thread>(p, sum);
}

}  // namespace cudaloss::cuda
