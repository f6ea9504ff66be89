// Rows whose classes lie side by side. A row has some lanes of a warp, a warp, or a block, and is read once: a thread
// keeps its part in registers. Of a row beyond a block's registers the last tile stays there and the first ones stay in
// shared memory, as far as that reaches; those between are read again, backwards, as they are still in the L2 then.
#pragma once

#include <cuda_pipeline.h>

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// What a thread finds of its classes, each in the reference of its own maximum; and a warp's of its threads.
template <class E>
struct PartSums {
  float max, below;
  RowNumber<E> others;
};

// The same of kLanes threads side by side, for each of them.
template <class E, int kLanes>
__device__ __forceinline__ PartSums<E> joined_part(PartSums<E> part, Reference own, bool smooths) {
  const float max = max_over<kLanes>(part.max);
  const RowNumber<E> others = sum_over<kLanes>(times_power(part.others, ratio_of(own, reference_of(max))));
  return {max, smooths ? sum_over<kLanes>(part.below) : 0.0f, others};
}

// What a row's warps tell each other: their sums, and what one of them makes of these.
template <class E, int kWarps>
struct Meeting {
  PartSums<E> parts[kWarps];
  Gain gain;
  float max;
};

// The vectors that a thread has of a tile: n classes each, kLanes * n apart.
template <class E, int kLanes, int kVectors>
struct RowTile {
  static constexpr int kCount = kVectors, n = RowSpan<E>::kVector, kStep = kLanes * n, kSize = kVectors * kStep;
  static constexpr bool kKeepsExp = sizeof(E) == sizeof(float);  // halves are brought to exp again, which is cheap
  using V = typename RowSpan<E>::V;
  V v[kVectors];

  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
#pragma unroll
      for (int k = 0; k < n; ++k) visit(i * kStep + k, v[i].element[k]);
    }
  }
  __device__ __forceinline__ void load(const RowSpan<E>& span, int32_t from) { span.load(from, kStep, v); }
  // Of vectors in shared memory, those that are whole.
  template <int kThreads>
  __device__ __forceinline__ void load(const RowSpan<E>& span, int32_t from, const V (&stage)[kVectors][kThreads]) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) v[i] = stage[i][threadIdx.x];
    if (!span.is_whole(from) || !span.is_whole(from + (kVectors - 1) * kStep)) span.mend(from, kStep, v);
  }

  // Adds the classes from `from` on to the sums, the one at `target` left out.
  __device__ __forceinline__ void take(bool is_first, PartSums<E>& part, Reference& own,
                                       typename Elements<E>::Sum& of_exp, const RowSpan<E>& span, int32_t from,
                                       int32_t target, float base, bool smooths) {
    if (smooths) {
      float below = 0.0f;
      each([&](int j, E x) { below += select(span.has(from + j), base - widen<float>(x), 0.0f); });
      part.below += below;
    }
    if (target >= 0 && static_cast<uint32_t>(target - from) < kSize && (target - from) % kStep < n) {
      each([&](int j, E& x) {
        if (j == target - from) x = kMinusInfinity<E>;
      });
    }
    const float max = max_in(v, part.max);
    if (is_first || !(max <= part.max)) {
      const Reference higher = reference_of(max);
      if (!is_first) of_exp.scale(ratio_of(own, higher));
      part.max = max;
      own = higher;
    }
    const Elements<E> elements(own.power);
    if (own.shift != 0.0f) {
      each([&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x) - own.shift)); });
    } else {
      each([&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x))); });
    }
  }
  __device__ __forceinline__ static void keep(float& x, float e) { x = e; }
  template <class Half>
  __device__ __forceinline__ static void keep(Half&, float) {}

  // Logits to gradients, or, of the tile whose logits have become exp(x) already, these.
  template <bool kOfExp>
  __device__ __forceinline__ void to_gradients(const Gain& gain, Reference reference) {
    const Elements<E> elements(reference.power);
    if (gain.before != 1.0f || (!kOfExp && reference.shift != 0.0f)) {
      each([&](int, E& x) {
        const float e = kOfExp ? widen<float>(x) : elements.exp(widen<float>(x) - reference.shift);
        x = narrow<E>(gain.times(e * gain.before));
      });
    } else {
      each([&](int, E& x) { x = narrow<E>(gain.times(kOfExp ? widen<float>(x) : elements.exp(widen<float>(x)))); });
    }
  }
  template <bool kStreams>
  __device__ __forceinline__ void store(const RowSpan<E>& span, int32_t from) const {
    if (span.is_whole(from) && span.is_whole(from + (kVectors - 1) * kStep)) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) span.template store_whole<kStreams>(from + i * kStep, v[i]);
      return;
    }
#pragma unroll
    for (int i = 0; i < kVectors; ++i) span.template store<kStreams>(from + i * kStep, v[i]);
  }
};

// Begins to copy a row's tile to shared memory, each thread its own vectors: it needs no barrier to read them.
template <class Tile, class E, int kThreads>
__device__ __forceinline__ void prefetch(const RowSpan<E>& span, int32_t from,
                                         typename Tile::V (&stage)[Tile::kCount][kThreads]) {
#pragma unroll
  for (int i = 0; i < Tile::kCount; ++i) {
    if (span.is_whole(from + i * Tile::kStep)) {
      __pipeline_memcpy_async(&stage[i][threadIdx.x], span.input + from + i * Tile::kStep, kVectorBytes);
    }
  }
}

// kTiled: a row may have several tiles. The first `kept` of each are in shared memory before its turn comes: as soon as
// one has been read for the last time, the next row's is on its way.
template <class E, int kLanes, int kVectors, bool kTiled, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_of_contiguous_classes(const __grid_constant__ RowParameters<double> p,
                               const __grid_constant__ typename Loss::InFloat loss, bool ragged, int kept) {
  using Tile = RowTile<E, kLanes, kVectors>;
  using V = typename Tile::V;
  constexpr int kRows = kThreads / kLanes, kWarps = kLanes > 32 ? kLanes / 32 : 1;
  extern __shared__ __align__(16) char memory[];
  __shared__ Meeting<E, kWarps> meeting;
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  V(*const stage)[kVectors][kThreads] = reinterpret_cast<V(*)[kVectors][kThreads]>(memory);
  const int lane = threadIdx.x % kLanes;
  const uint32_t stride = gridDim.x * kRows;
  uint32_t row = blockIdx.x * kRows + (kRows > 1 ? threadIdx.x / kLanes : 0);
  const auto prefetch_row = [&](uint32_t row, int32_t t) {
    if (row >= p.rows) return;
    const RowSpan<E> span = span_of<E>(p, place_of(p, row), ragged);
    prefetch<Tile>(span, lane * Tile::n - span.skew() + t * Tile::kSize, stage[t]);
  };
  for (int32_t t = 0; t < kept; ++t) prefetch_row(row, t);
  double sum = 0.0;
  RowFactor<float> factor;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kRows; first < p.rows; first += stride, row += stride) {
    Task<float> task = task_at<float>(p, row);
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * Tile::n - span.skew();
    const int32_t tiles = kTiled ? (p.classes + span.skew() + Tile::kSize - 1) / Tile::kSize : 1;
    read_target(p, task);
    const bool reads = task.target >= 0;
    const float target = reads ? widen<float>(span.input[task.target]) : 0.0f;
    const float base = select(target == -INFINITY, 0.0f, target);
    __pipeline_wait_prior(0);
    Tile tile;
    PartSums<E> part = {-INFINITY, 0.0f, {}};
    Reference own = reference_of(part.max);
    typename Elements<E>::Sum of_exp;
    if (reads) {
#pragma unroll 1
      for (int32_t t = 0; t < tiles; ++t) {
        const int32_t at = from + t * Tile::kSize;
        if (!kTiled || t < kept) {
          tile.load(span, at, stage[t]);
        } else {
          tile.load(span, at);
        }
        tile.take(!kTiled || t == 0, part, own, of_exp, span, at, task.target, base, loss.smooths);
        if (!kTiled) break;
      }
    }
    if (tiles <= kept) prefetch_row(row + stride, tiles - 1);
    part.others = of_exp.total();
    part = joined_part<E, (kWarps > 1 ? 32 : kLanes)>(part, own, loss.smooths);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) meeting.parts[threadIdx.x / 32] = part;
      __syncthreads();
    }
    const float nothing = without_target(task.counts);
    Gain gain = {nothing, 0.0f, 0.0f, nothing, 1.0f};
    RowResult<E> result;
    if (kWarps == 1 || threadIdx.x < 32) {
      if constexpr (kWarps > 1) {
        part = meeting.parts[threadIdx.x % kWarps];
        part = joined_part<E, kWarps>(part, reference_of(part.max), loss.smooths);
      }
      read_factors(p, factor, task);
      result = finished<E>(loss, {part.max, part.others, part.below}, target, task.class_weight, task.factor);
      if (reads) gain = result.gain;
      if (kWarps > 1 && lane == 0) {
        meeting.gain = gain;
        meeting.max = part.max;
      }
    }
    if constexpr (kWarps > 1) __syncthreads();
    if (lane == 0 && !task.held) {
      hand_in(p, task.at, weighted(p, task, reads ? as_double(result.loss(loss)) : double{nothing}), sum);
    }
    if constexpr (kWarps > 1) {
      gain = meeting.gain;
      part.max = meeting.max;
    }
    const bool writes = span.gradient && !task.held;
    const Reference reference = reference_of(part.max);
    if (writes && reads) {
      if constexpr (Tile::kKeepsExp) {
        tile.template to_gradients<true>(gain.in_reference(ratio_of(own, reference)), reference);
      } else {
        tile.template to_gradients<false>(gain, reference);
      }
      tile.template store<kTiled>(span, from + (tiles - 1) * Tile::kSize);
    }
#pragma unroll 1
    for (int32_t t = kTiled ? tiles - 2 : -1; t >= 0; --t) {
      const int32_t at = from + t * Tile::kSize;
      if (writes && reads) {
        if (t < kept) {
          tile.load(span, at, stage[t]);
        } else {
          tile.load(span, at);
        }
        tile.template to_gradients<false>(gain, reference);
        tile.template store<true>(span, at);
      }
      if (t < kept) prefetch_row(row + stride, t);
    }
    if (writes && !reads) {
      tile.each([&](int, E& x) { x = narrow<E>(nothing); });
      for (int32_t t = 0; t < tiles; ++t) tile.template store<false>(span, from + t * Tile::kSize);
    }
    // Over what stands there: by the thread that has written it.
    const int32_t at = task.target - from;
    if (writes && reads && at >= 0 && at % Tile::kStep < Tile::n) {
      span.gradient[task.target] = narrow<E>(gain.at_target);
    }
  }
  hand_in_sum<kThreads, (kLanes < kThreads)>(p, sum);
}

}  // namespace cudaloss::cuda
