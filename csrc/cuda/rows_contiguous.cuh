// Rows whose classes are contiguous. Some lanes of a warp, a warp, or a block read a row once: a thread keeps its part
// in registers. If a row does not fit in a block's registers, the last tile stays there and the first ones stay in
// shared memory while there is room. Those between are read again, backwards, because they are then still in the L2.
#pragma once

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// The sums of a thread's classes, in the reference of their own maximum; then those of a warp.
template <class E>
struct PartSums {
  float max, below;
  RowNumber<E> others;
};

// The same for kLanes neighbouring threads, in each of them.
template <class E, int kLanes>
__device__ __forceinline__ PartSums<E> joined_part(PartSums<E> part, Reference own, bool smooths) {
  const float max = max_over<kLanes>(part.max);
  const RowNumber<E> others = sum_over<kLanes>(times_power(part.others, ratio_of(own, reference_of(max))));
  return {max, smooths ? sum_over<kLanes>(part.below) : 0.0f, others};
}

// A thread's vectors of a tile: n classes each, kLanes * n apart.
template <class E, int kLanes, int kVectors>
struct RowTile {
  static constexpr int kCount = kVectors, n = RowSpan<E>::kVector, kStep = kLanes * n, kSize = kVectors * kStep;
  static constexpr bool kKeepsExp = sizeof(E) == sizeof(float);  // halves compute exp again, which is cheap
  using V = typename RowSpan<E>::V;
  V v[kVectors];
  int32_t left;  // how many of the row's classes there are from the tile's first one on

  // Checks the end after every four vectors, so that the rest of a tile after a short row's end costs little.
  template <class Visit>
  __device__ __forceinline__ void each(const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (kVectors > 8 && kLanes > 32 && i > 0 && i % 4 == 0 && i * kStep >= left) break;
#pragma unroll
      for (int k = 0; k < n; ++k) visit(i * kStep + k, v[i].element[k]);
    }
  }
  __device__ __forceinline__ void load(const RowSpan<E>& span, int32_t from, int lane) {
    left = span.classes - (from - lane * n);
    span.load(from, kStep, v);
  }

  // Adds the classes from `from` on to the sums, without the one at `target`.
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

  // Turns logits into gradients; with kOfExp the tile holds exp(x) already.
  template <bool kOfExp>
  __device__ __forceinline__ void to_gradients(const Gain& gain, Reference reference) {
    const Elements<E> elements(reference.power);
    if (gain.before != 1.0f || (!kOfExp && reference.shift != 0.0f)) {
      each([&](int, E& x) {
        const float e = kOfExp ? widen<float>(x) : elements.exp(widen<float>(x) - reference.shift);
        x = narrow<E>(gain.template times<E>(e * gain.before));
      });
    } else {
      each([&](int, E& x) {
        x = narrow<E>(gain.template times<E>(kOfExp ? widen<float>(x) : elements.exp(widen<float>(x))));
      });
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

// kTiled: a row can have several tiles; the first `kept` go to shared memory.
template <class E, int kLanes, int kVectors, bool kTiled, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_of_contiguous_classes(const __grid_constant__ RowParameters<double> p,
                               const __grid_constant__ typename Loss::InFloat loss, bool ragged, int kept) {
  using Tile = RowTile<E, kLanes, kVectors>;
  using V = typename Tile::V;
  constexpr int kRows = kThreads / kLanes, kWarps = kLanes > 32 ? kLanes / 32 : 1;
  extern __shared__ __align__(16) char memory[];
  __shared__ PartSums<E> warps[2][kWarps];
  release_next();
  wait_for_prior();
  if (all_held<float>(p)) return;
  V(*const stage)[kVectors][kThreads] = reinterpret_cast<V(*)[kVectors][kThreads]>(memory);
  const int lane = threadIdx.x % kLanes;
  double sum = 0.0;
  int turn = 0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kRows; first < p.rows; first += gridDim.x * kRows) {
    Task<float> task = task_at<float>(p, first + (kRows > 1 ? threadIdx.x / kLanes : 0));
    if (kRows == 1 && task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * Tile::n - span.skew();
    const int32_t tiles = kTiled ? (p.classes + span.skew() + Tile::kSize - 1) / Tile::kSize : 1;
    Tile tile;
    if (!task.held) tile.load(span, from, lane);  // before it is known whether the row counts
    read_target<Loss::kIsPart>(p, task);
    const bool reads = Loss::kIsPart ? task.counts && task.is_class : task.target >= 0;
    const float target = task.target >= 0 ? widen<float>(span.input[task.target]) : (Loss::kIsPart ? -INFINITY : 0.0f);
    const float base = select(target == -INFINITY, 0.0f, target);
    read_factors(p, factor, task);
    if constexpr (Loss::kIsPart) task.class_weight = grad_target_of(p, task);
    PartSums<E> part = {-INFINITY, 0.0f, {}};
    Reference own = reference_of(part.max);
    typename Elements<E>::Sum of_exp;
    if (reads) {
#pragma unroll 1
      for (int32_t t = 0; t < tiles; ++t) {
        if (t > 0) tile.load(span, from + t * Tile::kSize, lane);
        if (t < kept) {
#pragma unroll
          for (int i = 0; i < kVectors; ++i) stage[t][i][threadIdx.x] = tile.v[i];
        }
        tile.take(!kTiled || t == 0, part, own, of_exp, span, from + t * Tile::kSize, task.target, base, loss.smooths);
        if (!kTiled) break;
      }
    }
    part.others = of_exp.total();
    part = joined_part<E, (kWarps > 1 ? 32 : kLanes)>(part, own, loss.smooths);
    if constexpr (kWarps > 1) {
      if (threadIdx.x % 32 == 0) warps[turn][threadIdx.x / 32] = part;
      __syncthreads();
      part = warps[turn][threadIdx.x % kWarps];
      part = joined_part<E, kWarps>(part, reference_of(part.max), loss.smooths);
      turn ^= 1;  // a warp that is ahead writes the other one
    }
    const Reference reference = reference_of(part.max);
    const float nothing = without_target(task.counts);
    const auto result = finished<E>(loss, {part.max, part.others, part.below}, target, task.class_weight, task.factor);
    const Gain gain = result.gain;
    if (lane == 0 && !task.held) {
      hand_in(p, task.at, weighted(p, task, reads ? as_double(result.loss(loss)) : double{nothing}), sum);
      if constexpr (Loss::kIsPart) hand_in_target(p, task.at, target);
    }
    if (!span.gradient || task.held) continue;
    if (!reads) {
      Tile none;
      none.left = Tile::kSize;
      none.each([&](int, E& x) { x = narrow<E>(nothing); });
      for (int32_t t = 0; t < tiles; ++t) none.template store<false>(span, from + t * Tile::kSize);
      continue;
    }
    if constexpr (Tile::kKeepsExp) {
      tile.template to_gradients<true>(gain.in_reference(ratio_of(own, reference)), reference);
    } else {
      tile.template to_gradients<false>(gain, reference);
    }
    tile.template store<kTiled>(span, from + (tiles - 1) * Tile::kSize);
#pragma unroll 1
    for (int32_t t = kTiled ? tiles - 2 : -1; t >= 0; --t) {
      if (t < kept) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) tile.v[i] = stage[t][i][threadIdx.x];
      } else {
        tile.load(span, from + t * Tile::kSize, lane);
      }
      tile.left = Tile::kSize;
      tile.template to_gradients<false>(gain, reference);
      tile.template store<true>(span, from + t * Tile::kSize);
    }
    // Overwrites the gradient at the target, in the thread that wrote it.
    const int32_t at = task.target - from;
    if ((!Loss::kIsPart || task.target >= 0) && at >= 0 && at % Tile::kStep < Tile::n)
      span.gradient[task.target] = narrow<E>(gain.at_target);
  }
  hand_in_sum<kThreads, (kLanes < kThreads)>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
