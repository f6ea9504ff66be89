// The order in which a pass over operands of any strides visits their elements.
#pragma once

#include <algorithm>
#include <cstdint>
#include <initializer_list>

#include "core/pass.h"

namespace cudaloss::cpu {

constexpr int kMaxWalk = 2 * kMaxDims;

// A position in a walk: an index in each of its dimensions.
struct Position {
  int64_t index[kMaxWalk];
};

// A rectangle of elements of one operand: `columns` in the walk's first dimension and `rows` in its second.
struct Patch {
  int64_t columns, column_stride;
  int64_t rows, row_stride;
};

// Dimensions, the fastest first and at least one, with the strides of `places`. Neighbours whose strides all continue
// from one into the other are merged.
class Walk {
 public:
  Walk(std::initializer_list<Dims> all, std::initializer_list<Place> places) {
    for (const Dims& dims : all) append(dims, places);
    if (rank_ == 0) {
      rank_ = 1;
      size_[0] = 1;
      std::fill(stride_[0], stride_[0] + kPlaces, int64_t{0});
    }
    for (const Place place : places) {
      int64_t& run = run_[place] = 1;
      int& dims = run_dims_[place] = 0;
      while (dims < rank_ && stride_[dims][place] == run) run *= size_[dims++];
    }
  }

  // How many elements, in this order, are neighbours in memory before there is a jump.
  int64_t run(Place place) const { return run_[place]; }

  // The position of the element that is visited after `count` others.
  Position after(int64_t count) const {
    Position position;
    for (int dim = 0; dim < rank_ - 1; ++dim) {
      position.index[dim] = count % size_[dim];
      count /= size_[dim];
    }
    position.index[rank_ - 1] = count;
    return position;
  }

  // Whether the next `count` elements are neighbours in memory.
  bool is_run(const Position& position, int64_t count, Place place) const {
    int64_t behind = 0;
    for (int dim = 0; dim < run_dims_[place]; ++dim) behind += position.index[dim] * stride_[dim][place];
    return behind + count <= run_[place];
  }

  int64_t offset(const Position& position, Place place) const {
    int64_t offset = 0;
    for (int dim = 0; dim < rank_; ++dim) offset += position.index[dim] * stride_[dim][place];
    return offset;
  }

  // Calls body(offset, patch, done) for the patches that the next `count` elements consist of. `done` is the number of
  // elements before the patch.
  template <class Body>
  void for_each_patch(Position position, int64_t count, Place place, const Body& body) const {
    for (int64_t done = 0; done < count;) {
      const int64_t left = count - done;
      Patch patch = {std::min(size_[0] - position.index[0], left), stride_[0][place], 1, 0};
      if (rank_ > 1 && patch.columns == size_[0]) {
        patch.rows = std::min(size_[1] - position.index[1], left / size_[0]);
        patch.row_stride = stride_[1][place];
      }
      body(offset(position, place), patch, done);
      done += patch.columns * patch.rows;
      advance(position, patch);
    }
  }

 private:
  void append(const Dims& dims, std::initializer_list<Place> places) {
    for (int dim = 0; dim < dims.rank; ++dim) {
      bool goes_on = rank_ > 0;
      std::fill(stride_[rank_], stride_[rank_] + kPlaces, int64_t{0});
      for (const Place place : places) {
        stride_[rank_][place] = dims.stride[dim][place];
        goes_on = goes_on && dims.stride[dim][place] == stride_[rank_ - 1][place] * size_[rank_ - 1];
      }
      if (goes_on) {
        size_[rank_ - 1] *= dims.size[dim];
      } else {
        size_[rank_++] = dims.size[dim];
      }
    }
  }

  void advance(Position& position, const Patch& patch) const {
    position.index[0] += patch.columns;
    if (position.index[0] < size_[0]) return;
    int64_t carried = patch.rows;
    position.index[0] = 0;
    for (int dim = 1; dim < rank_; ++dim) {
      position.index[dim] += carried;
      if (position.index[dim] < size_[dim]) return;
      position.index[dim] = 0;
      carried = 1;
    }
  }

  int rank_ = 0;
  int64_t size_[kMaxWalk];
  int64_t stride_[kMaxWalk][kPlaces];
  int64_t run_[kPlaces];
  int run_dims_[kPlaces];  // how many first dimensions a run covers
};

}  // namespace cudaloss::cpu
