// Rows whose classes have shares of their own in the loss: probabilities as targets, or class weights with label
// smoothing. Some lanes of a warp, or a block, read a row once: a thread keeps its logits in registers, and the operand
// of its shares in shared memory, where it comes without registers. A row of several tiles is read twice for the loss,
// and once more for the gradients.
//
// The classes with the largest logit take no part in the sums: beside them the others would lose their digits. Not
// kept: the logits in shared memory too, in small loops (step of (32768, 4096) fp32: 0.83 ms, here 0.58, H200).
#pragma once

#include "cuda/row_shares.cuh"

namespace cudaloss::cuda {

template <class E, class K, int kLanes, bool kTiled, int kThreads, int kBlocks, class Loss>
__global__ void __launch_bounds__(kThreads, kBlocks)
    rows_with_shares(const __grid_constant__ RowParameters<double> p,
                     const __grid_constant__ typename Loss::InFloat loss, RowLanes<kLanes> lanes, bool ragged,
                     bool vectors) {
  using Operands = OperandTile<E, K, kThreads>;
  constexpr int kVectors = Operands::kVectors;
  using Tile = RowTile<E, kLanes, kVectors>;
  constexpr int n = Tile::n;
  constexpr bool kOfBlock = kLanes > 32;  // a row
  constexpr int kWarps = kOfBlock ? kLanes / 32 : 1;
  const int rows = kOfBlock ? 1 : kThreads >> lanes.log2();
  extern __shared__ __align__(16) char memory[];
  __shared__ float warp_max[kWarps];
  __shared__ PartWithShares<E> warps[kWarps];
  release_next();
  start_reading(p);
  if (all_held<float>(p)) return;
  const int lane = threadIdx.x & (lanes.count() - 1), of_block = kOfBlock ? 0 : threadIdx.x >> lanes.log2();
  const Operands operands = {reinterpret_cast<typename Operands::Piece*>(memory) + threadIdx.x};
  double sum = 0.0;
  RowFactor<float> factor;
  const Divisor& counted = count_rows<kThreads>(p, factor);
#pragma unroll 1
  for (uint32_t first = blockIdx.x * rows; first < p.rows; first += gridDim.x * rows) {
    Task<float> task = task_at<float>(p, first + of_block);
    if (kOfBlock && task.held) continue;
    const RowSpan<E> span = span_of<E>(p, task.at, ragged);
    const int32_t from = lane * n - span.skew();
    Tile tile(lanes);
    const int32_t tiles = kTiled ? (p.classes + span.skew() + tile.size() - 1) / tile.size() : 1;
    const int32_t last = p.classes - (tiles - 1) * tile.size() + (ragged ? n - 1 : 0);
    const int count = (last + tile.step() - 1) >> tile.shift;  // vectors of the last tile
    const bool reloads = kTiled && tiles > 1;
    const OperandReader<E> reader(p, loss, task.at);
    const bool smooths = reader.smooths();
    const TargetIndex read = loss.is_soft ? TargetIndex{is_selected(p, task), 0} : index_of(p, task);
    const auto load = [&](int32_t t, bool shares) {
      if (shares) reader.load(span, from + t * tile.size(), tile.shift, vectors, loss.is_soft, operands);
      span.load(from + t * tile.size(), tile.shift, tile.v);
    };
    if (!reloads && !task.held) load(0, true);  // before it is known whether the row counts
    wait_for_prior();                           // a count, which has no part in what was read
    if (loss.is_soft) {
      task.counts = read.is_selected;
    } else {
      take_target(p, task, read);
    }
    const bool reads = loss.is_soft ? task.counts : task.target >= 0;
    if (!reads) reader.wait();  // so that nothing of this row arrives after the next one's
    const float target = task.target >= 0 ? widen<float>(span.input[task.target]) : 0.0f;
    const auto vectors_of = [&](int32_t t) { return t == tiles - 1 ? count : kVectors; };

    float own_max = -INFINITY;
    for (int32_t t = 0; reads && t < tiles; ++t) {
      if (reloads) load(t, false);
      own_max = tile.max(vectors_of(t), own_max);
    }
    const auto larger = [](float a, float b) { return max_or_nan(a, b); };
    float max = joined_in_warp(own_max, lanes.of_warp(), larger);
    if constexpr (kOfBlock) {
      if (threadIdx.x % 32 == 0) warp_max[threadIdx.x / 32] = max;
      __syncthreads();
      max = joined_in_warp(warp_max[threadIdx.x % kWarps], kWarps, larger);
    }

    PartWithShares<E> sums = {{-INFINITY, 0.0f, {}}, {}};
    ShareSums& shares = sums.shares;
    Reference own = reference_of(sums.part.max);
    typename Elements<E>::Sum of_exp;
    uint32_t at_max = 0;    // which classes of the tile have the largest logit, as bits
    double distance = 0.0;  // the sum of (largest - x)
    int inside = 0;
    for (int32_t t = 0; reads && t < tiles; ++t) {
      if (reloads) load(t, true);
      const int32_t begin = from + t * tile.size();
      const int here = vectors_of(t);
      reader.wait();
      // Their sum, which is a factor of all classes, keeps what rounding takes from the shares.
      reader.weigh(span, begin, tile.shift, {1.0f, 0.0f}, operands, [&](int32_t j, float lost) {
        (widen<float>(span.input[j]) == max ? shares.own : shares.shares) += double{lost};
      });
      uint32_t outside = 0;
      if (!span.template has_all<kVectors>(begin, tile.shift)) {
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          const int32_t j = begin + (i << tile.shift);
          if (j >= 0 && span.room(j) >= 0) continue;
#pragma unroll
          for (int k = 0; k < n; ++k) {
            if (span.has(j + k)) continue;
            outside |= 1u << (i * n + k);
            tile.v[i].element[k] = narrow<E>(max);
          }
        }
      }
      at_max = 0;
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
        if (i > 0 && i >= here) break;
        float share[n], below[n];
        operands.get(i, share);
#pragma unroll
        for (int k = 0; k < n; ++k) {
          E& x = tile.v[i].element[k];
          below[k] = max - widen<float>(x);
          const bool is_max = below[k] == 0.0f;
          if (is_max) {
            at_max |= 1u << (i * n + k);
            shares.own += double{share[k]};
            x = kMinusInfinity<E>;
          }
          shares.shares += double{is_max ? 0.0f : share[k]};
        }
        if (smooths) {
          float farthest = below[0];
#pragma unroll
          for (int k = 1; k < n; ++k) farthest = fmaxf(farthest, below[k]);
          if (farthest == INFINITY) {  // beside a probability of 0, which alone would make it no number
#pragma unroll
            for (int k = 0; k < n; ++k) {
              if (below[k] != INFINITY) continue;
              distance += double{fused(share[k], reader.slope.hi, reader.each.hi) * below[k]};
              below[k] = 0.0f;
            }
          }
#pragma unroll
          for (int k = 0; k < n; ++k) distance += double{below[k]};
        }
#pragma unroll
        for (int k = 0; k < n; ++k) shares.below = fused(double{share[k]}, double{below[k]}, shares.below);
      }
      at_max &= ~outside;
      shares.at_max += __popc(at_max);
      inside += kShareClasses - __popc(outside);
      tile.take(here, t == 0, span.gradient, sums.part, own, of_exp);
    }
    shares.take_slope(reader, inside, distance);
    sums.part.others = tile.total(span.gradient, sums.part.max, own, of_exp);
    sums = sums.joined(own, lanes.of_warp());
    if constexpr (kOfBlock) {
      if (threadIdx.x % 32 == 0) warps[threadIdx.x / 32] = sums;
      __syncthreads();
      sums = warps[threadIdx.x % kWarps];
      sums = sums.joined(reference_of(sums.part.max), kWarps);
    }
    mend<E>(sums.part);
    read_factors(p, factor, task);
    const RowWithShares<E> row(sums, loss, max, target, loss.is_soft ? 1.0f : task.class_weight, task.factor);
    if (span.gradient && !task.held && !reads) {
#pragma unroll
      for (int i = 0; i < kVectors; ++i) {
#pragma unroll
        for (int k = 0; k < n; ++k) tile.v[i].element[k] = narrow<E>(without_target(task.counts));
      }
      for (int32_t t = 0; t < tiles; ++t) tile.template store<false>(span, from + t * tile.size());
    } else if (span.gradient && !task.held) {
      const Reference reference = reference_of(sums.part.max);
      const Elements<E> elements(reference.power);
      const bool makes_exp = !Tile::kKeepsExp || reloads;
      const auto gain = ShareGain<E>::of(makes_exp ? row.gain() : row.gain().in_reference(ratio_of(own, reference)),
                                         reader, task.factor);
      for (int32_t t = tiles - 1; t >= 0; --t) {
        const int32_t begin = from + t * tile.size();
        if (reloads) {
          load(t, true);
          reader.wait();
          at_max = 0;
        }
        reader.weigh(span, begin, tile.shift, task.factor, operands, [](int32_t, float) {});
#pragma unroll
        for (int i = 0; i < kVectors; ++i) {
          float share[n];
          operands.get(i, share);
#pragma unroll
          for (int k = 0; k < n; ++k) {
            E& x = tile.v[i].element[k];
            if (reloads && widen<float>(x) == max) at_max |= 1u << (i * n + k);
            const float e = makes_exp ? elements.exp(widen<float>(x) - reference.shift) : widen<float>(x);
            x = narrow<E>(gain.times_exp(e, share[k]));
          }
        }
        tile.template store<kTiled>(span, begin);
        // Overwrites what this thread has written.
        for (; at_max; at_max &= at_max - 1) {
          const int i = __ffs(at_max) - 1, j = begin + (i / n << tile.shift) + i % n;
          if (span.has(j)) span.gradient[j] = narrow<E>(row.at_largest(reader.share_at(j), j == task.target));
        }
        const int32_t at = task.target - begin;
        if (task.target >= 0 && target != max && at >= 0 && at < tile.size() && (at & (tile.step() - 1)) < n) {
          span.gradient[task.target] = narrow<E>(row.at_target(reader.share_at(task.target)));
        }
      }
    }
    const bool has_loss = (p.sums || p.losses.data) && !task.held && (!kOfBlock || threadIdx.x < 32);
    if (!has_loss) continue;
    const double of_row = reads ? row.loss(shares.below) : double{without_target(task.counts)};
    if (lane == 0) add_row<false>(p, task, of_row, sum);
  }
  wait_for_prior();  // no row has, if there are none
  reduce_losses<kThreads, kOfBlock ? SumsOf::Thread : SumsOf::Block>(p, sum, &counted);
}

}  // namespace cudaloss::cuda
