// The CPU engine for losses of rows of two distributions, given by their logits: these loops compute each block in
// tiles of both operands, as in row_kernels.h. In double, so that a sum's last places need no second reading. Included
// by the source of each such loss, which setup.py writes.
#pragma once

#include "core/distributions.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

// About this many elements of both operands are in tiles at a time, and stay in the second-level cache.
constexpr int64_t kPairedElements = 2048;

// For kLanes rows, or one row in all lanes: the sum of exp((x - max) / T) over a distribution.
struct LaneSoftmax {
  double others[kLanes];   // the sum minus 1
  double inverse[kLanes];  // of the sum
};

// Turns logits into (x - max) / T, and makes its exp, the sum of those below the maximum, and the number at the
// maximum.
template <class F>
CUDALOSS_MULTIVERSION void exp_lanes(F* __restrict tile, F* __restrict exp, int64_t lines, const double* max,
                                     double inverse, double* others, double* count) {
  double from[kLanes], sum[kLanes] = {}, at_max[kLanes] = {};
  copy_lanes(max, from);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      const double x = tile[at], below = (x - from[lane]) * inverse;
      const double e = select(below < -kFarthest, 0.0, exp_of_below<double>(below));
      const bool is_max = x == from[lane];
      tile[at] = below;
      exp[at] = e;
      sum[lane] += select(is_max, 0.0, e);
      at_max[lane] += select(is_max, 1.0, 0.0);
    }
  }
  copy_lanes(sum, others);
  copy_lanes(at_max, count);
}

// The lanes' sums of divergences, and if the loss is centred of base times slope. Turns q's exp into the slope, the
// input's logits into the base if the loss is centred, and the target's logits into of_target.
template <class Loss>
CUDALOSS_MULTIVERSION void term_lanes(Loss loss, double* __restrict of_input, double* __restrict of_target,
                                      double* __restrict exp_q, const double* exp_p, int64_t lines, const double* of_q,
                                      const double* of_p, const double* lower_d, double* divergence, double* slope) {
  double sum[kLanes] = {}, of_slope[kLanes] = {}, lower[kLanes], q[kLanes], p[kLanes];
  copy_lanes(of_q, q);
  copy_lanes(of_p, p);
  copy_lanes(lower_d, lower);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      const double d = (of_input[at] - of_target[at]) - lower[lane];
      const auto term = loss.template term<double>(exp_q[at] * q[lane], exp_p[at] * p[lane], d);
      sum[lane] += term.divergence;
      exp_q[at] = term.slope;
      of_target[at] = term.of_target;
      if constexpr (Loss::kIsCentred) {
        of_slope[lane] += term.base * term.slope;
        of_input[at] = term.base;
      }
    }
  }
  copy_lanes(sum, divergence);
  copy_lanes(of_slope, slope);
}

// Turns the slope into the input's gradient, without the factor T, times `factor`.
template <class Loss>
CUDALOSS_MULTIVERSION void input_lanes(double* __restrict slope, const double* base, int64_t lines,
                                       const double* of_rows, const double* factor) {
  double mean[kLanes], by[kLanes];
  copy_lanes(of_rows, mean);
  copy_lanes(factor, by);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      slope[at] = (Loss::kIsCentred ? base[at] * (slope[at] - mean[lane]) : slope[at]) * by[lane];
    }
  }
}

// Turns p's exp into the target's gradient, without the factor T, times `factor`.
template <class F>
CUDALOSS_MULTIVERSION void target_lanes(const F* of_target, F* __restrict exp_p, int64_t lines, const F* of_p,
                                        const F* of_rows, const F* factor) {
  F p[kLanes], mean[kLanes], by[kLanes];
  copy_lanes(of_p, p);
  copy_lanes(of_rows, mean);
  copy_lanes(factor, by);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      exp_p[at] = grad_target(exp_p[at] * p[lane], of_target[at], mean[lane]) * by[lane];
    }
  }
}

template <class Loss>
class DistributionGroups {
 public:
  using Scratch = RowScratch<double>;

  explicit DistributionGroups(const Pass& pass)
      : pass_(pass),
        loss_(pass.numbers),
        shape_(shape_of(pass)),
        wants_gradients_(pass.grad_input.data || pass.grad_target.data) {}

  int64_t batch() const {
    return std::min(kBlock, std::max<int64_t>(1, kPairedElements / shape_.size()) * (shape_.across ? kLanes : 1));
  }

  void run(int64_t first, int64_t rows, Scratch& scratch) const {
    const int64_t size = shape_.tiles(batch()) * shape_.size();
    if (static_cast<int64_t>(scratch.tiles.size()) < 4 * size) scratch.tiles.resize(4 * size);
    double* const input = scratch.tiles.data();
    const int64_t step = shape_.across ? kLanes : 1;
    read_rows(pass_.input, scratch.of_input + first, pass_.rows.class_stride[kInput], shape_, rows,
              scratch.keep + first, input);
    read_rows(pass_.target, scratch.of_target + first, pass_.rows.class_stride[kTarget], shape_, rows,
              scratch.keep + first, input + size);
    for (int64_t row = 0; row < rows; row += step) {
      double* const own = input + shape_.at(row, 0);
      run_tile({first + row, std::min(step, rows - row), own, own + size, own + 2 * size, own + 3 * size}, scratch);
    }
  }

 private:
  // The rows of a tile: their logits, and room for the exponentials.
  struct Tile {
    int64_t first, rows;
    double *input, *target, *exp_input, *exp_target;
  };

  // With a lane for each row, keeps each lane's sum; with a tile for each row, adds all lanes.
  void join(double* sums) const {
    if (shape_.across) return;
    double total;
    put(sums, 0, &total);
    std::fill(sums, sums + kLanes, total);
  }

  LaneSoftmax softmax_of(double* tile, double* exp) const {
    LaneSoftmax found;
    double max[kLanes], others[kLanes], count[kLanes];
    rows_max(tile, shape_.lines(), shape_.across ? kEachLane : 0, max);
    if (!shape_.across) std::fill(max, max + kLanes, max[0]);
    exp_lanes(tile, exp, shape_.lines(), max, 1.0 / loss_.temperature, others, count);
    join(others);
    join(count);
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_finite = absolute(max[lane]) <= DBL_MAX;  // otherwise there is no distribution
      found.others[lane] = is_finite ? others[lane] + (count[lane] - 1.0) : double{NAN};
      found.inverse[lane] = 1.0 / (1.0 + found.others[lane]);
    }
    return found;
  }

  void run_tile(const Tile& tile, Scratch& scratch) const {
    const LaneSoftmax input = softmax_of(tile.input, tile.exp_input);
    const LaneSoftmax target = softmax_of(tile.target, tile.exp_target);
    double lower[kLanes], divergence[kLanes], mean[kLanes], rest[kLanes], factor[kLanes] = {};
    for (int lane = 0; lane < kLanes; ++lane) lower[lane] = log_of_sums(input.others[lane], target.others[lane]);
    term_lanes<Loss>(loss_, tile.input, tile.target, tile.exp_input, tile.exp_target, shape_.lines(), input.inverse,
                     target.inverse, lower, divergence, mean);
    join(divergence);
    join(mean);
    for (int lane = 0; lane < kLanes; ++lane) rest[lane] = divergence[lane] - mean[lane];
    for (int64_t row = 0; row < tile.rows; ++row) {
      const double loss = loss_.loss(divergence[row]);
      const int64_t at = tile.first + row;
      scratch.terms[at] = scratch.keep[at] ? loss : 0.0;
      if (!wants_gradients_) continue;
      const double by = (scratch.factors[at] + scratch.rests[at]) * loss_.temperature;
      factor[row] = loss == loss ? by : double{NAN};
    }
    if (!shape_.across) std::fill(factor, factor + kLanes, factor[0]);
    if (pass_.grad_input.data) {
      input_lanes<Loss>(tile.exp_input, tile.input, shape_.lines(), mean, factor);
      write(pass_.grad_input, scratch.of_first, kResult, tile, tile.exp_input, scratch);
    }
    if (pass_.grad_target.data) {
      target_lanes(tile.target, tile.exp_target, shape_.lines(), target.inverse, rest, factor);
      write(pass_.grad_target, scratch.of_second, kSecondResult, tile, tile.exp_target, scratch);
    }
  }

  void write(const Result& result, const int64_t* offsets, Place place, const Tile& tile, double* gradient,
             const Scratch& scratch) const {
    for (int64_t row = 0; row < tile.rows; ++row) {
      if (scratch.keep[tile.first + row]) continue;
      for (int64_t j = 0; j < shape_.classes; ++j) gradient[shape_.at(row, j)] = 0.0;
    }
    write_rows(result, offsets + tile.first, pass_.rows.class_stride[place], shape_, tile.rows, gradient);
  }

  const Pass& pass_;
  const Loss loss_;
  const TileShape shape_;
  const bool wants_gradients_;
};

template <class Loss>
void distributions_pass(const Pass& r, ParallelFor parallel_for) {
  // An element is as much work as four elements of a chunk, so that 64 rows of 1,000 are worth two threads.
  run_rows<double>(r, DistributionGroups<Loss>(r), 4 * r.rows.classes, parallel_for);
}

}  // namespace cudaloss::cpu
