// The CPU engine for losses that read all classes of a row: takes the tiles of a block's rows from their elements in
// memory to losses, and to gradients in memory. Included by the source of each such loss, which setup.py writes.
#pragma once

#include <vector>

#include "core/plan.h"
#include "cpu/blocks.h"
#include "cpu/row_exp.h"
#include "cpu/row_finish.h"
#include "cpu/row_run.h"

namespace cudaloss::cpu {

// About this many elements are in tiles at a time: they stay in the second-level cache, better in the first.
constexpr int64_t kTiledElements = 8192;

// Up to kLanes rows of a block, from `first` on, and their tiles.
template <class F>
struct RowGroup {
  int64_t first, rows;
  F *tiles, *shares, *slopes;
};

template <class F, class Loss>
class ClassGroups {
 public:
  using Scratch = RowScratch<F>;

  explicit ClassGroups(const Pass& pass)
      : pass_(pass),
        shape_(shape_of(pass)),
        loss_(pass),
        of_indices_(!is_floating(pass.target.dtype)),
        has_shares_(!of_indices_ || pass.numbers.second != 0.0),
        wants_gradients_(pass.grad_input.data || pass.grad_target.data),
        batch_(std::min({kBlock, std::max<int64_t>(1, kTiledElements / shape_.size()) * (shape_.across ? kLanes : 1),
                         plan::ceil_div(pass.segments.count() * pass.inner.count(), kLanes) * kLanes})) {
    if (pass.third.data || has_shares_) read_class_weights();
  }

  // How many rows are in tiles together.
  int64_t batch() const { return batch_; }

  // Fills the terms of a batch with its losses, and makes the gradients if they are wanted.
  void run(int64_t first, int64_t rows, Scratch& scratch) const {
    F* tiles = reserve(scratch.tiles, true);
    F* shares = reserve(scratch.shares, !of_indices_);
    F* slopes = reserve(scratch.slopes, pass_.rows.softcap != 0.0);
    read_input(first, rows, tiles, slopes, scratch);
    if (!of_indices_) read_shares(first, rows, shares, scratch);
    for (int64_t row = 0; row < rows; row += kLanes) {
      const int64_t offset = shape_.at(row, 0);
      const int64_t left = std::min<int64_t>(kLanes, rows - row);
      run_group({first + row, left, tiles + offset, shares + offset, slopes + offset}, scratch);
    }
  }

 private:
  // One array for both shapes of tiles. If a row has its own lines, their ends are filled up with 0.
  void read_class_weights() {
    class_weights_.assign(shape_.across ? shape_.classes : shape_.size(), F(0));
    for (int64_t j = 0; j < shape_.classes; ++j) {
      class_weights_[j] = pass_.third.data ? number_at<F>(pass_.third, j * pass_.rows.class_stride[kThird]) : F(1);
    }
  }
  Shares<F> class_weights() const { return {class_weights_.data(), !shape_.across}; }
  // The shares that are subtracted from exp in the gradients.
  Shares<F> shares_of(const F* shares) const {
    if (!has_shares_) return {nullptr, false};
    return of_indices_ ? class_weights() : Shares<F>{shares, true};
  }

  // Room for a batch, aligned to a cache line: each line of a tile is one.
  F* reserve(std::vector<F>& tiles, bool wanted) const {
    constexpr size_t kLine = 64;
    const size_t size = wanted ? shape_.tiles(batch_) * shape_.size() + kLine / sizeof(F) : 0;
    if (tiles.size() < size) tiles.resize(size);
    return reinterpret_cast<F*>((reinterpret_cast<uintptr_t>(tiles.data()) + (kLine - 1)) & ~(kLine - 1));
  }

  void read_input(int64_t first, int64_t rows, F* tiles, F* slopes, Scratch& scratch) const {
    read_rows(pass_.input, scratch.of_input + first, pass_.rows.class_stride[kInput], shape_, rows,
              scratch.keep + first, tiles);
    if constexpr (sizeof(F) == sizeof(double)) {  // only this type has a softcap
      if (pass_.rows.softcap == 0.0) return;
      softcap(pass_.rows.softcap, shape_.tiles(rows) * shape_.size(), tiles, slopes);
      for (int64_t row = 0; row < rows; ++row) fill_up(tiles + shape_.at(row, 0), F(-INFINITY));
    }
  }

  void read_shares(int64_t first, int64_t rows, F* shares, Scratch& scratch) const {
    const double smoothing = pass_.numbers.second;
    read_rows(pass_.target, scratch.of_target + first, pass_.rows.class_stride[kTarget], shape_, rows,
              scratch.keep + first, shares);
    const bool are_as_read = !pass_.third.data && smoothing == 0.0;
    for (int64_t tile = 0; tile < shape_.tiles(rows); ++tile) {
      F* own = shares + tile * shape_.size();
      fill_up(own, F(0));
      if (are_as_read) continue;
      make_shares(shape_.lines(), class_weights(), smoothing, smoothing / shape_.classes, own);
    }
  }

  // Fills the end of a row's last line, which has no classes.
  void fill_up(F* tile, F value) const {
    if (!shape_.across) std::fill(tile + shape_.classes, tile + shape_.size(), value);
  }

  void run_group(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    std::fill(lanes.keep, lanes.keep + kLanes, int64_t{0});
    std::copy_n(scratch.keep + group.first, group.rows, lanes.keep);
    if (wants_gradients_) {
      std::copy_n(scratch.factors + group.first, group.rows, lanes.factor);
      std::copy_n(scratch.rests + group.first, group.rows, lanes.factor_rest);
    }
    if (has_shares_) add_shares(group, scratch);
    if (!of_indices_) find_largest(group, scratch);
    take_targets(group, scratch);
    find_max(group, scratch);
    add_exp(group, scratch);
    const double classes = static_cast<double>(shape_.classes);
    if (!of_indices_) {
      finish_rows<false, true, F>(loss_, classes, lanes);
    } else if (wants_gradients_) {
      finish_rows<true, true, F>(loss_, classes, lanes);
    } else {
      finish_rows<true, false, F>(loss_, classes, lanes);
    }
    std::copy_n(lanes.loss, group.rows, scratch.terms + group.first);
    if constexpr (Loss::kIsPart) std::copy_n(lanes.target, group.rows, scratch.of_targets + group.first);
    if (pass_.grad_input.data) write_grad_input(group, scratch);
    if (pass_.grad_target.data) write_grad_target(group, scratch);
  }

  // Calls body(offset, row) for each tile of a group: its offset from the group's first, and the row that has all its
  // lanes (or kEachLane).
  template <class Body>
  void for_each_tile(int64_t rows, const Body& body) const {
    if (shape_.across) return body(int64_t{0}, kEachLane);
    for (int row = 0; row < rows; ++row) body(shape_.at(row, 0), row);
  }
  // The same without those of rows that do not count.
  template <class Body>
  void for_each_kept_tile(const RowGroup<F>& group, const Scratch& scratch, const Body& body) const {
    for_each_tile(group.rows, [&](int64_t offset, int row) {
      if (row == kEachLane || scratch.lanes.keep[row]) body(offset, row);
    });
  }

  void find_max(const RowGroup<F>& group, Scratch& scratch) const {
    for_each_kept_tile(group, scratch, [&](int64_t offset, int row) {
      rows_max(group.tiles + offset, shape_.lines(), row, scratch.lanes.max);
    });
  }

  // For probabilities, after add_shares, which finds the largest logits: the last class that has it replaces the
  // target's; none if all are NaN.
  void find_largest(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    int64_t found[kLanes];
    for_each_kept_tile(group, scratch, [&](int64_t offset, int row) {
      classes_of_max(group.tiles + offset, shape_.lines(), row, lanes.max, found);
    });
    for (int64_t row = 0; row < group.rows; ++row) {
      const bool is_class = lanes.keep[row] && found[row] < shape_.classes;  // or a -inf that fills up a line
      scratch.index[group.first + row] = is_class ? found[row] : -1;
    }
  }

  // Takes out the targets' logits: the sums of the others exclude them.
  void take_targets(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      lanes.target[row] = -INFINITY;
      lanes.weight[row] = 1.0;
      if (index < 0) continue;
      F& own = group.tiles[shape_.at(row, index)];
      lanes.target[row] = static_cast<double>(own);
      own = F(-INFINITY);
      if (Loss::kIsPart) {
        lanes.weight[row] = scratch.of_targets[group.first + row];
      } else if (!of_indices_) {
        lanes.weight[row] = static_cast<double>(group.shares[shape_.at(row, index)]);
      } else if (!class_weights_.empty()) {
        lanes.weight[row] = static_cast<double>(class_weights_[index]);
      }
    }
  }

  void add_exp(const RowGroup<F>& group, Scratch& scratch) const {
    for_each_kept_tile(group, scratch, [&](int64_t offset, int row) {
      F* const tile = group.tiles + offset;
      if (row == kEachLane)
        return rows_exp<kLanes>(tile, shape_.lines(), ahead_of(group.first, scratch), 0, scratch.lanes);
      rows_exp<1>(tile, shape_.lines(), ahead_of(group.first + row, scratch), row, scratch.lanes);
    });
  }

  // The row at the same place in the next batch, if the distance between rows stays the same; and where the gradients
  // go. Long rows prefetch within themselves.
  Ahead ahead_of(int64_t row, const Scratch& scratch) const {
    Ahead ahead = ahead_of(pass_.input, scratch.of_input[row], scratch.between, kInput);
    if (!pass_.grad_input.data) return ahead;
    const int64_t size = size_of(pass_.grad_input.dtype);
    ahead.written = static_cast<const char*>(pass_.grad_input.data) + scratch.of_first[row] * size;
    ahead.written_step = line_step(kResult) * size;
    return ahead;
  }
  Ahead ahead_of(const Operand& operand, int64_t offset, int64_t between, Place place) const {
    const int64_t size = size_of(operand.dtype), batch = shape_.size() < kTiledElements ? batch_ : 0;
    const char* const read = static_cast<const char*>(operand.data) + (offset + batch * between) * size;
    return {read, nullptr, line_step(place) * size, 0};
  }
  // The distance of a tile's lines in memory. Short rows that follow each other are lines, too.
  int64_t line_step(Place place) const {
    const int64_t stride = pass_.rows.class_stride[place];
    return shape_.across && stride > 1 ? stride : kLanes * stride;
  }

  // Of all classes, so before take_targets. Meanwhile the ends of lines are filled with the largest logit.
  void add_shares(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    find_max(group, scratch);
    for_each_kept_tile(group, scratch, [&](int64_t offset, int row) {
      F* const tile = group.tiles + offset;
      if (row != kEachLane) fill_up(tile, lanes.max[row]);
      Ahead ahead = {};
      if (!of_indices_) {
        const int64_t target = scratch.of_target[group.first + std::max(row, 0)];
        ahead = ahead_of(pass_.target, target, scratch.between_targets, kTarget);
      }
      rows_below(tile, shape_.lines(), shares_of(group.shares + offset), lanes.max, row, ahead, lanes.below_max,
                 lanes.shares);
      fill_up(tile, F(-INFINITY));
    });
  }

  // Whether a group's gradients are written directly to memory.
  bool writes_in_place(const RowGroup<F>& group, const int64_t* offsets) const {
    if (!holds<F>(pass_.grad_input.dtype) || pass_.rows.softcap != 0.0) return false;
    if (!shape_.across) return pass_.rows.class_stride[kResult] == 1;
    return group.rows == kLanes && is_line(offsets);
  }

  // Writes them to memory, or makes them in the tiles if their form there is another.
  void write_grad_input(const RowGroup<F>& group, Scratch& scratch) const {
    const RowLanes<F>& lanes = scratch.lanes;
    const int64_t* offsets = scratch.of_first + group.first;
    const int64_t stride = pass_.rows.class_stride[kResult];
    const bool in_place = writes_in_place(group, offsets);
    F* const out = in_place ? static_cast<F*>(pass_.grad_input.data) : group.tiles;
    for_each_tile(group.rows, [&](int64_t offset, int row) {
      const F* const tile = group.tiles + offset;
      Shares<F> shares = shares_of(group.shares + offset);
      if (!in_place) return rows_times(tile, shape_.lines(), lanes, row, shares, out + offset, kLanes);
      if (row == kEachLane) return rows_times(tile, shape_.lines(), lanes, row, shares, out + offsets[0], stride);
      F* const own = out + offsets[row];
      const int64_t whole = shape_.classes / kLanes, behind = whole * kLanes;
      rows_times(tile, whole, lanes, row, shares, own, kLanes);
      if (behind == shape_.classes) return;
      F last[kLanes];
      if (shares.values) shares.values += behind;
      rows_times(tile + behind, 1, lanes, row, shares, last, kLanes);
      std::copy(last, last + (shape_.classes - behind), own + behind);
    });
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      const int64_t at = in_place ? offsets[row] + index * stride : shape_.at(row, index);
      if (index >= 0) out[at] = static_cast<F>(lanes.at_target[row]);
    }
    if (in_place) return;
    if (pass_.rows.softcap != 0.0) {
      multiply_slopes(group.slopes, shape_.tiles(group.rows) * shape_.size(), group.tiles);
    }
    write_rows(pass_.grad_input, offsets, stride, shape_, group.rows, group.tiles);
  }

  // Reads the logits again: the probabilities' gradients are made from them.
  void write_grad_target(const RowGroup<F>& group, Scratch& scratch) const {
    read_input(group.first, group.rows, group.tiles, group.slopes, scratch);
    for_each_tile(group.rows, [&](int64_t offset, int row) {
      rows_below_log(group.tiles + offset, shape_.lines(), class_weights(), 1.0 - pass_.numbers.second, scratch.lanes,
                     row);
    });
    write_rows(pass_.grad_target, scratch.of_second + group.first, pass_.rows.class_stride[kSecondResult], shape_,
               group.rows, group.tiles);
  }

  const Pass& pass_;
  const TileShape shape_;
  const Loss loss_;
  const bool of_indices_, has_shares_, wants_gradients_;
  const int64_t batch_;
  std::vector<F> class_weights_;  // only if they are read
};

template <class Loss>
void classes_pass(const Pass& r, ParallelFor parallel_for) {
  // In fp32 the rounding of a cap would be an error of the logits, which exp turns into many last places; and the
  // shares of probabilities would be rounded more than once.
  const bool has_factors = is_floating(r.target.dtype) && (r.third.data || r.numbers.second != 0.0);
  if (wants_float64(r) || r.rows.softcap != 0.0 || has_factors) {
    return run_rows<double>(r, ClassGroups<double, Loss>(r), r.rows.classes, parallel_for);
  }
  run_rows<float>(r, ClassGroups<float, Loss>(r), r.rows.classes, parallel_for);
}

}  // namespace cudaloss::cpu
