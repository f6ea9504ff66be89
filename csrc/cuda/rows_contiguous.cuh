// Rows whose classes lie side by side. A row has some lanes of a warp, a warp, or a block, and is read once: a thread
// keeps its part in registers. Of a row beyond a block's registers the last tile stays there and the first ones stay in
// shared memory, as far as that reaches; those between are read again, backwards, as they are still in the L2 then.
#pragma once

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

// What a thread finds of its classes, each in the reference of its own maximum; and a warp's of its threads.
template <class E>
struct PartSums {
  float max, below;
  RowNumber<E> others;
};

// The sums of all lanes' classes, in each of them. Every warp adds up what the block's warps have left in `shared`.
template <class E, int kLanes>
__device__ __forceinline__ RowSums<E> row_sums(PartSums<E> part, Reference own, bool smooths, PartSums<E>* shared) {
  constexpr int kInWarp = kLanes > 32 ? 32 : kLanes, kWarps = kLanes / kInWarp;
  const float max = max_over<kInWarp>(part.max);
  part.others = sum_over<kInWarp>(times_power(part.others, ratio_of(own, reference_of(max))));
  if (smooths) part.below = sum_over<kInWarp>(part.below);
  if constexpr (kWarps == 1) {
    return {max, part.others, part.below};
  } else {
    part.max = max;
    if (threadIdx.x % 32 == 0) shared[threadIdx.x / 32] = part;
    __syncthreads();
    part = shared[threadIdx.x % kWarps];
    return row_sums<E, kWarps>(part, reference_of(part.max), smooths, nullptr);
  }
}

// The vectors that a thread has of a tile: n classes each, kLanes * n apart.
template <class E, int kLanes, int kVectors>
struct RowTile {
  static constexpr int n = RowSpan<E>::kVector, kStep = kLanes * n, kSize = kVectors * kStep;
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

  // Adds the classes from `from` on to the sums, the one at `target` left out.
  __device__ __forceinline__ void take(PartSums<E>& part, Reference& own, typename Elements<E>::Sum& of_exp,
                                       const RowSpan<E>& span, int32_t from, int32_t target, float base, bool smooths) {
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
    if (!(max <= part.max)) {
      const Reference higher = reference_of(max);
      of_exp.scale(ratio_of(own, higher));
      part.max = max;
      own = higher;
    }
    const Elements<E> elements(own);
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
    const Elements<E> elements(reference);
    const auto visit = [&](auto shifts) {
      each([&](int, E& x) {
        float e = widen<float>(x);
        if constexpr (!kOfExp) e = elements.exp(decltype(shifts)::value ? e - reference.shift : e);
        x = narrow<E>(gain.times(decltype(shifts)::value ? e * gain.before : e));
      });
    };
    if (gain.before != 1.0f || (!kOfExp && reference.shift != 0.0f)) {
      visit(std::true_type());
    } else {
      visit(std::false_type());
    }
  }
  template <bool kStreams>
  __device__ __forceinline__ void store(const RowSpan<E>& span, int32_t from) const {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) span.template store<kStreams>(from + i * kStep, v[i]);
  }
};

// kTiled: a row may have several tiles, of which the first `kept` go to shared memory.
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
  const bool is_first_warp = kLanes <= 32 || threadIdx.x < 32;
  double sum = 0.0;
  int turn = 0;
#pragma unroll 1
  for (uint32_t first = blockIdx.x * kRows; first < p.rows; first += gridDim.x * kRows) {
    Task<float> task = task_at<float>(p, first + (kRows > 1 ? threadIdx.x / kLanes : 0));
    if (kRows == 1 && task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * Tile::n - span.skew();
    const int32_t tiles = kTiled ? (p.classes + span.skew() + Tile::kSize - 1) / Tile::kSize : 1;
    Tile tile;
    if (!task.held) tile.load(span, from);  // before it is known whether the row counts
    read_target(p, task);
    const bool reads = task.target >= 0;
    const float target = reads ? widen<float>(span.input[task.target]) : 0.0f;
    const float base = select(target == -INFINITY, 0.0f, target);
    read_factors(p, task);
    PartSums<E> part = {-INFINITY, 0.0f, {}};
    Reference own = reference_of(part.max);
    typename Elements<E>::Sum of_exp;
    if (reads) {
#pragma unroll 1
      for (int32_t t = 0; t < tiles; ++t) {
        if (t > 0) tile.load(span, from + t * Tile::kSize);
        if (t < kept) {
#pragma unroll
          for (int i = 0; i < kVectors; ++i) stage[t][i][threadIdx.x] = tile.v[i];
        }
        tile.take(part, own, of_exp, span, from + t * Tile::kSize, task.target, base, loss.smooths);
        if (!kTiled) break;
      }
    }
    part.others = of_exp.total();
    const RowSums<E> sums = row_sums<E, kLanes>(part, own, loss.smooths, warps[turn]);
    turn ^= 1;  // a warp that is ahead writes the other one
    const Reference reference = reference_of(sums.max);
    const RowResult<E> result =
        reads ? finished<E, Loss>(loss, sums, reference, target, task.class_weight, task.factor, is_first_warp)
              : finished_without<E>(task.counts);
    if (is_first_warp && lane == 0 && !task.held)
      hand_in(p, task.at, as_double(result.loss) * double{task.weight}, sum);
    if (!span.gradient || task.held) continue;
    if (!reads) {
      Tile nothing;
      nothing.each([&](int, E& x) { x = narrow<E>(result.gain.at_target); });
      for (int32_t t = 0; t < tiles; ++t) nothing.template store<false>(span, from + t * Tile::kSize);
      continue;
    }
    if constexpr (Tile::kKeepsExp) {
      tile.template to_gradients<true>(result.gain.in_reference(ratio_of(own, reference)), reference);
    } else {
      tile.template to_gradients<false>(result.gain, reference);
    }
    tile.template store<kTiled>(span, from + (tiles - 1) * Tile::kSize);
    Gain gain = result.gain;
#pragma unroll 1
    for (int32_t t = tiles - 2; kTiled && t >= 0; --t) {
      if (t < kept) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) tile.v[i] = stage[t][i][threadIdx.x];
      } else {
        tile.load(span, from + t * Tile::kSize);
      }
      tile.template to_gradients<false>(gain, reference);
      tile.template store<true>(span, from + t * Tile::kSize);
    }
    // Over what stands there: by the thread that has written it.
    const int32_t at = task.target - from;
    if (at >= 0 && at % Tile::kStep < Tile::n) span.gradient[task.target] = narrow<E>(gain.at_target);
  }
  hand_in_sum<kThreads, (kLanes < kThreads)>(p, sum);
}

}  // namespace cudaloss::cuda
