// Moves rows with any strides and dtypes to and from the tiles of the loops in row_kernels.h.
#pragma once

#include <cstdint>

#include "core/pass.h"
#include "cpu/convert.h"
#include "cpu/kernels.h"
#include "cpu/walk.h"

namespace cudaloss::cpu {

// How rows are stored in tiles. With `across`: kLanes rows in a tile, a lane for each row, a line for each class.
// Otherwise a tile for each row, with kLanes classes in each line, and the last line filled up with -inf.
struct TileShape {
  bool across;
  int64_t classes;

  int64_t lines() const { return across ? classes : (classes + kLanes - 1) / kLanes; }
  int64_t size() const { return lines() * kLanes; }
  int64_t tiles(int64_t rows) const { return across ? (rows + kLanes - 1) / kLanes : rows; }
  int64_t at(int64_t row, int64_t j) const {
    return across ? row / kLanes * size() + j * kLanes + row % kLanes : row * size() + j;
  }
};

// Up to this many classes, rows that are each contiguous are transposed into lanes.
constexpr int64_t kShortRow = 96;

// Long contiguous rows each have their own tile; all other rows share tiles.
inline TileShape shape_of(const Pass& pass) {
  const Dims& rows = pass.inner.rank > 0 ? pass.inner : pass.segments;
  const int64_t between = rows.rank > 0 ? rows.stride[0][kInput] : 0, step = pass.rows.class_stride[kInput];
  const bool lies_across = between != 0 && between < step;
  return {pass.rows.classes <= kShortRow || lies_across, pass.rows.classes};
}

// The offsets of the rows that `walk` visits next.
inline void find_offsets(const Walk& walk, const Position& at, Place place, int64_t count, int64_t* offsets) {
  walk.for_each_patch(at, count, place, [&](int64_t offset, const Patch& patch, int64_t done) {
    for (int64_t row = 0; row < patch.rows; ++row) {
      for (int64_t column = 0; column < patch.columns; ++column) {
        offsets[done++] = offset + row * patch.row_stride + column * patch.column_stride;
      }
    }
  });
}

// Whether kLanes of these follow each other in memory.
inline bool is_line(const int64_t* offsets) {
  bool follows = true;
  for (int lane = 1; lane < kLanes; ++lane) follows &= offsets[lane] == offsets[0] + lane;
  return follows;
}

// Exact class indices from any integer dtype.
void read_indices(const Operand& operand, const int64_t* offsets, int64_t count, int64_t* out);

// Reads rows at `offsets`, `stride` elements from one class to the next. Rows that `keep` excludes get any values.
template <class F>
void read_rows(const Operand& operand, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
               int64_t rows, const int64_t* keep, F* tiles);

template <class F>
void write_rows(const Result& result, const int64_t* offsets, int64_t class_stride, const TileShape& shape,
                int64_t rows, const F* tiles);

}  // namespace cudaloss::cpu
