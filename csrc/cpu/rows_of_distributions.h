// The CPU engine of losses of rows of two distributions, given by their logits: each block goes through these loops in
// tiles of both operands, as row_kernels.h has them. In double, which needs no second reading for a sum's last places.
// Included by the source of each such loss, which setup.py writes.
#pragma once

#include "core/exp_log.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

// About as many elements of both operands are tiles at a time, and stay in the second-level cache.
constexpr int64_t kPairedElements = 2048;

// kLanes rows, or one in all lanes: a distribution of each.
struct LaneSoftmax {
  double log[kLanes];      // of the sum of exp((x - max) / T)
  double inverse[kLanes];  // of that sum
};

// Logits to (x - max) / T; exp of that, with the sum of those below the maximum, and how many are at it.
template <class F>
CUDALOSS_MULTIVERSION void exp_lanes(F* __restrict tile, F* __restrict exp, int64_t lines, const double* max,
                                     double inverse, double* others, double* count) {
  constexpr double kFarthest = 708.0, kMagic = ExpParts<double>::magic_half + 1.0;  // beyond it exp is subnormal
  double from[kLanes], sum[kLanes] = {}, at_max[kLanes] = {};
  copy_lanes(max, from);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      const double x = tile[at], below = (x - from[lane]) * inverse;
      const bool is_far = below < -kFarthest, is_max = x == from[lane];
      const ExpApart<double> apart = exp_apart(kMagic, select(is_far, -kFarthest, below));
      const double e = select(is_far, 0.0, fused(apart.power, exp_minus_1(apart.r), apart.power));
      tile[at] = below;
      exp[at] = e;
      sum[lane] += select(is_max, 0.0, e);
      at_max[lane] += select(is_max, 1.0, 0.0);
    }
  }
  copy_lanes(sum, others);
  copy_lanes(at_max, count);
}

// The lanes' sums of terms; q's exp becomes q - p.
template <class Loss>
CUDALOSS_MULTIVERSION void term_lanes(const double* of_input, const double* of_target, double* __restrict exp_q,
                                      const double* exp_p, int64_t lines, const LaneSoftmax& input,
                                      const LaneSoftmax& target, double* divergence) {
  double sum[kLanes] = {}, lower[kLanes], q[kLanes], p[kLanes];
  copy_lanes(input.inverse, q);
  copy_lanes(target.inverse, p);
  for (int lane = 0; lane < kLanes; ++lane) lower[lane] = input.log[lane] - target.log[lane];
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      const auto term =
          Loss::term(exp_q[at] * q[lane], exp_p[at] * p[lane], (of_input[at] - of_target[at]) - lower[lane]);
      sum[lane] += term.divergence;
      exp_q[at] = term.excess;
    }
  }
  copy_lanes(sum, divergence);
}

// tile *= factor
template <class F>
CUDALOSS_MULTIVERSION void scale_lanes(F* tile, int64_t lines, const double* factor) {
  double by[kLanes];
  copy_lanes(factor, by);
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) tile[i * kLanes + lane] *= by[lane];
  }
}

// p's exp to p (log p - log q - divergence) times a factor.
template <class F>
CUDALOSS_MULTIVERSION void target_lanes(const F* of_input, const F* of_target, F* exp_p, int64_t lines,
                                        const LaneSoftmax& input, const LaneSoftmax& target, const double* divergence,
                                        const double* factor) {
  double lower[kLanes], by[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    lower[lane] = (input.log[lane] - target.log[lane]) - divergence[lane];
    by[lane] = target.inverse[lane] * factor[lane];
  }
  for (int64_t i = 0; i < lines; ++i) {
    for (int lane = 0; lane < kLanes; ++lane) {
      const int64_t at = i * kLanes + lane;
      const double p = exp_p[at] * by[lane];
      exp_p[at] = select(exp_p[at] == 0.0, 0.0 * by[lane], p * ((of_target[at] - of_input[at]) + lower[lane]));
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
        shape_(shape_of<double>(pass)),
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
  // Rows of a tile: their logits, and room for the exponentials.
  struct Tile {
    int64_t first, rows;
    double *input, *target, *exp_input, *exp_target;
  };

  // A tile's sum for each lane: its own, or of a row that has the tile all of them.
  void join(double* sums) const {
    if (shape_.across) return;
    Sum total = {};
    for (int lane = 0; lane < kLanes; ++lane) total.add(sums[lane]);
    std::fill(sums, sums + kLanes, rounded(WithRest<double>{total.value, total.rest}));
  }

  LaneSoftmax softmax_of(double* tile, double* exp) const {
    LaneSoftmax found;
    double max[kLanes], others[kLanes], count[kLanes];
    if (shape_.across) {
      lanes_max(tile, shape_.lines(), max);
    } else {
      std::fill(max, max + kLanes, row_max(tile, shape_.lines()));
    }
    exp_lanes(tile, exp, shape_.lines(), max, 1.0 / loss_.temperature, others, count);
    join(others);
    join(count);
    for (int lane = 0; lane < kLanes; ++lane) {
      const bool is_finite = absolute(max[lane]) <= DBL_MAX;  // else there is no distribution
      const double sum = is_finite ? others[lane] + (count[lane] - 1.0) : double{NAN};
      found.log[lane] = std::log1p(sum);
      found.inverse[lane] = 1.0 / (1.0 + sum);
    }
    return found;
  }

  void run_tile(const Tile& tile, Scratch& scratch) const {
    const LaneSoftmax input = softmax_of(tile.input, tile.exp_input);
    const LaneSoftmax target = softmax_of(tile.target, tile.exp_target);
    double divergence[kLanes], factor[kLanes] = {};
    term_lanes<Loss>(tile.input, tile.target, tile.exp_input, tile.exp_target, shape_.lines(), input, target,
                     divergence);
    join(divergence);
    for (int64_t row = 0; row < tile.rows; ++row) {
      const auto found = loss_.finish(divergence[row], 0.0, 1.0);
      const int64_t at = tile.first + row;
      scratch.terms[at] = scratch.keep[at] ? found.loss : 0.0;
      if (!wants_gradients_) continue;
      const double by = (scratch.factors[at] + scratch.rests[at]) * loss_.temperature;
      factor[row] = found.loss == found.loss ? by : double{NAN};
    }
    if (!shape_.across) std::fill(factor, factor + kLanes, factor[0]);
    if (pass_.grad_input.data) {
      scale_lanes(tile.exp_input, shape_.lines(), factor);
      write(pass_.grad_input, scratch.of_first, kFirst, tile, tile.exp_input, scratch);
    }
    if (pass_.grad_target.data) {
      target_lanes(tile.input, tile.target, tile.exp_target, shape_.lines(), input, target, divergence, factor);
      write(pass_.grad_target, scratch.of_second, kSecond, tile, tile.exp_target, scratch);
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
  // An element is as much work as four of a chunk: 64 rows of 1,000 are then worth two threads.
  run_rows<double>(r, DistributionGroups<Loss>(r), 4 * r.rows.classes, parallel_for);
}

}  // namespace cudaloss::cpu
