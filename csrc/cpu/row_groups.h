// The tiles of a block's rows: from their elements in memory to losses, and to gradients in memory.
#pragma once

#include <vector>

#include "core/plan.h"
#include "cpu/blocks.h"
#include "cpu/row_exp.h"
#include "cpu/row_finish.h"
#include "cpu/row_scratch.h"
#include "cpu/row_tiles.h"

namespace cudaloss::cpu {

// About this many elements are in tiles at a time: they stay in the second-level cache, better in the first.
constexpr int64_t kTiledElements = 8192;

template <class F, class Loss>
class RowGroups {
 public:
  using Scratch = RowScratch<F>;

  RowGroups(const Pass& pass, const TileShape& shape)
      : pass_(pass),
        shape_(shape),
        loss_(pass),
        of_indices_(!is_floating(pass.target.dtype)),
        has_shares_(!of_indices_ || pass.numbers.second != 0.0),
        wants_gradients_(pass.grad_input.data || pass.grad_target.data),
        batch_(std::min({kBlock, std::max<int64_t>(1, kTiledElements / shape.size()) * (shape.across ? kLanes : 1),
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
  Shares<F> shares_of(const F* shares) const { return of_indices_ ? class_weights() : Shares<F>{shares, true}; }

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
    for (int64_t tile = 0; tile < shape_.tiles(rows); ++tile) {
      F* own = shares + tile * shape_.size();
      fill_up(own, F(0));
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
    if (!of_indices_) find_largest(group, scratch);
    take_targets(group, scratch);
    find_max(group, lanes);
    if (has_shares_) add_shares(group, scratch);
    add_exp(group, scratch);
    const double classes = static_cast<double>(shape_.classes);
    if (!of_indices_) {
      finish_rows<Targets::Probabilities, true, F>(loss_, classes, lanes);
    } else if (wants_gradients_) {
      finish_rows<Targets::Indices, true, F>(loss_, classes, lanes);
    } else {
      finish_rows<Targets::Indices, false, F>(loss_, classes, lanes);
    }
    std::copy_n(lanes.loss, group.rows, scratch.terms + group.first);
    if constexpr (Loss::kIsPart) std::copy_n(lanes.target, group.rows, scratch.of_targets + group.first);
    if (pass_.grad_input.data) write_grad_input(group, scratch);
    if (pass_.grad_target.data) write_grad_target(group, scratch);
  }

  // For probabilities: the last class with the largest logit replaces the target's; none if all are NaN.
  void find_largest(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    int64_t found[kLanes];
    find_max(group, lanes);
    if (shape_.across) lines_of_max(group.tiles, shape_.lines(), lanes.max, found);
    for (int64_t row = 0; row < group.rows; ++row) {
      int64_t& index = scratch.index[group.first + row];
      index = -1;
      if (!lanes.keep[row]) continue;
      if (shape_.across) {
        index = found[row];
        continue;
      }
      F max[kLanes];
      std::fill(max, max + kLanes, lanes.max[row]);
      lines_of_max(group.tiles + shape_.at(row, 0), shape_.lines(), max, found);
      for (int lane = 0; lane < kLanes; ++lane) {
        if (found[lane] >= 0) index = std::max(index, found[lane] * kLanes + lane);
      }
      if (index >= shape_.classes) index = -1;  // a -inf that fills up a line
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

  void find_max(const RowGroup<F>& group, RowLanes<F>& lanes) const {
    if (shape_.across) return lanes_max(group.tiles, shape_.lines(), lanes.max);
    for (int64_t row = 0; row < group.rows; ++row) {
      if (lanes.keep[row]) lanes.max[row] = row_max(group.tiles + shape_.at(row, 0), shape_.lines());
    }
  }

  void add_exp(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    if (shape_.across) return lanes_exp(group.tiles, shape_.lines(), ahead_of(group.first, scratch), lanes);
    for (int row = 0; row < group.rows; ++row) {
      if (!lanes.keep[row]) continue;
      row_exp(group.tiles + shape_.at(row, 0), shape_.lines(), ahead_of(group.first + row, scratch), row, lanes);
    }
  }

  // The row at the same place in the next batch, if the distance between rows stays the same; and where the gradients
  // go. Long rows prefetch within themselves.
  Ahead ahead_of(int64_t row, const Scratch& scratch) const {
    const int64_t read_size = size_of(pass_.input.dtype), written_size = size_of(pass_.grad_input.dtype);
    const int64_t batch = shape_.size() < kTiledElements ? batch_ : 0;
    const auto* read = static_cast<const char*>(pass_.input.data);
    read += (scratch.of_input[row] + batch * scratch.between) * read_size;
    const int64_t read_step = line_step(kInput) * read_size;
    if (!pass_.grad_input.data) return {read, read, read_step, 0};
    const auto* written = static_cast<const char*>(pass_.grad_input.data) + scratch.of_first[row] * written_size;
    return {read, written, read_step, line_step(kResult) * written_size};
  }
  // The distance of a tile's lines in memory. Short rows that follow each other are lines, too.
  int64_t line_step(Place place) const {
    const int64_t stride = pass_.rows.class_stride[place];
    return shape_.across && stride > 1 ? stride : kLanes * stride;
  }

  // Meanwhile the targets' logits are back in their places, and the ends of lines are filled with the largest logit.
  void add_shares(const RowGroup<F>& group, Scratch& scratch) const {
    RowLanes<F>& lanes = scratch.lanes;
    double top[kLanes];
    for (int lane = 0; lane < kLanes; ++lane) {
      const double max = static_cast<double>(lanes.max[lane]);
      top[lane] = lanes.target[lane] > max ? lanes.target[lane] : max;
    }
    put_back(group, top, scratch);
    if (shape_.across) {
      lanes_below(group.tiles, shape_.lines(), shares_of(group.shares), top, lanes.below_max, lanes.shares);
    } else {
      for (int64_t row = 0; row < group.rows; ++row) add_shares(group, row, top[row], lanes);
    }
    take_again(group, scratch);
  }
  void add_shares(const RowGroup<F>& group, int64_t row, double row_top, RowLanes<F>& lanes) const {
    double top[kLanes], below[kLanes], shares[kLanes];
    const int64_t at = shape_.at(row, 0);
    std::fill(top, top + kLanes, row_top);
    if (!lanes.keep[row]) return;
    lanes_below(group.tiles + at, shape_.lines(), shares_of(group.shares + at), top, below, shares);
    Sum of_below = {}, of_shares = {};
    for (int lane = 0; lane < kLanes; ++lane) {
      of_below.add(below[lane]);
      of_shares.add(shares[lane]);
    }
    lanes.below_max[row] = rounded(WithRest<double>{of_below.value, of_below.rest});
    lanes.shares[row] = rounded(WithRest<double>{of_shares.value, of_shares.rest});
  }

  void put_back(const RowGroup<F>& group, const double* top, Scratch& scratch) const {
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      if (index >= 0) group.tiles[shape_.at(row, index)] = static_cast<F>(scratch.lanes.target[row]);
      fill_up(group.tiles + shape_.at(row, 0), static_cast<F>(top[row]));
    }
  }
  void take_again(const RowGroup<F>& group, Scratch& scratch) const {
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      if (index >= 0) group.tiles[shape_.at(row, index)] = F(-INFINITY);
      fill_up(group.tiles + shape_.at(row, 0), F(-INFINITY));
    }
  }

  // Whether a group's gradients are written directly to memory.
  bool writes_in_place(const RowGroup<F>& group, const int64_t* offsets) const {
    if (!holds<F>(pass_.grad_input.dtype) || pass_.rows.softcap != 0.0) return false;
    if (!shape_.across) return pass_.rows.class_stride[kResult] == 1;
    return group.rows == kLanes && is_line(offsets);
  }

  void multiply_tile(const F* tile, const F* shares, int64_t lines, const LaneFactors<F>& by, F* out,
                     int64_t step) const {
    if (has_shares_) return lanes_times_less(tile, lines, by, shares_of(shares), out, step);
    lanes_times(tile, lines, by, out, step);
  }

  void write_grad_input(const RowGroup<F>& group, Scratch& scratch) const {
    const int64_t* offsets = scratch.of_first + group.first;
    const int64_t stride = pass_.rows.class_stride[kResult];
    if (!writes_in_place(group, offsets)) {
      fill_tiles(group, scratch);
      return write_rows(pass_.grad_input, offsets, stride, shape_, group.rows, group.tiles);
    }
    F* out = static_cast<F*>(pass_.grad_input.data);
    const RowLanes<F>& lanes = scratch.lanes;
    if (shape_.across) {
      multiply_tile(group.tiles, group.shares, shape_.lines(), factors_of(lanes), out + offsets[0], stride);
    } else {
      for (int64_t row = 0; row < group.rows; ++row) write_row(group, row, factors_of(lanes, row), out + offsets[row]);
    }
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      if (index >= 0) out[offsets[row] + index * stride] = static_cast<F>(lanes.at_target[row]);
    }
  }

  // Writes one row that has its own tile; its last line may be a partial one.
  void write_row(const RowGroup<F>& group, int64_t row, const LaneFactors<F>& by, F* out) const {
    const F *tile = group.tiles + shape_.at(row, 0), *shares = group.shares + shape_.at(row, 0);
    const int64_t whole = shape_.classes / kLanes, behind = whole * kLanes;
    multiply_tile(tile, shares, whole, by, out, kLanes);
    if (behind == shape_.classes) return;
    F last[kLanes];
    multiply_last(tile + behind, shares, behind, by, last);
    std::copy(last, last + (shape_.classes - behind), out + behind);
  }
  void multiply_last(const F* line, const F* shares, int64_t behind, const LaneFactors<F>& by, F* out) const {
    if (!has_shares_) return lanes_times(line, 1, by, out, kLanes);
    const Shares<F> own = shares_of(shares);
    lanes_times_less(line, 1, by, Shares<F>{own.values + behind, own.each}, out, kLanes);
  }

  // Makes the gradients in the tiles.
  void fill_tiles(const RowGroup<F>& group, Scratch& scratch) const {
    const RowLanes<F>& lanes = scratch.lanes;
    for (int64_t tile = 0; tile < shape_.tiles(group.rows); ++tile) {
      F* own = group.tiles + tile * shape_.size();
      const LaneFactors<F> by = shape_.across ? factors_of(lanes) : factors_of(lanes, static_cast<int>(tile));
      multiply_tile(own, group.shares + tile * shape_.size(), shape_.lines(), by, own, kLanes);
    }
    for (int64_t row = 0; row < group.rows; ++row) {
      const int64_t index = scratch.index[group.first + row];
      if (index >= 0) group.tiles[shape_.at(row, index)] = static_cast<F>(lanes.at_target[row]);
    }
    if (pass_.rows.softcap == 0.0) return;
    for (int64_t tile = 0; tile < shape_.tiles(group.rows); ++tile) {
      multiply_slopes(group.slopes + tile * shape_.size(), shape_.size(), group.tiles + tile * shape_.size());
    }
  }

  // Reads the logits again: the probabilities' gradients are made from them.
  void write_grad_target(const RowGroup<F>& group, Scratch& scratch) const {
    const RowLanes<F>& lanes = scratch.lanes;
    read_input(group.first, group.rows, group.tiles, group.slopes, scratch);
    for (int64_t tile = 0; tile < shape_.tiles(group.rows); ++tile) {
      F* own = group.tiles + tile * shape_.size();
      const int row = static_cast<int>(tile);
      const LaneLogs logs = logs_of(lanes, 1.0 - pass_.numbers.second, shape_.across ? -1 : row);
      lanes_below_log(own, shape_.lines(), class_weights(), logs);
    }
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

}  // namespace cudaloss::cpu
