// Rows too long for a block's registers: a block reads its row, and to write the gradients again, backwards, so that
// part of it is still in the L2; the last tile stays in registers.
#pragma once

#include "cuda/rows_registers.cuh"

namespace cudaloss::cuda {

template <class E, int kVectors, int kThreads>
struct RowTile {
  static constexpr int n = RowSpan<E>::kVector, kSize = kThreads * kVectors * n;
  float x[kVectors][n];

  // Visits each vector with the class it begins at.
  template <class Visit>
  __device__ __forceinline__ void each(int32_t begin, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      visit(begin + (i * kThreads + static_cast<int32_t>(threadIdx.x)) * n, x[i]);
    }
  }
  __device__ __forceinline__ void load(const RowSpan<E>& span, int32_t begin) {
    span.load_all(begin + static_cast<int32_t>(threadIdx.x) * n, kThreads * n, x);
  }
  __device__ __forceinline__ void patch_in(int32_t begin, int32_t target, float value) {
    if (static_cast<uint32_t>(target - begin) >= kSize) return;
    each(begin, [&](int32_t j, float (&v)[n]) { patch(v, target - j, value); });
  }
  // What the smoothing sums up: of the elements that are there, their distances from `base`.
  __device__ __forceinline__ float below(int32_t begin, float base, int32_t classes) {
    float sum = 0.0f;
    each(begin, [&](int32_t j, float (&v)[n]) {
      float part = 0.0f;
#pragma unroll
      for (int k = 0; k < n; ++k) {
        part += select(static_cast<uint32_t>(j + k) < static_cast<uint32_t>(classes), base - v[k], 0.0f);
      }
      sum += part;
    });
    return sum;
  }
  __device__ __forceinline__ float max_with(float max) {
    each(0, [&](int32_t, float (&v)[n]) {
#pragma unroll
      for (int k = 0; k < n; ++k) max = max_or_nan(max, v[k]);
    });
    return max;
  }
  template <class Change>
  __device__ __forceinline__ void change(const Change& change) {
    each(0, [&](int32_t, float (&v)[n]) {
#pragma unroll
      for (int k = 0; k < n; ++k) v[k] = change(v[k]);
    });
  }
  __device__ __forceinline__ void store(const RowSpan<E>& span, int32_t begin) {
    each(begin, [&](int32_t j, float (&v)[n]) {
      if (j < span.classes) span.template store<true>(j, v);
    });
  }
};

template <class E, int kVectors, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_read_twice(const __grid_constant__ RowParameters<double> p,
                    const __grid_constant__ typename Loss::InFloat loss) {
  using Tile = RowTile<E, kVectors, kThreads>;
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  __shared__ BlockRow<E, kThreads / 32> shared;
  const RowLanes<E, kThreads> lanes = {shared};
  double sum = 0.0;
#pragma unroll 1
  for (uint32_t row = blockIdx.x; row < p.rows; row += gridDim.x) {
    const Task<float> task = task_of<float, true>(p, row);
    if (task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at);
    const bool reads = task.target >= 0;
    const int32_t skew = span.skew(), tiles = (p.classes + skew + Tile::kSize - 1) / Tile::kSize;
    const float target = reads ? widen<float>(span.input[task.target]) : 0.0f;
    const float base = select(target == -INFINITY, 0.0f, target);
    Tile tile;
    float max = -INFINITY, below = 0.0f;
    Reference own = reference_of(max);
    typename Elements<E>::Sum of_exp;
#pragma unroll 1
    for (int32_t t = 0; t < (reads ? tiles : 0); ++t) {
      const int32_t begin = t * Tile::kSize - skew;
      tile.load(span, begin);
      if (loss.smooths) below += tile.below(begin, base, p.classes);
      tile.patch_in(begin, task.target, -INFINITY);
      const float top = tile.max_with(max);
      if (!(top <= max)) {
        const Reference higher = reference_of(top);
        of_exp.scale(ratio_of(own, higher));
        max = top;
        own = higher;
      }
      if (own.shift != 0.0f) tile.change([&](float x) { return x - own.shift; });
      const Elements<E> elements(own);
      tile.change([&](float x) {
        const float e = elements.exp(x);
        of_exp.add(e);
        return e;
      });
    }
    max = lanes.max(max);
    const Reference reference = reference_of(max);
    const float ratio = ratio_of(own, reference);
    RowNumber<E> total = times_power(of_exp.total(), ratio);
    lanes.sums(total, below, loss.smooths);
    RowResult<E> result = {};
    if (threadIdx.x < 32) {
      result = reads ? finished<E, Loss>(loss, {max, total}, target, below, task.class_weight, task.factor)
                     : finished_without<E>(task.counts);
      if (threadIdx.x == 0) hand_in(p, task.at, as_double(result.loss) * double{task.weight}, sum);
    }
    Gain gain = lanes.told(result.gain);
    if (!span.gradient) continue;
    if (!reads) tile.change([&](float) { return 0.0f; });
    const Elements<E> elements(reference);
    const float back = select(gain.unlifts, Elements<E>::kBack, 1.0f);
    const Gain later = gain;
    gain.hi *= ratio;
    gain.lo *= ratio;
#pragma unroll 1
    for (int32_t t = tiles - 1; t >= 0; --t) {
      const int32_t begin = t * Tile::kSize - skew;
      if (t < tiles - 1) {
        gain = later;
        if (reads) {
          tile.load(span, begin);
          if (reference.shift != 0.0f) tile.change([&](float x) { return x - reference.shift; });
          tile.change([&](float x) { return elements.exp(x); });
        }
      }
      if (gain.unlifts) tile.change([&](float e) { return e * back; });
      tile.change([&](float e) { return gain.times(e); });
      tile.patch_in(begin, task.target, gain.at_target);
      tile.store(span, begin);
    }
  }
  hand_in_sum<kThreads, false>(p, sum);
}

}  // namespace cudaloss::cuda
