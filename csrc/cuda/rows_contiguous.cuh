// Rows whose classes are contiguous. Some lanes of a warp, a warp, or a block read a row once: a thread keeps its part
// in registers. If a row does not fit in a block's registers, the last tile stays there and the first ones stay in
// shared memory while there is room. Those between are read again, backwards, because they are then still in the L2.
#pragma once

#include "cuda/row_span.cuh"

namespace cudaloss::cuda {

constexpr int kRowVectors = 8;  // of a thread, if it has one tile

// How many lanes have a row: kLanes, all of a block; or, if kLanes is 32, a part of a warp that the host chooses.
template <int kLanes>
struct RowLanes {
  int shift;  // the log2 of the number

  __device__ __forceinline__ int count() const { return kLanes > 32 ? kLanes : 1 << shift; }
  __device__ __forceinline__ int of_warp() const { return kLanes > 32 ? 32 : 1 << shift; }
};

// The sums of a thread's classes, in the reference of their own maximum; then those of a warp.
template <class E>
struct PartSums {
  float max, below;
  RowNumber<E> others;
};

// The same for neighbouring threads, in each of them.
template <class E>
__device__ __forceinline__ PartSums<E> joined_part(PartSums<E> part, Reference own, int lanes, bool smooths) {
  const auto join = [&](auto& x, const auto& joined) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) {
      if (distance < lanes) x = joined(x, shuffled(x, distance));
    }
  };
  join(part.max, [](float a, float b) { return max_or_nan(a, b); });
  part.others = times_power(part.others, ratio_of(own, reference_of(part.max)));
  join(part.others, [](const auto& a, const auto& b) { return plus(a, b); });
  if (smooths) join(part.below, [](float a, float b) { return a + b; });
  return part;
}

// A thread's vectors of a tile: n classes each, kLanes * n apart.
template <class E, int kLanes, int kVectors>
struct RowTile {
  static constexpr int n = RowSpan<E>::kVector;
  static constexpr bool kKeepsExp = sizeof(E) == sizeof(float);  // halves compute exp again, which is cheap
  using V = typename RowSpan<E>::V;
  V v[kVectors];
  int shift;  // the log2 of the classes from one vector to the next

  __device__ __forceinline__ explicit RowTile(const RowLanes<kLanes>& lanes)
      : shift((kLanes > 32 ? log2_of(kLanes) : lanes.shift) + log2_of(n)) {}
  __device__ __forceinline__ int32_t step() const { return 1 << shift; }
  __device__ __forceinline__ int32_t size() const { return kVectors * step(); }

  // `count`: how many vectors have classes, in some thread of the row.
  template <class Visit>
  __device__ __forceinline__ void each(int count, const Visit& visit) {
#pragma unroll
    for (int i = 0; i < kVectors; ++i) {
      if (i > 0 && i >= count) break;
#pragma unroll
      for (int k = 0; k < n; ++k) visit(i * step() + k, v[i].element[k]);
    }
  }
  __device__ __forceinline__ float max(int count, float max) const {
    auto of_vectors = max_of(v[0], v[0]);
#pragma unroll
    for (int i = 1; i < kVectors; ++i) {
      if (i >= count) break;
      of_vectors = max_of(of_vectors, v[i]);
    }
    return max_in(of_vectors, max);
  }
  // The class `at` places after the thread's first becomes -inf, if the thread has it.
  __device__ __forceinline__ void hide(int32_t at) {
    if (static_cast<uint32_t>(at) >= static_cast<uint32_t>(size()) || (at & (step() - 1)) >= n) return;
    constexpr bool kPair = sizeof(E) < 4;
    const uint32_t slot = at % n, word = kPair ? slot / 2 : slot;
    constexpr E kHidden = kMinusInfinity<E>;
    const uint32_t bits = bit_cast<BitsOf<E>>(kHidden);
    const uint32_t put = kPair && slot % 2 ? bits << 16 : bits, kept = !kPair ? 0 : slot % 2 ? 0xffffu : 0xffff0000u;
    visit_at<0, kVectors>(at >> shift, [&](int i) {
      uint4 words = bit_cast<uint4>(v[i]);
      words.x = select(word == 0, words.x & kept | put, words.x);
      words.y = select(word == 1, words.y & kept | put, words.y);
      words.z = select(word == 2, words.z & kept | put, words.z);
      words.w = select(word == 3, words.w & kept | put, words.w);
      v[i] = bit_cast<V>(words);
    });
  }

  // Adds the classes from `from` on to the sums.
  __device__ __forceinline__ void take(int count, bool is_first, PartSums<E>& part, Reference& own,
                                       typename Elements<E>::Sum& of_exp) {
    const float max = this->max(count, part.max);
    if (is_first || !(max <= part.max)) {
      const Reference higher = reference_of(max);
      if (!is_first) of_exp.scale(ratio_of(own, higher));
      part.max = max;
      own = higher;
    }
    const Elements<E> elements(own.power);
    if (own.shift != 0.0f) {
      each(count, [&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x) - own.shift)); });
    } else {
      each(count, [&](int, E& x) { keep(x, of_exp.add(elements, widen<float>(x))); });
    }
  }
  __device__ __forceinline__ static void keep(float& x, float e) { x = e; }
  template <class Half>
  __device__ __forceinline__ static void keep(Half&, float) {}

  // Turns logits into gradients; with kOfExp the tile holds exp(x) already.
  template <bool kOfExp>
  __device__ __forceinline__ void to_gradients(int count, const Gain& gain, Reference reference) {
    const Elements<E> elements(reference.power);
    if constexpr (kKeepsExp) {
      if (!kOfExp) each(count, [&](int, E& x) { x = elements.exp(x - reference.shift); });
      if (gain.before != 1.0f) each(count, [&](int, E& x) { x *= gain.before; });
      each(count, [&](int, E& x) { x = gain.template times<E>(x); });
    } else if (gain.before != 1.0f || reference.shift != 0.0f) {
      each(count, [&](int, E& x) {
        const float e = elements.exp(widen<float>(x) - reference.shift);
        x = narrow<E>(gain.template times<E>(e * gain.before));
      });
    } else {
      each(count, [&](int, E& x) { x = narrow<E>(gain.template times<E>(elements.exp(widen<float>(x)))); });
    }
  }
};

// What a row's loss is made of.
template <class E>
struct RowEnd {
  RowSums<E> sums;
  float target, class_weight, weight;
  float otherwise;  // the loss, if the row was not read
  bool reads;
};

// kTiled: a row can have several tiles; the first `kept` go to shared memory.
template <class E, int kLanes, int kVectors, bool kTiled, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_of_contiguous_classes(const __grid_constant__ RowParameters<double> p,
                               const __grid_constant__ typename Loss::InFloat loss, RowLanes<kLanes> lanes, bool ragged,
                               int kept) {
  using Tile = RowTile<E, kLanes, kVectors>;
  using V = typename Tile::V;
  constexpr bool kOfBlock = kLanes > 32;  // a row
  constexpr int kMostRows = kOfBlock ? 1 : kThreads / 2, kWarps = kOfBlock ? kLanes / 32 : 1;
  const int rows = kOfBlock ? 1 : kThreads >> lanes.shift;
  extern __shared__ __align__(16) char memory[];
  __shared__ PartSums<E> warps[2][kWarps];
  __shared__ RowEnd<E> ends[2][kMostRows];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  V(*const stage)[kVectors][kThreads] = reinterpret_cast<V(*)[kVectors][kThreads]>(memory);
  const int lane = threadIdx.x & (lanes.count() - 1), of_block = kOfBlock ? 0 : threadIdx.x >> lanes.shift;
  double sum = 0.0;
  int turn = 0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows, turn ^= 1) {
    Task<float> task = task_at<float>(p, first + of_block);
    if (kOfBlock && task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * Tile::n - span.skew();
    Tile tile(lanes);
    const int32_t tiles = kTiled ? (p.classes + span.skew() + tile.size() - 1) / tile.size() : 1;
    const int32_t last = p.classes - (tiles - 1) * tile.size() + (ragged ? Tile::n - 1 : 0);
    const int count = (last + tile.step() - 1) >> tile.shift;  // vectors of the last tile
    const TargetIndex read = index_of(p, task);
    if (!task.held) span.load(from, tile.shift, tile.v);  // before it is known whether the row counts
    wait_for_prior();  // a count, which has no part in what was read
    take_target<Loss::kIsPart>(p, task, read);
    const bool reads = Loss::kIsPart ? task.counts && task.is_class : task.target >= 0;
    const float target = task.target >= 0 ? widen<float>(span.input[task.target]) : (Loss::kIsPart ? -INFINITY : 0.0f);
    PartSums<E> part = {-INFINITY, 0.0f, {}};
    Reference own = reference_of(part.max);
    typename Elements<E>::Sum of_exp;
    if (reads) {
#pragma unroll 1
      for (int32_t t = 0; t < tiles; ++t) {
        const int32_t begin = from + t * tile.size();
        if (t > 0) span.load(begin, tile.shift, tile.v);
        if (t < kept) {
#pragma unroll
          for (int i = 0; i < kVectors; ++i) stage[t][i][threadIdx.x] = tile.v[i];
        }
        const int vectors = t == tiles - 1 ? count : kVectors;
        if (loss.smooths) {
          const float base = select(target == -INFINITY, 0.0f, target);
          tile.each(vectors, [&](int j, E x) {
            part.below += select(span.has(begin + j), base - widen<float>(x), 0.0f);
          });
        }
        if (task.target >= 0) tile.hide(task.target - begin);
        tile.take(vectors, !kTiled || t == 0, part, own, of_exp);
        if (!kTiled) break;
      }
    }
    part.others = of_exp.total();
    part = joined_part<E>(part, own, lanes.of_warp(), loss.smooths);
    if constexpr (kOfBlock) {
      if (threadIdx.x % 32 == 0) warps[turn][threadIdx.x / 32] = part;
      __syncthreads();
      part = warps[turn][threadIdx.x % kWarps];
      part = joined_part<E>(part, reference_of(part.max), kWarps, loss.smooths);
    }
    read_factors(p, factor, task);
    if constexpr (Loss::kIsPart) task.class_weight = grad_target_of(p, task);
    const float nothing = without_target(task.counts);
    const RowSums<E> sums = {part.max, part.others, part.below};
    if (lane == 0) ends[turn][of_block] = {sums, target, task.class_weight, task.weight, nothing, reads};
    if (span.gradient && !task.held) {
      const Gain gain = gain_of_row(loss, softmax_of_row(loss, sums, target), task.class_weight, task.factor);
      const Reference reference = reference_of(part.max);
      if (!reads) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
          for (int k = 0; k < Tile::n; ++k) tile.v[i].element[k] = narrow<E>(nothing);
        }
        for (int32_t t = 0; t < tiles; ++t) span.template store<false>(from + t * tile.size(), tile.shift, tile.v);
      } else {
        if constexpr (Tile::kKeepsExp) {
          tile.template to_gradients<true>(count, gain.in_reference(ratio_of(own, reference)), reference);
        } else {
          tile.template to_gradients<false>(count, gain, reference);
        }
        span.template store<kTiled>(from + (tiles - 1) * tile.size(), tile.shift, tile.v);
#pragma unroll 1
        for (int32_t t = kTiled ? tiles - 2 : -1; t >= 0; --t) {
          if (t < kept) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i) tile.v[i] = stage[t][i][threadIdx.x];
          } else {
            span.load(from + t * tile.size(), tile.shift, tile.v);
          }
          tile.template to_gradients<false>(kVectors, gain, reference);
          span.template store<true>(from + t * tile.size(), tile.shift, tile.v);
        }
        // Overwrites the gradient at the target, in the thread that wrote it.
        const int32_t at = task.target - from;
        if ((!Loss::kIsPart || task.target >= 0) && at >= 0 && (at & (tile.step() - 1)) < Tile::n)
          span.gradient[task.target] = narrow<E>(gain.at_target);
      }
    }
    // The losses of the block's rows, by its first warp, when nothing waits for them.
    if (!p.sums && !p.losses.data) continue;
    if constexpr (!kOfBlock) __syncthreads();
    if (threadIdx.x >= 32) continue;
#pragma unroll 1
    for (int i = threadIdx.x; i < rows && first + i < p.rows; i += 32) {
      const RowEnd<E>& end = ends[turn][i];
      const RowPlace at = place_of(p, first + i);
      const double of_row =
          end.reads ? loss_of_row(loss, softmax_of_row(loss, end.sums, end.target), end.class_weight)
                    : double{end.otherwise};
      hand_in(p, at, p.weight.data ? of_row * double{end.weight} : of_row, sum);
      if constexpr (Loss::kIsPart) hand_in_target(p, at, end.target);
    }
  }
  hand_in_sum<kThreads, kOfBlock ? Sums::OfOne : Sums::OfWarp>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
