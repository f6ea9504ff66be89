// Rows whose classes are contiguous. Some lanes of a warp, a warp, or a block read a row once: a thread keeps its part
// in registers. If a row does not fit in a block's registers, the last tile stays there and the first ones stay in
// shared memory while there is room. Those between are read again, backwards, because they are then still in the L2.
#pragma once

#include "cuda/row_cap.cuh"

namespace cudaloss::cuda {

// The sums of `lanes` neighbouring threads, in each of them.
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

__device__ __forceinline__ WithRest<float> less_by(WithRest<float> x, float share) {
  return {x.value, fused(-x.value, share, x.rest)};
}
__device__ __forceinline__ float less_by(float x, float share) { return fused(-x, share, x); }

// Usual: nothing of a row is optional, and rows are whole vectors (see has_usual_rows). Tiled: a row can have several
// tiles; the first `kept` go to shared memory. WithShares: each class has its own share; here only of halves.
// Capped: the logits have a softcap.
enum class RowKind { Usual, Plain, Tiled, WithShares, Capped, CappedTiled };
template <RowKind kind>
constexpr bool kIsTiled = kind == RowKind::Tiled || kind == RowKind::CappedTiled;
template <RowKind kind>
constexpr bool kIsCapped = kind == RowKind::Capped || kind == RowKind::CappedTiled;
template <class E, int kLanes, int kVectors, RowKind kKind, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_of_contiguous_classes(const __grid_constant__ RowParameters<double> p,
                               const __grid_constant__ typename Loss::InFloat loss, RowLanes<kLanes> lanes,
                               bool is_ragged, int kept) {
  constexpr bool kUsual = kKind == RowKind::Usual;
  const bool ragged = !kUsual && is_ragged, smooths = !kUsual && loss.smooths;
  constexpr bool kTiled = kIsTiled<kKind>, kWithShares = kKind == RowKind::WithShares, kCapped = kIsCapped<kKind>;
  using Tile = std::conditional_t<kCapped, CappedTile<E, kLanes, kVectors>, RowTile<E, kLanes, kVectors>>;
  using V = typename Tile::V;
  using N = RowNumber<E>;
  using Sums = std::conditional_t<kWithShares, SumsWithShares<E>, RowSums<E>>;
  constexpr bool kOfBlock = kLanes > 32;  // a row
  constexpr int kWarps = kOfBlock ? kLanes / 32 : 1;
  const int rows = kOfBlock ? 1 : kThreads >> lanes.log2();
  extern __shared__ __align__(16) char memory[];
  __shared__ PartSums<E> warps[2][kWarps];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  V(*const stage)[kVectors][kThreads] = reinterpret_cast<V(*)[kVectors][kThreads]>(memory);
  const int lane = threadIdx.x & (lanes.count() - 1), of_block = kOfBlock ? 0 : threadIdx.x >> lanes.log2();
  double sum = 0.0;
  int buffer = 0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows) {
    Task<float> task = task_at<float, kUsual>(p, first + of_block);
    if (kOfBlock && task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * Tile::n - span.skew();
    Tile tile = [&] {
      if constexpr (kCapped) {
        return Tile(lanes, RowCap<E>(p.softcap));
      } else {
        return Tile(lanes);
      }
    }();
    const int32_t tiles = kTiled ? (p.classes + span.skew() + tile.size() - 1) / tile.size() : 1;
    const int32_t last = p.classes - (tiles - 1) * tile.size() + (ragged ? Tile::n - 1 : 0);
    const int count = (last + tile.step() - 1) >> tile.shift;  // vectors of the last tile
    const TargetIndex read = kWithShares && loss.is_soft ? TargetIndex{false, 0} : index_of<kUsual>(p, task);
    if (!task.held) span.load(from, tile.shift, tile.v);  // before it is known whether the row counts
    wait_for_prior();                                     // a count, which has no part in what was read
    take_target<Loss::kIsPart>(p, task, read);
    ShareReader<E> reader = {};
    if constexpr (kWithShares) {
      reader = {nullptr, static_cast<const float*>(p.third.data), loss.share};
      if (loss.is_soft) {
        reader.target = static_cast<const E*>(p.target.data) + offset(p, task.at, kTarget);
        task.counts = is_selected(p, task);
        const int32_t largest = tile.template largest<kThreads>(count, from, p.classes, lanes.count());
        if (task.counts) task.target = largest;
      }
    }
    const bool keeps = kCapped || Loss::kIsPart || span.gradient;  // a part's loss is fp64, and shows the rests
    const bool reads = Loss::kIsPart ? task.counts && task.is_class : task.target >= 0;
    const float target = task.target >= 0 ? tile.logit(span.input[task.target]) : (Loss::kIsPart ? -INFINITY : 0.0f);
    PartSums<E> part = {-INFINITY, 0.0f, {}};
    Reference own = reference_of(part.max);
    typename Elements<E>::Sum of_exp;
    SharesOfRow<N> shares = {};
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
        if constexpr (kCapped) tile.look(vectors, span, begin, task.target);
        if (!kWithShares && smooths) {
          part.below += tile.below(vectors, span, begin, select(target == -INFINITY, 0.0f, target));
        }
        if constexpr (kWithShares) shares = tile.shares(count, reader, begin, p.classes, task.target, target);
        if (task.target >= 0) tile.hide(task.target - begin);
        tile.take(vectors, !kTiled || t == 0, keeps, part, own, of_exp);
        if (!kTiled) break;
      }
    }
    part.others = tile.total(keeps && !kCapped, part.max, own, of_exp);
    part = joined_part<E>(part, own, lanes.of_warp(), smooths);
    if constexpr (kOfBlock) {
      if (threadIdx.x % 32 == 0) warps[buffer][threadIdx.x / 32] = part;
      __syncthreads();
      part = warps[buffer][threadIdx.x % kWarps];
      part = joined_part<E>(part, reference_of(part.max), kWarps, smooths);
    }
    buffer ^= 1;  // here, where all rows that are read have passed a barrier
    read_factors<kUsual>(p, factor, task);
    if constexpr (Loss::kIsPart) task.class_weight = grad_target_of(p, task);
    if (kWithShares && loss.is_soft) task.class_weight = 1.0f;  // it is in the shares
    const float unread = without_target(task.counts);
    Sums sums;
    static_cast<RowSums<E>&>(sums) = {part.max, part.others, part.below};
    // With the rest r of the target's bent logit, exp(target + r) and the others' exp are to each other as exp(target)
    // and 1 - r times theirs.
    const float target_rest = kCapped && task.target >= 0 ? tile.rest_at(task.target) : 0.0f;
    if constexpr (kCapped) sums.others = less_by(sums.others, target_rest);
    if constexpr (kWithShares) {
      sums.shares = together<kThreads>(shares, lanes.count(), [](const auto& a, const auto& b) {
        return SharesOfRow<N>{plus(a.below, b.below), plus(a.others, b.others), a.own + b.own};
      });
    }
    mend<E>(sums);
    const bool has_loss = (p.sums || p.losses.data) && !task.held && (!kOfBlock || threadIdx.x < 32);
    const bool has_gradient = span.gradient && !task.held;
    Gain gain;
    const auto finish = [&](bool wants_loss, bool wants_gain) -> double {
      if (!reads) return unread;
      return finish_row<E>(loss, sums, target, task.class_weight, task.factor, wants_loss, wants_gain, gain);
    };
    const auto add = [&](double of_row) {
      if (!has_loss || lane != 0) return;
      add_row<kUsual>(p, task, of_row, sum);
      if constexpr (Loss::kIsPart) store_target_logit(p, task.at, target);
    };
    // In one tile the loss is behind the gradients, when the tile's registers are free: before them, 32 lanes of fp32
    // rows took 1.4 times as long. In several tiles a step of (8192, 32768) fp32 takes 0.639 ms so, 0.697 with the loss
    // behind the gradients, 0.691 with a finish_row of its own before them (H200).
    if constexpr (kTiled) add(finish(has_loss, has_gradient));
    if (has_gradient) {
      if constexpr (!kTiled) finish(false, true);
      if constexpr (kCapped) gain.lo = fused(-gain.hi, target_rest, gain.lo);
      const Reference reference = reference_of(part.max);
      if (!reads) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
#pragma unroll
          for (int k = 0; k < Tile::n; ++k) tile.v[i].element[k] = narrow<E>(unread);
        }
        for (int32_t t = 0; t < tiles; ++t) tile.template store<false>(span, from + t * tile.size());
      } else {
        if constexpr (kWithShares) {
          const Gain own_gain = Tile::kKeepsExp ? gain.in_reference(ratio_of(own, reference)) : gain;
          tile.to_gradients_with_shares(count, own_gain, task.factor, reference, reader, from, p.classes);
        } else if constexpr (Tile::kKeepsExp) {
          tile.template to_gradients<true>(count, gain.in_reference(ratio_of(own, reference)), own);
        } else {
          tile.template to_gradients<false>(count, gain, reference);
        }
        tile.template store<kTiled>(span, from + (tiles - 1) * tile.size());
#pragma unroll 1
        for (int32_t t = kTiled ? tiles - 2 : -1; t >= 0; --t) {
          if (t < kept) {
#pragma unroll
            for (int i = 0; i < kVectors; ++i) tile.v[i] = stage[t][i][threadIdx.x];
          } else {
            span.load(from + t * tile.size(), tile.shift, tile.v);
          }
          if constexpr (kCapped) tile.look(kVectors, span, from + t * tile.size(), task.target);
          tile.template to_gradients<false>(kVectors, gain, reference);
          tile.template store<true>(span, from + t * tile.size());
        }
        // Overwrites the gradient at the target, in the thread that wrote it.
        const int32_t at = task.target - from;
        if ((!Loss::kIsPart || task.target >= 0) && at >= 0 && (at & (tile.step() - 1)) < Tile::n)
          span.gradient[task.target] = narrow<E>(gain.at_target * tile.slope_at(task.target));
      }
    }
    if constexpr (!kTiled) {
      if (has_loss) add(finish(true, false));
    }
  }
  wait_for_prior();  // no row has, if there are none
  reduce_losses<kThreads, kOfBlock ? SumsOf::Thread : SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
